"""An exported judge as a model of `transformers`: `AutoModel.from_pretrained(..., trust_remote_code=True)`.

The code beside such a judge does nothing but import this module. Weights are read by the same strict code as everywhere
else, never by `transformers` alone.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Pipeline, PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput

from .audio_inputs import Audio, pairs_of
from .data_modules.errors import AudioError, UserError
from .models.artifact import LoadedJudge, Placement, load_judge
from .models.hub import judge_folder
from .models.judge import DTYPES
from .models.scoring import SPREAD, PairScorer, choose_device
from .scorer import Scores

# Of AutoModel and pipeline: where the files are, which `judge_folder` finds again, and code, which is here already
_PASSED_OVER = (
    "adapter_kwargs", "cache_dir", "code_revision", "force_download", "local_files_only", "proxies", "subfolder",
    "token", "trust_remote_code", "use_safetensors", "_commit_hash", "_from_auto", "_from_pipeline",
)  # fmt: skip


class EmpathyJudgeConfig(PreTrainedConfig):
    """Says that a folder holds a judge; all the rest is in its `judge.json`."""

    model_type = "empathy_judge"


@dataclass
class EmpathyJudgeOutput(ModelOutput):
    """What `EmpathyJudgeModel` returns.

    Attributes:
        scores: Rating points `(pairs, dimensions)`, float32, on the CPU; in the order of `model.dimensions`.
    """

    scores: Tensor | None = None


class EmpathyJudgeModel(PreTrainedModel):
    """Scores spoken responses; made by `from_pretrained`.

    Attributes:
        dimensions: Names of what it scores.
        description: What `judge.json` says.
    """

    config_class = EmpathyJudgeConfig
    base_model_prefix = "judge"
    main_input_name = "response"

    def __init__(self, config: EmpathyJudgeConfig, loaded: LoadedJudge, folder: Path) -> None:
        """Wrap a judge that was read out of a folder."""
        super().__init__(config)
        self.judge = loaded.judge
        self.dimensions = [dimension.name for dimension in loaded.judge.dimensions]
        self.description = loaded.description
        self._folder = folder
        self._scorer = PairScorer(loaded.judge, calibration=loaded.calibration)
        self.eval()

    @classmethod
    def from_pretrained(  # pyright: ignore[reportIncompatibleMethodOverride] of its options few mean anything here
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        config: EmpathyJudgeConfig | None = None,
        revision: str | None = None,
        device_map: str | dict[str, Any] | None = None,
        dtype: Any = None,
        **options: Any,
    ) -> EmpathyJudgeModel:
        """Read a judge.

        Args:
            pretrained_model_name_or_path: Folder, or name on the hub.
            config: As `AutoModel` gives it.
            revision: Commit, tag or branch on the hub.
            device_map: "auto" = over all GPUs, then main memory; a device, or `{"": device}`; None = the CPU.
            dtype: None, "auto" or that of the stored weights: scores were measured with no other.
            options: Of `transformers`: where the files are.

        Raises:
            UserError: If the judge is broken, or an option means nothing here.
        """
        if unknown := sorted(options.keys() - set(_PASSED_OVER)):
            raise UserError(f"option {unknown[0]!r} means nothing to a judge; accepted: revision, device_map, dtype")
        folder = judge_folder(Path(pretrained_model_name_or_path), revision)
        device = device_map[""] if isinstance(device_map, dict) and device_map.keys() == {""} else device_map
        if isinstance(device, dict):
            raise UserError(f"device_map {device}; accepted: 'auto', a device, or {{'': a device}}")
        loaded = load_judge(folder, Placement(spread=device == SPREAD))
        stored = DTYPES[loaded.judge.settings.dtype]
        if dtype not in (None, "auto", stored, loaded.judge.settings.dtype):
            raise UserError(f"dtype {dtype}; accepted: {stored}, in which its scores were checked")
        model = cls(config or EmpathyJudgeConfig(), loaded, folder)
        return model if device in (None, SPREAD) else model.to(choose_device(str(device)))  # pyright: ignore[reportArgumentType]

    def forward(
        self,
        response: Audio | list[Audio],
        context: Audio | list[Audio | None] | None = None,
        situation: str | list[str | None] | None = None,
    ) -> EmpathyJudgeOutput:
        """Scores of one response or of a list of responses; see `score`."""
        found = self.score(context, response, situation=situation)
        rows = found if isinstance(found, list) else [found]
        return EmpathyJudgeOutput(scores=torch.tensor([list(row.values()) for row in rows]))

    def score(
        self,
        context: Audio | list[Audio | None] | None,
        response: Audio | list[Audio],
        *,
        situation: str | list[str | None] | None = None,
    ) -> Scores | list[Scores]:
        """Score one response, or several.

        Args:
            context: What the response answers: a clip, or None to judge the response alone; for several responses one
                for all, or a list of the same length.
            response: The clip that is judged, or a list of clips.
            situation: Text about the situation; for several responses one for all, or a list.

        Returns:
            Rating points by dimension; a list of that for a list of responses.

        Raises:
            AudioError: If a clip cannot be used.
            UserError: If lists differ in length.
        """
        scores = []
        for _, found in self._scorer.score(pairs_of(context, response, situation)):
            if isinstance(found, AudioError):
                raise found
            scores.append(dict(zip(self.dimensions, found.score.tolist(), strict=True)))
        return scores if isinstance(response, list) else scores[0]

    def save_pretrained(self, save_directory: str | os.PathLike[str], *_: Any, **__: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Not done: the folder that was read is the judge.

        Raises:
            UserError: Always, naming that folder.
        """
        raise UserError(f"{save_directory}: a judge is not written again; accepted: copy {self._folder}")


class EmpathyJudgePipeline(Pipeline):
    """`pipeline(model=FOLDER, trust_remote_code=True)({"context": ..., "response": ...})`.

    Takes clips as `Scorer` does and returns `[{"label": dimension, "score": rating points}, ...]` for each pair.
    """

    _load_processor = False
    _load_image_processor = False
    _load_video_processor = False
    _load_feature_extractor = False
    _load_tokenizer = False

    def _sanitize_parameters(self, **parameters: Any) -> tuple[dict, dict, dict]:
        if parameters:
            raise UserError(f"pipeline: parameter {min(parameters)!r}; accepted: none")
        return {}, {}, {}

    def preprocess(self, pair: dict[str, Any]) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """A pair with `response` and, if there are any, `context` and `situation`."""
        accepted = {"context", "response", "situation"}
        if not isinstance(pair, dict) or "response" not in pair or not pair.keys() <= accepted:
            raise UserError(
                "pipeline: accepted: {'response': clip, 'context': clip or None, 'situation': text or None}"
            )
        return pair

    def _forward(self, pair: dict[str, Any]) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
        model: Any = self.model
        return {"found": model.score(pair.get("context"), pair["response"], situation=pair.get("situation"))}

    def postprocess(self, outputs: dict[str, Any]) -> list[dict[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Rating points by dimension."""
        return [{"label": name, "score": score} for name, score in outputs["found"].items()]
