"""What the programs here work on: a pair dataset of noisy chirps with the lengths of conversation, sets of real speech
with ratings, and checkpoints of random weights in the hub's layout, which the code that loads real ones loads."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import soundfile
import torch
from empathy_judge.checkpoints.nano.make.architecture import build_processor
from empathy_judge.data_modules.importers.frames import dataset_from_frames
from empathy_judge.data_modules.schema import DatasetCard, Dimension, PairDataset
from empathy_judge.data_modules.writing import write_dataset
from empathy_judge.models.backbones.audio_language_model import QUESTION
from safetensors.torch import save_file
from transformers import (
    PreTrainedConfig,
    Qwen2_5OmniConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    WhisperFeatureExtractor,
)

RATE = 16_000
RESPONSES = 4
"""Responses to each context."""


def write_conversations(
    folder: Path, training: int, validation: int = 16, seconds: tuple[float, float] = (2.0, 8.0)
) -> None:
    """Write the dataset, the same in every run. A chirp that rises more is rated better, so that there is something
    to learn.

    Args:
        folder: Where to.
        training: Pairs of the split ``train``.
        validation: Pairs of the split ``validation``.
        seconds: Shortest and longest clip. Lengths between are log-normal with the geometric mean of the two in the
            middle, and the two ends two standard deviations away, where they are cut off.
    """
    rng = np.random.default_rng(0)
    (folder / "audio").mkdir(parents=True)
    rows, scores = [], []
    for split, pairs in (("train", training), ("validation", validation)):
        context = ""
        for number in range(pairs):
            group = f"{split}-{number // RESPONSES}"
            if number % RESPONSES == 0:
                context = _clip(folder, f"{group}-context", rng, seconds, 0.0)
            rise = rng.uniform(-1, 1)
            rows.append(
                {
                    "pair_id": f"{split}-{number}",
                    "group_id": group,
                    "split": split,
                    "context_audio": context,
                    "response_audio": _clip(folder, f"{split}-{number}", rng, seconds, rise),
                }
            )
            scores.append(float(np.clip(np.round(3 + 2 * rise), 1, 5)))
    pairs = pd.DataFrame(rows)
    ratings = pd.DataFrame(
        {"pair_id": pairs["pair_id"], "rater_id": "rule", "dimension": "rise", "score": scores},
    )
    card = DatasetCard("chirps", (Dimension("rise", 1, 5, 1),), "made to measure speed", "CC0-1.0", synthetic=True)
    write_dataset(folder, card, pairs, ratings)


def _clip(folder: Path, name: str, rng: np.random.Generator, seconds: tuple[float, float], rise: float) -> str:
    """A chirp in noise: its file inside the folder."""
    shortest, longest = np.log(seconds)
    drawn = rng.normal((shortest + longest) / 2, (longest - shortest) / 4)
    count = int(np.exp(np.clip(drawn, shortest, longest)) * RATE)
    octaves = rng.uniform(7, 9) + rise * np.linspace(-0.5, 0.5, count)
    chirp = np.sin(2 * np.pi * np.cumsum(2.0**octaves) / RATE)
    file = f"audio/{name}.wav"
    soundfile.write(folder / file, 0.2 * chirp + rng.normal(0, 0.03, count), RATE, subtype="PCM_16")
    return file


def load_set(name: str, data: Path, work: Path) -> PairDataset:
    """A set as a pair dataset, of which `tag:official` is the split that its makers gave."""
    folder = work / name / "data"
    if folder.exists():
        return PairDataset.load(folder)
    source = data / name
    if name == "mushra_codec":
        rows = pd.read_csv(source / "pairs.csv")
        pairs = rows.assign(
            response_speaker=rows["speaker_id"],
            response_audio=[str(source / file) for file in rows["response_audio"]],
            context_audio=[str(source / file) for file in rows["context_audio"]],
        ).drop(columns="speaker_id")
        ratings = pd.read_csv(source / "ratings.csv", dtype={"rater_id": str})
        return dataset_from_frames(pairs, ratings, dimensions=["fidelity=0:100:1"], folder=folder)
    rows = pd.read_csv(source / "metadata.csv", dtype={"speaker": str})
    ids = [Path(clip).stem for clip in rows["clip"]]
    pairs = pd.DataFrame(
        {
            "pair_id": ids,
            "response_audio": [str(source / clip) for clip in rows["clip"]],
            "response_speaker": rows["speaker"],
            "group_id": rows["speaker"],
        }
    )
    if name == "emodb":
        scores = pd.DataFrame({dimension: rows[f"{dimension}_label"] for dimension in ("valence", "arousal")})
        ratings = scores.assign(pair_id=ids).melt("pair_id", var_name="dimension", value_name="score")
        scales = ["valence=-1:1:0.5", "arousal=-1:1:1"]
        return dataset_from_frames(
            pairs, ratings.assign(rater_id="label"), dimensions=scales, folder=folder, synthetic=True
        )
    pairs["tag:official"] = rows["split"]
    columns = {f"prosodic_r{number}": f"r{number}" for number in range(1, 6)}
    scores = pd.DataFrame({new: rows[old] for old, new in columns.items()}).assign(pair_id=ids)
    ratings = scores.melt("pair_id", var_name="rater_id", value_name="score").dropna().assign(dimension="prosodic")
    return dataset_from_frames(pairs, ratings, dimensions=["prosodic=0:10:0.5"], folder=folder)


# ---------------------------------------------------------------- checkpoints

SHARD = 2_000_000_000
"""Most bytes of a file of weights, before its last tensor."""

_TOWERS: dict[str, dict[str, Any]] = {
    "tiny": {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 128},
    "mid": {"d_model": 320, "encoder_layers": 6, "encoder_attention_heads": 5, "encoder_ffn_dim": 1280},
    "7b": {},
}
_TEXTS: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 1_024},
    "mid": {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 12},
    "7b": {},
}
_HEADS = {"tiny": 2, "mid": 4}


def qwen2_audio(shapes: str) -> tuple[PreTrainedConfig, type, str]:
    """Configuration, class, and the part of the checkpoint that the class is.

    `mid` is Qwen2-Audio with 98 million parameters and the vocabulary of the real one, embeddings and LM head apart as
    there. These two take 80 million of them, which is what makes it small: of the others, tower and language model have
    about the same number, where the real ones have 1 to 10.
    """
    text = {"model_type": "qwen2", "vocab_size": 156_032, "intermediate_size": 11_008, **_TEXTS[shapes]}
    if shapes in _HEADS:
        text |= {"num_attention_heads": _HEADS[shapes], "num_key_value_heads": _HEADS[shapes]}
    config = Qwen2AudioConfig(
        audio_config={"model_type": "qwen2_audio_encoder", **_TOWERS[shapes]},
        text_config=text,
    )
    return config, Qwen2AudioForConditionalGeneration, ""


def qwen2_5_omni(shapes: str) -> tuple[PreTrainedConfig, type, str]:
    """As `qwen2_audio`; the checkpoint is that of the whole model without talker and vocoder, which are never read."""
    small, heads = shapes != "7b", {"num_attention_heads": 2, "num_key_value_heads": 1}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    config = Qwen2_5OmniConfig(
        thinker_config={
            "audio_config": _TOWERS[shapes] | ({"output_dim": _TEXTS[shapes]["hidden_size"]} if small else {}),
            "vision_config": {"depth": 0} | ({"hidden_size": 32, "out_hidden_size": 32} if small else {}),
            "text_config": {"rope_parameters": rope, **(_TEXTS[shapes] | heads if small else {})},
            # ids as on the hub; the audio token is that of the small vocabulary
            "audio_start_token_id": 151_647,
            "audio_end_token_id": 151_648,
            "vision_start_token_id": 151_652,
            "image_token_index": 151_655,
            "video_token_index": 151_656,
        }
    )
    return config, Qwen2_5OmniThinkerForConditionalGeneration, "thinker."


FAMILIES: dict[str, Callable[[str], tuple[PreTrainedConfig, type, str]]] = {
    "qwen2_audio": qwen2_audio,
    "qwen2_5_omni": qwen2_5_omni,
}


_HUB_NAMES = {
    "lm_head.": "language_model.lm_head.",
    "model.language_model.": "language_model.model.",
    "model.": "",
    "thinker.model.language_model.": "thinker.model.",
    "thinker.model.": "thinker.",
}


def hub_name(path: str) -> str:
    """The hub's name of a weight of Qwen2-Audio or Qwen2.5-Omni, from its path in the modules of transformers 5."""
    for prefix, name in _HUB_NAMES.items():
        if path.startswith(prefix):
            return name + path.removeprefix(prefix)
    return path


def write_checkpoint(family: str, shapes: str, folder: Path, device: str = "cpu") -> int:
    """Write random weights, and a processor with a small vocabulary; returns the number of parameters.

    Weights are drawn on `device`: those of 7b take minutes on a CPU.
    """
    config, model_class, prefix = FAMILIES[family](shapes)
    with torch.device("meta"):
        model = model_class._from_config(getattr(config, "thinker_config", config))
    weights = {hub_name(prefix + path): tensor.shape for path, tensor in model.state_dict().items()}
    parameters = write_weights(weights, lambda key: _draw(key, weights[key], device).cpu(), folder, SHARD)
    _write_processor(family, config, folder)
    return parameters


def write_weights(weights: dict[str, torch.Size], draw: Callable[[str], torch.Tensor], folder: Path, most: int) -> int:
    """Write weights in the hub's layout, in bfloat16, so many in a file that their bytes pass `most`; returns how many
    numbers they are."""
    files: dict[str, str] = {}
    waiting, total = dict[str, torch.Tensor](), 0
    for key, shape in weights.items():
        waiting[key] = draw(key)
        total += shape.numel()
        if sum(tensor.nbytes for tensor in waiting.values()) > most or len(files) + len(waiting) == len(weights):
            name = f"model-{len(set(files.values())) + 1:05d}.safetensors"
            save_file(waiting, folder / name, metadata={"format": "pt"})
            files |= dict.fromkeys(waiting, name)
            waiting = {}
    index = {"metadata": {"total_size": 2 * total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total


def _draw(key: str, shape: torch.Size, device: str) -> torch.Tensor:
    """Values as at the beginning of training, bfloat16, the same in every run on a kind of device: sums are then of the
    usual size."""
    if key.endswith("bias"):
        return torch.zeros(shape, dtype=torch.bfloat16)
    if len(shape) == 1:  # of a norm
        return torch.ones(shape, dtype=torch.bfloat16)
    generator = torch.Generator(device).manual_seed(zlib.crc32(key.encode()))
    return torch.empty(shape, dtype=torch.bfloat16, device=device).normal_(0, 0.02, generator=generator)


def _write_processor(family: str, config: PreTrainedConfig, folder: Path) -> None:
    processor = build_processor([QUESTION])
    ids = processor.tokenizer.convert_tokens_to_ids
    if family == "qwen2_audio":
        config.update({"audio_token_id": ids("<|AUDIO|>")})
    else:
        config.thinker_config.audio_token_index = ids("<|AUDIO|>")  # pyright: ignore[reportAttributeAccessIssue]
    config.save_pretrained(folder)
    processor.feature_extractor = WhisperFeatureExtractor(feature_size=128, return_attention_mask=True)
    processor.save_pretrained(folder)
    processor.feature_extractor.save_pretrained(folder)
    _change(folder / "tokenizer_config.json", extra_special_tokens={"audio_token": "<|AUDIO|>"})  # as Omni's has it
    _change(folder / "processor_config.json", feature_extractor=None)  # it has a file of its own, as on the hub


def _change(file: Path, **values: Any) -> None:
    """Put other values into a file of JSON; None takes one out."""
    settings = json.loads(file.read_text()) | values
    file.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))
