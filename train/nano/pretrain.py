"""Pre-train the nano backbone: `python -m empathy_judge.train.nano.pretrain --out checkpoints/nano`.

Two stages: the audio tower learns delivery by regression (`listen`), then the language model answers questions about it
(`answer`). About an hour on two CPU cores with the default numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jinja2
import torch
from safetensors.torch import load_file, save_file

from ...data_modules import sample
from ...models.backbones.audio_language_model import QUESTION
from ...models.backbones.base import Checkpoint
from ...models.backbones.qwen2_audio import Qwen2Audio
from .answer import Listener, measure_answers, train_language_model
from .architecture import SECONDS, build_model, build_processor
from .corpus import build_corpora
from .listen import train_tower
from .questions import all_texts

_README = Path(__file__).with_name("README.md.j2")
_PROMPTS = [QUESTION, "Context: ", "Response: ", "Situation: ", "<|im_start|>user\n<|im_end|>assistant"]


def main() -> None:
    """Parse arguments, pre-train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for model, processor and README.md")
    about = "folder for corpora and audio tower (1 GB); what is there is not made again"
    parser.add_argument("--work", type=Path, default=Path("nano_work"), help=about)
    about = "folder of recordings with metadata.csv (clip, speaker_id, text, gender, age)"
    parser.add_argument("--real-speech", type=Path, help=about)
    parser.add_argument("--clips", type=int, default=20_000, help="synthetic clips")
    parser.add_argument("--tower-epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5_500, help="steps of the language model")
    parser.add_argument("--seed", type=int, default=7)
    pretrain(**vars(parser.parse_args()))


def pretrain(
    out: Path,
    work: Path,
    real_speech: Path | None,
    clips: int,
    tower_epochs: int,
    steps: int,
    seed: int,
    measured_pairs: int = 400,
) -> None:
    """Run both stages and write model, processor and a README with held-out accuracy into `out`.

    Corpora and audio tower are kept in `work` between runs. `real_speech` = recordings to train on beside so many
    synthetic clips; None = synthetic speech alone. At the end each question is asked about `measured_pairs` of held-out
    clips.
    """
    clock = _Clock(work / "seconds.json")
    with clock.of("corpora"):
        corpora = build_corpora(work, real_speech, clips, seed)
    held_out = {name: store for name, store in corpora.items() if name != "train"}
    texts = [*all_texts(), *_PROMPTS * 3, *sample.statements(), *sample.replies()]
    processor = build_processor(texts)
    torch.manual_seed(seed)
    model = build_model(processor)
    backbone = Qwen2Audio(model.model, processor, Checkpoint(str(out)))
    tower, kept = model.model.audio_tower, work / "tower.safetensors"
    if kept.exists():
        tower.load_state_dict(load_file(kept))
    else:
        with clock.of("audio tower"):
            train_tower(backbone, corpora["train"], tower_epochs, seed)
        save_file(tower.state_dict(), kept)
    with clock.of("language model"):
        train_language_model(
            backbone, model, processor, Listener(backbone, corpora["train"]), steps, seed, work / "language_model.pt"
        )
    model.save_pretrained(out)
    processor.save_pretrained(out)
    measured = {
        name: measure_answers(backbone, model, processor, Listener(backbone, store), measured_pairs, seed=seed)
        for name, store in held_out.items()
    }
    recipe = {
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "clips": {name: len(store) for name, store in corpora.items()},
        "tower_epochs": tower_epochs,
        "steps": steps,
        "seed": seed,
        "seconds": clock.seconds,
    }
    page = jinja2.Template(_README.read_text(encoding="utf-8"), keep_trailing_newline=True)
    (out / "README.md").write_text(page.render(longest=SECONDS, measured=measured, **recipe), encoding="utf-8")
    (out / "measured.json").write_text(json.dumps({**recipe, "accuracy": measured}, indent=1) + "\n", encoding="utf-8")


class _Clock:
    """Seconds spent on each stage, kept on disk because a stage that is done is not repeated by the next run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}

    @contextmanager
    def of(self, stage: str) -> Iterator[None]:
        """Time a stage; an interrupted one adds up."""
        start = time.monotonic()
        yield
        spent = round(time.monotonic() - start)
        self.seconds[stage] = self.seconds.get(stage, 0) + spent
        self._path.write_text(json.dumps(self.seconds))


if __name__ == "__main__":
    main()
