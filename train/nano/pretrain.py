"""Pre-train the nano backbone: `python -m empathy_judge.train.nano.pretrain --out checkpoints/nano`.

Two stages: the audio tower learns delivery by regression (`listen`), then the language model answers questions about it
(`answer`). About an hour on two CPU cores with the default numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

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

_PROMPTS = [QUESTION, "Context: ", "Response: ", "Situation: ", "<|im_start|>user\n<|im_end|>assistant"]


def main() -> None:
    """Parse arguments, pre-train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for model, processor and README.md")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("nano_work"),
        help="folder for corpora and audio tower (1 GB); what is there is not made again",
    )
    parser.add_argument("--real-speech", type=Path, help="folder of recordings with metadata.csv "
                        "(clip, speaker_id, text, gender, age)")  # fmt: skip
    parser.add_argument("--clips", type=int, default=20_000, help="synthetic clips")
    parser.add_argument("--tower-epochs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5_500, help="steps of the language model")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    pretrain(
        options.out, options.work, options.real_speech, options.clips, options.tower_epochs, options.steps, options.seed
    )


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
    (out / "README.md").write_text(render_readme(recipe, measured), encoding="utf-8")
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


def render_readme(recipe: Mapping, measured: Mapping[str, Sequence[Mapping]]) -> str:
    """What the backbone is, how it was made and how well it hears."""
    clips = ", ".join(f"{name}: {count:,}" for name, count in recipe["clips"].items())
    cost = ", ".join(f"{name} {value / 60:.0f} min" for name, value in recipe["seconds"].items())
    lines = [
        "# The nano backbone",
        "",
        "Qwen2-Audio in miniature: `Qwen2AudioForConditionalGeneration` with its processor, loaded by plain",
        f"`from_pretrained`, {recipe['parameters'] / 1e6:.2f} million parameters (float32), clips up to {SECONDS} s. It listens to",
        "delivery (pitch, pitch range, rate, loudness, voice quality, ...) and answers questions about it in words. It does not",
        "understand speech: it exists so that the whole pipeline runs anywhere, and is no judge of people.",
        "",
        "## How it was made",
        "",
        "`python -m empathy_judge.train.nano.pretrain --out checkpoints/nano --real-speech FOLDER`",
        "",
        f"- **Data**: clips ({clips}). Synthetic ones are spoken by espeak-ng in 240 voices of random pitch, vocal tract and",
        "  accent, in random tones (pitch, pitch range, rate, level, voice quality), a part of them muffled, noisy or distorted.",
        "  Real ones are recordings of speechocean762 (Zhang et al., 2021; read English of learners, half of them children;",
        "  Apache-2.0 as stated by its author at tag v1.2.0), once as they are and twice degraded.",
        "- **Targets**: what the synthesiser was asked for (voice quality, sex, pitch shift, recording) or what is measured from",
        "  the signal (pitch, range, level, harmonicity, syllables per second).",
        f"- **Recipe**: {recipe['tower_epochs']} epochs of the audio tower by direct regression, clip and frame level; then",
        f"  {recipe['steps']:,} steps of the language model on 8 dialogues of six questions each, over the frozen tower.",
        f"- **Cost** on two CPU cores: {cost}.",
        "",
        "## How well it hears",
        "",
        "Accuracy of the whole answer against the share of the commonest answer. A question is asked about the context or the",
        "response of a random pair of held-out clips; \"more ...\" asks which of the two has more (or the same).",
    ]  # fmt: skip
    titles = {"unseen_voices": "Synthetic speech, unseen voices", "real": "Real recordings, unseen speakers"}
    for name, rows in measured.items():
        lines += ["", f"### {titles[name]}", "", "| question | n | majority | accuracy |", "|---|---|---|---|"]
        lines += [f"| {r['question']} | {r['n']} | {r['majority']:.2f} | {r['accuracy']:.2f} |" for r in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
