"""Pre-train the nano backbone: `make nano`, or `python checkpoints/nano/make/pretrain.py --out checkpoints/nano`.

Two stages: the audio tower learns delivery by regression (`listen`), from a teacher too if there is one, then the
language model answers questions about it (`answer`). Everything runs in one thread, so that the weights do not depend
on the number of cores: the same command gives the same bytes on the same kind of machine, also after it was killed and
called again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jinja2
import torch
from empathy_judge.checkpoints.nano.make.answer import Listener, measure_answers, train_language_model
from empathy_judge.checkpoints.nano.make.architecture import SECONDS, build_model, build_processor
from empathy_judge.checkpoints.nano.make.corpus import Recording, build_corpora, digest, find_recordings
from empathy_judge.checkpoints.nano.make.listen import train_tower
from empathy_judge.checkpoints.nano.make.questions import all_texts
from empathy_judge.checkpoints.nano.make.teacher import load_teacher
from empathy_judge.core.errors import UserError
from empathy_judge.core.files import file_hash
from empathy_judge.data_modules import sample
from empathy_judge.models.backbones.audio_language_model import QUESTION
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.backbones.qwen2_audio import Qwen2Audio
from transformers import PreTrainedModel

_README = Path(__file__).with_name("README.md.j2")
_PROMPTS = [QUESTION, "Context: ", "Response: ", "Situation: ", "<|im_start|>user\n<|im_end|>assistant"]


def main() -> None:
    """Parse arguments, pre-train, save, measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for model, processor and README.md")
    about = "folder for corpora and unfinished stages (3 GB); what is there is not made again"
    parser.add_argument("--work", type=Path, default=Path("nano_work"), help=about)
    about = "folder with read_speech/ and expressive_speech/; without it, synthetic speech alone"
    parser.add_argument("--recordings", type=Path, metavar="DATA", help=about)
    about = "folder of an encoder of Whisper that the tower learns from: FOLDER/base/hub of benchmarks/real_ear.py"
    parser.add_argument("--teacher", type=Path, metavar="FOLDER", help=about)
    parser.add_argument("--clips", type=int, default=12_000, help="synthetic clips")
    parser.add_argument("--tower-epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=9_000, help="steps of the language model")
    parser.add_argument("--seed", type=int, default=7)
    run = parser.parse_args()
    torch.set_num_threads(1)
    try:
        recordings = [] if run.recordings is None else find_recordings(run.recordings)
        pretrain(run.out, run.work, recordings, run.clips, run.tower_epochs, run.steps, run.seed, teacher=run.teacher)
    except UserError as problem:
        print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)


def pretrain(
    out: Path,
    work: Path,
    recordings: list[Recording],
    clips: int,
    tower_epochs: int,
    steps: int,
    seed: int,
    measured_pairs: int = 400,
    teacher: Path | None = None,
) -> None:
    """Run both stages and write model, processor and a README with held-out accuracy into `out`.

    Corpora and unfinished stages are kept in `work`. `recordings` join so many synthetic `clips`. At the
    end each question is asked about `measured_pairs` of held-out clips. The tower learns from a `teacher`, too, see
    `taught`.

    Raises:
        UserError: If what is in `work` is from another recipe, or the teacher cannot be used.
    """
    if teacher is not None:
        load_teacher(teacher)  # before hours of work
    recipe: dict[str, Any] = {
        "synthetic_clips": clips,
        "recordings": digest(recordings),
        "teacher": None if teacher is None else file_hash(teacher / "model.safetensors"),
        "tower_epochs": tower_epochs,
        "steps": steps,
        "seed": seed,
    }
    recipe_file = work / "recipe.json"
    if recipe_file.exists() and json.loads(recipe_file.read_text()) != recipe:
        raise UserError(f"{work}: holds the stages of another recipe; delete it, or name another folder (--work)")
    work.mkdir(parents=True, exist_ok=True)
    recipe_file.write_text(json.dumps(recipe))
    clock = _Clock(work / "seconds.json")
    with clock.of("corpora"):
        corpora = build_corpora(work, recordings, clips, seed, teacher)
    held_out = {name: store for name, store in corpora.items() if name != "train"}
    texts = [*all_texts(), *_PROMPTS * 3, *sample.statements(), *sample.replies()]
    processor = build_processor(texts)
    torch.manual_seed(seed)
    model = build_model(processor)
    backbone = Qwen2Audio(model.model, processor, Checkpoint(str(out)))
    with clock.of("audio tower"):
        train_tower(backbone, corpora["train"], tower_epochs, seed, work / "audio_tower.pt")
    with clock.of("language model"):
        listener = Listener(backbone, corpora["train"])
        train_language_model(backbone, model, processor, listener, steps, seed, work / "language_model.pt")
    save_in_half(model, out)
    processor.save_pretrained(out)
    measured = {
        name: measure_answers(backbone, model, processor, Listener(backbone, store), measured_pairs, seed=seed)
        for name, store in held_out.items()
    }
    recipe |= {
        "sha256": {
            "architecture": architecture_digest(model),
            "recordings": recipe.pop("recordings"),
            "teacher": recipe.pop("teacher"),
            "corpora": {name: store.digest() for name, store in corpora.items()},
            "weights": file_hash(out / "model.safetensors"),
        },
        "clips": {name: len(store) for name, store in corpora.items()},
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "seconds": clock.seconds,
    }
    page = jinja2.Template(_README.read_text(encoding="utf-8"), keep_trailing_newline=True)
    sources = sorted({recording.source for recording in recordings if recording.source is not None})
    readme = page.render(longest=SECONDS, measured=measured, sources=sources, **recipe)
    (out / "README.md").write_text(readme, encoding="utf-8")
    (out / "measured.json").write_text(json.dumps({**recipe, "accuracy": measured}, indent=1) + "\n", encoding="utf-8")


def save_in_half(model: PreTrainedModel, out: Path) -> None:
    """Round the weights to float16, in place, and write them as such into `out`.

    What is measured afterwards is thus what is stored. The configuration says float32, so that the official class
    computes in it.
    """
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half())
    model.save_pretrained(out, state_dict={name: weight.half() for name, weight in model.state_dict().items()})


def architecture_digest(model: PreTrainedModel) -> str:
    """SHA-256 of the names and shapes of the weights and of the sizes in the configuration."""
    audio, text = model.config.audio_config.to_dict(), model.config.text_config.to_dict()
    sizes = [sorted((k, v) for k, v in config.items() if isinstance(v, int | float)) for config in (audio, text)]
    shapes = sorted((name, list(weight.shape)) for name, weight in model.named_parameters())
    return hashlib.sha256(json.dumps([sizes, shapes]).encode()).hexdigest()


class _Clock:
    """Seconds spent on each stage, kept on disk because a stage that is done is not repeated by the next run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Time a stage; what an interrupted one took is added."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = self.seconds.get(stage, 0) + round(time.monotonic() - start)
            self._path.write_text(json.dumps(self.seconds))


if __name__ == "__main__":
    main()
