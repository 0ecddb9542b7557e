"""LoRA in a real ear: what adapters in Whisper's encoder add to the probe that they start from, on some hundred clips.

Each seed splits a set by speaker into training, validation and test pairs: `speechocean_prosody` has the test speakers
of its makers, `emodb` two other speakers for each seed; a quarter of the remaining speakers chooses the epoch and ends
training. `empathy-judge train` with the recipe `whisper_base` and method lora starts at the probe of the training
pairs. Two judges are measured on the test pairs beside that probe: the best epoch after the start, and what is
published, which is the start where no epoch was better in validation.
Run: `python benchmarks/real_ear_lora.py DATA --work FOLDER`, with the folder of `real_ear.py`, which fetches the
weights; `--ears`, `--sets`, `--ranks`, `--seeds` and `--variants` say what. Each training is a row of
`FOLDER/lora.jsonl`, and is not done again; `--report` prints the table of the rows there are.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import empathy_judge
import lightning as L
import numpy as np
import real_ear
import small_data
import torch
from empathy_judge import PairDataset
from empathy_judge.core.errors import AudioError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.data_modules.writing import write_splits
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.eval.statistics.bootstrap import MIN_GROUPS, Resamples
from empathy_judge.scoring.artifact import load_any
from empathy_judge.scoring.predictor import Predictor, placed
from empathy_judge.train.collate import Batch
from empathy_judge.train.module import MONITOR, JudgeModule
from frozen import Study, activations_of
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from materials import load_set
from sklearn.model_selection import GroupKFold
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

SETS = ("speechocean_prosody", "emodb")
PATIENCE, SILENCE, RESAMPLES = 2, 1.0, 2_000


@dataclass(frozen=True)
class Variant:
    """How adapters are trained."""

    epochs: int = 6  # at most; the rates fall over them
    rate: float = 3e-4  # learning rate of adapters
    head_rate: float = 1e-3
    layer_decay: float = 1.0  # times the rate of a layer, that of the layer below
    masked: bool = False  # SpecAugment
    mixed: bool = False  # mixup


VARIANTS = {
    "6 epochs": Variant(),
    "3 epochs": Variant(epochs=3),
    "6 epochs, lower rates": Variant(rate=1e-4, head_rate=1e-4),
    "6 epochs, layer-wise rates": Variant(layer_decay=0.5),
    "6 epochs, SpecAugment": Variant(masked=True),
    "6 epochs, mixup": Variant(mixed=True),
}


class Trial(Callback):
    """Trains as a variant says where the product has no setting for it.

    SpecAugment (Park et al., 2019): two bands of up to 15 % of the mel bins and two spans of up to 10 % of a clip are
    its mean. Mixup (Zhang et al., 2018): of what the head reads and of ratings, share from Beta(0.2, 0.2).
    """

    def __init__(self, variant: Variant, seed: int) -> None:
        self.variant, self._random = variant, np.random.default_rng(seed)
        self._mixed: tuple[float, Tensor] | None = None

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Lightning asks for the optimizer later."""
        assert isinstance(pl_module, JudgeModule)
        if self.variant.layer_decay != 1:
            usual = pl_module.configure_optimizers
            pl_module.configure_optimizers = lambda: self._by_layer(usual(), pl_module)
        if self.variant.mixed:
            pl_module.judge.head.register_forward_pre_hook(self._mix)

    def _by_layer(self, usual: Any, module: JudgeModule) -> OptimizerLRScheduler:
        depth_of = {
            weight: int(layer[1])
            for name, weight in module.named_parameters()
            if (layer := re.search(r"encoder[.]layers[.](\d+)[.]", name))
        }
        top, groups = max(depth_of.values()), []
        for group in usual["optimizer"].param_groups:
            rate = group.pop("initial_lr")  # the schedule has begun to rise to it
            for weight in group["params"]:
                below = top - depth_of.get(weight, top)
                groups.append({**group, "params": [weight], "lr": rate * self.variant.layer_decay**below})
        optimizer = AdamW(groups)
        schedule = LambdaLR(optimizer, usual["lr_scheduler"]["scheduler"].lr_lambdas[0])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Change the batch, which is made anew in each epoch."""
        if self.variant.masked:
            clips = batch.inputs.clips
            assert clips is not None
            for spectrogram, states in zip(clips.features, clips.lengths, strict=True):
                heard = spectrogram[:, : 2 * states]  # two frames make a state
                mean = heard.mean()
                for axis, most in ((0, 0.15), (0, 0.15), (1, 0.1), (1, 0.1)):
                    width = int(self._random.uniform(0, most) * heard.shape[axis])
                    heard.narrow(axis, int(self._random.integers(heard.shape[axis] - width + 1)), width).fill_(mean)
        if self.variant.mixed:
            targets = batch.labels.targets
            share = float(self._random.beta(0.2, 0.2))
            others = torch.from_numpy(self._random.permutation(len(targets)))
            self._mixed = share, others
            targets.copy_(share * targets + (1 - share) * targets[others])

    def _mix(self, head: nn.Module, read: tuple[Tensor]) -> tuple[Tensor] | None:
        if not head.training or self._mixed is None:
            return None
        share, others = self._mixed
        return (share * read[0] + (1 - share) * read[0][others],)


class Epochs(Callback):
    """Keeps the start and the best epoch after it, with the agreement of each validation and what training says that it
    has added (`Provenance.start`)."""

    def __init__(self, folder: Path) -> None:
        self.agreements: list[float] = []
        self.added: dict[str, dict[str, float | None]] = {}
        self.start, self.best = folder / "start.ckpt", folder / "best.ckpt"

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The probe was validated."""
        self.agreements.append(float(trainer.callback_metrics[MONITOR]))
        trainer.save_checkpoint(self.start)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """An epoch was validated."""
        if not self.agreements:
            return  # the start
        agreement = float(trainer.callback_metrics[MONITOR])
        if agreement > max(self.agreements[1:], default=-np.inf):
            trainer.save_checkpoint(self.best)
        self.agreements.append(agreement)
        assert isinstance(pl_module, JudgeModule)
        self.added = pl_module.added


def parts_of(dataset: PairDataset, seed: int) -> dict[str, list[Pair]]:
    """Pairs by split; no speaker is in two."""
    pairs = dataset.pairs
    official = [dict(pair.tags).get("official") for pair in pairs]
    if all(official):
        train, test = (
            [pair for pair, part in zip(pairs, official, strict=True) if part == name] for name in ("train", "test")
        )
    else:
        folds = GroupKFold(5, shuffle=True, random_state=0).split(
            pairs, groups=[str(pair.response_speaker) for pair in pairs]
        )
        train, test = ([pairs[row] for row in rows] for rows in list(folds)[seed])
    quarters = GroupKFold(4, shuffle=True, random_state=seed)
    fit, choose = next(quarters.split(train, groups=[str(pair.response_speaker) for pair in train]))
    return {"train": [train[row] for row in fit], "validation": [train[row] for row in choose], "test": test}


def scores_of(judge: Path, pairs: Sequence[Pair]) -> np.ndarray:
    """Scores `(pairs, dimensions)`."""
    found = Predictor(placed(load_any(judge), "cpu"), 32).predict(pairs)
    scores = {pair.pair_id: result.score.numpy() for pair, result in found if not isinstance(result, AudioError)}
    return np.stack([scores[pair.pair_id] for pair in pairs])


def run(name: str, ear: str, rank: int, seed: int, variant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train, and score the test pairs."""
    folder = options.work / "lora" / f"{name}_{ear}_{rank}_{seed}_{variant.replace(' ', '_').replace(',', '')}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    dataset = load_set(name, options.data, options.work / "lora")  # a second copy of the set, with other splits
    parts = parts_of(dataset, seed)
    splits = {pair.pair_id: part for part, pairs in parts.items() for pair in pairs}
    write_splits(options.work / "lora" / name / "data", [splits[pair.pair_id] for pair in dataset.pairs])
    backbone = str(options.work / ear / "hub")
    how = VARIANTS[variant]
    settings = {
        "config": "whisper_base",
        "method": "lora",
        "seed": seed,
        "patience": PATIENCE,
        "judge": {
            "backbone": backbone,
            "window_seconds": SILENCE,
            "lora": {"parts": ["audio_tower"], "rank": rank, "alpha": 2 * rank, "dropout": 0.05},
        },
        "cache": {"what": "none"},
        "data": {"batch_size": 16, "eval_batch_size": 32},
        "trainer": {**small_data.QUIET, "accelerator": "cpu", "max_epochs": how.epochs, "gradient_clip_val": 1.0},
        "optimizer": {"learning_rate": how.rate, "head_learning_rate": how.head_rate},
    }
    epochs, start = Epochs(folder), time.process_time()
    with (folder / "log.txt").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        empathy_judge.train(
            settings, options.work / "lora" / name / "data", folder / "run", watching=[epochs, Trial(how, seed)]
        )
        seconds = time.process_time() - start
        test = parts["test"]
        probe, trained = (scores_of(path, test) for path in (epochs.start, epochs.best))
    # what a probe of all training pairs says, which needs none to choose an epoch by
    window = f"clip + {SILENCE:g} s"
    judge = real_ear.judge_on(backbone, dataset, SILENCE)
    file = options.work / name / f"{ear} {window}.npz".replace(" ", "_")
    file.parent.mkdir(exist_ok=True)
    study = Study(dataset, judge, activations_of(dataset, judge, file))
    whole, _ = study.predict(real_ear.METHODS["probe"], parts["train"] + parts["validation"], test, seed, False)
    shutil.rmtree(folder / "run")
    for path in (epochs.start, epochs.best):
        path.unlink()
    return {
        "set": name,
        "ear": ear,
        "rank": rank,
        "seed": seed,
        "variant": variant,
        "pairs": {part: len(pairs) for part, pairs in parts.items()},
        "validation": [round(value, 4) for value in epochs.agreements],
        "added": epochs.added,
        "cpu_seconds": round(seconds),
        "test": [pair.pair_id for pair in test],
        "scores": {
            key: np.round(value, 5).tolist()
            for key, value in (("probe", probe), ("trained", trained), ("probe of all", whole))
        },
    }


def table(rows: Sequence[Mapping[str, Any]], work: Path) -> str:
    """Spearman of the test pairs, the mean over seeds, and the leads over the probe with 90 % intervals over speakers,
    paired, as Markdown."""
    judges = ("probe", "trained", "published", "probe of all")
    lines = [
        f"| set | ear | rank, variant | training, choosing, test pairs | seeds | validation by epoch | best - start | "
        f"cross-fitted | {' | '.join(judges)} | trained - probe | published - probe of all |",
        "|---" * 14 + "|",
    ]
    kinds = dict.fromkeys((row["set"], row["ear"], row["rank"], row["variant"]) for row in rows)
    for kind in kinds:
        own = [row for row in rows if (row["set"], row["ear"], row["rank"], row["variant"]) == kind]
        dataset = PairDataset.load(work / "lora" / kind[0] / "data")
        speakers = {pair.pair_id: str(pair.response_speaker) for pair in dataset.pairs}
        ids = [pair for row in own for pair in row["test"]]
        seed_of = np.repeat([row["seed"] for row in own], [len(row["test"]) for row in own])
        draws = Resamples.sample([speakers[pair] for pair in ids], RESAMPLES, 0)
        scores = {name: np.concatenate([np.array(_scores(row, name)) for row in own]) for name in judges}
        for column, dimension in enumerate(one.name for one in dataset.card.dimensions):
            people = dataset.mean_scores()[dimension].loc[ids].to_numpy(float)

            def agreement(
                name: str,
                items: Any,
                column: int = column,
                people: Any = people,
                scores: Any = scores,
                of: Any = seed_of,
            ) -> float:
                """Mean over seeds, each on its own test pairs."""
                found = []
                for seed in np.unique(of[items]):
                    at = np.arange(len(of))[items][of[items] == seed]
                    found.append(spearman(scores[name][at, column], people[at]))
                return float(np.nanmean(found))

            cells = [f"{agreement(name, slice(None)):.3f}" for name in judges]
            for first, second in (("trained", "probe"), ("published", "probe of all")):

                def lead(items: Any, first: str = first, second: str = second, of: Any = agreement) -> float:
                    return of(first, items) - of(second, items)

                interval = f"{draws.n_groups} speakers, no interval"
                if draws.n_groups >= MIN_GROUPS:
                    low, high = np.nanquantile(draws.apply(lead), (0.05, 0.95))
                    interval = f"{low:+.3f} to {high:+.3f}"
                cells.append(f"{lead(slice(None)):+.3f} ({interval})")
            counts = ", ".join(str(own[0]["pairs"][part]) for part in ("train", "validation", "test"))
            by_epoch = "; ".join(" ".join(map(str, row["validation"])) for row in own)
            flattered = np.mean([max(row["validation"]) - row["validation"][0] for row in own])
            honest = np.mean([row["added"][dimension]["added"] for row in own])
            lines.append(
                f"| `{kind[0]}` {dimension} | {kind[1]} | {kind[2]}, {kind[3]} | {counts} | {len(own)} | {by_epoch} | "
                f"{flattered:+.3f} | {honest:+.3f} | {' | '.join(cells)} |"
            )
    return "\n".join(lines)


def _scores(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    start, *epochs = row["validation"]
    return row["scores"][("trained" if max(epochs) > start else "probe") if name == "published" else name]


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--ears", nargs="+", choices=list(real_ear.EARS), default=list(real_ear.EARS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[8])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS)[:1])
    parser.add_argument("--report", action="store_true", help="train nothing; print the table")
    options = parser.parse_args()
    if options.report:
        print(table(small_data.fits_of(options.work / "lora.jsonl"), options.work))
        return
    file, names = options.work / "lora.jsonl", ("set", "ear", "rank", "seed", "variant")
    for ear in options.ears:
        for name in options.sets:
            for rank in options.ranks:
                for variant in options.variants:
                    for seed in options.seeds:
                        key = name, ear, rank, seed, variant
                        done = {tuple(row[name] for name in names) for row in small_data.fits_of(file)}
                        if key not in done:
                            row = run(*key, options)
                            with file.open("a") as out:
                                out.write(json.dumps(row) + "\n")
                            print(*key, row["cpu_seconds"], row["validation"], flush=True)


if __name__ == "__main__":
    main()
