"""Training and scoring beside ms-swift and the naive way, in one run: `python benchmarks/peers.py SWIFT_PYTHON`.

SWIFT_PYTHON is the Python of an environment with ms-swift (4.6.0 with transformers 4.48.3, librosa, and the torch of
this project: with transformers 5 it stops). All ways read the same weights (random, in the shapes of Qwen2-Audio) and
the same pairs, adapt the same layers with the same LoRA, and take the same number of pairs in a batch. They take turns
in each round (`timing`), and the ratio is taken in each round. Start-up is not counted, data loading is.

What ms-swift does otherwise (`--task_type seq_cls --problem_type regression`): it pads each clip to 30 s, reads the
state of one token through a linear layer without bias, and keeps this head in the model's dtype; losses cannot be equal
to ours. The naive way is our model to the last figure (`training.py` compares them). A depth is named in its row;
random weights say nothing about the quality at that depth.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from empathy_judge.data_modules.schema import PairDataset
from empathy_judge.models.backbones.audio_language_model import QUESTION
from empathy_judge.models.scoring import PairScorer
from materials import Conversations, write_conversations
from naive import ALPHA, LEARNING_RATE, RANK, Collate, NaiveRater, Place, read_items
from rich.console import Console
from rich.table import Table
from timing import Order, Player, Turn, Turns, append_row, players, ratios, spread
from training import machine_facts, prepare, random_judge, train_naively, train_with_us

NAIVE, SWIFT = "naive", "ms-swift"
ADAPTED = r".*language_model\.model\.layers\.\d+\.\w+\.(?:q|k|v|o|gate|up|down)_proj"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swift", type=Path, metavar="SWIFT_PYTHON", help="Python of an environment with ms-swift")
    parser.add_argument("--shapes", choices=["mid", "7b"], default="mid", help="size of the backbone")
    parser.add_argument("--depth", type=float, default=0.5, help="share of the layers that is read in rows that say so")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="of each way in a round")
    parser.add_argument("--batch", type=int, default=4, help="pairs in a batch")
    parser.add_argument("--json", type=Path, help="file that a line for each way is added to")
    options = parser.parse_args()
    console = Console(width=160)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        pairs = options.batch * options.steps * (options.rounds + 1)  # one to warm up
        write_conversations(folder / "data", Conversations(pairs))
        place = prepare(folder, options.shapes, options.batch)
        given = Path(place.checkpoint), write_rows(place, folder / "rows.jsonl")
        machine = machine_facts(place)
        console.print(" | ".join(f"{name} {value}" for name, value in machine.items()))
        for kind, ways in (("training", training_ways), ("scoring", scoring_ways)):
            title = f"{kind}, {place.batch} pairs in a batch"
            table, rows = race(title, ways(options, place, *given, folder), options.rounds, options.steps)
            console.print(table)
            for row in rows:
                append_row(options.json, row | machine)


def race(
    title: str, ways: Mapping[str, Callable[[], Player]], rounds: int, steps: int
) -> tuple[Table, list[dict[str, Any]]]:
    """What ways that take turns reach beside the naive one and ms-swift: for people, and a row for each way."""
    with players(ways) as started:
        turns: dict[str, list[Turn]] = {name: [] for name in started}
        for _ in range(rounds):
            for name, player in started.items():
                turns[name].append(player.play(Order(steps)))
    rates = {name: [turn.rate for turn in own] for name, own in turns.items()}
    cpu_rates = {name: [turn.cpu_rate for turn in own] for name, own in turns.items()}
    table = Table(
        title, "pairs/s", "times naive (median, range)", "in CPU time", "times ms-swift", "in CPU time", "peak GB"
    )
    rows = []
    for name, own in turns.items():
        found: dict[str, list[float]] = {}
        for base in (NAIVE, SWIFT):
            found[base] = ratios(rates[name], rates[base])
            found[f"{base}, CPU"] = ratios(cpu_rates[name], cpu_rates[base])
        peak = own[-1].peak
        pace = f"{statistics.median(rates[name]):.2f}"
        table.add_row(name, pace, *map(spread, found.values()), f"{peak / 1e9:.2f}")
        rows.append({"kind": title, "way": name, "rates": rates[name], "ratios": found, "peak": peak})
    return table, rows


def swift(python: Path, settings: dict[str, Any], folder: Path) -> Player:
    """ms-swift, in its own environment (`peers_swift`)."""
    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps(settings))
    ours, theirs = multiprocessing.Pipe()
    program = Path(__file__).with_name("peers_swift.py")
    command = [python, program, str(theirs.fileno()), folder / "settings.json"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, pass_fds=[theirs.fileno()]
        )
    theirs.close()
    return Player(ours, process.wait, folder / "log")


def write_rows(place: Place, file: Path) -> Path:
    """The training split as ms-swift reads it."""
    lines = []
    for pair, score in read_items(PairDataset.load(place.data), "train"):
        question = f"Context: <audio>\nResponse: <audio>\n{QUESTION}"
        audios = [str(pair.context[0].audio), str(pair.response)]
        lines.append({"messages": [{"role": "user", "content": question}], "audios": audios, "label": score})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def swift_arguments(place: Place, model: Path, rows: Path, out: Path, **further: object) -> list[str]:
    """Arguments of `swift sft` for what the naive way trains."""
    on_gpu = place.device != "cpu"
    given = {
        "model": model, "model_type": "qwen2_audio", "template": "qwen2_audio",
        "task_type": "seq_cls", "num_labels": 1, "problem_type": "regression", "loss_type": "mse",
        "dataset": rows, "dataset_num_proc": 1, "load_from_cache_file": "false", "split_dataset_ratio": 0,
        "tuner_type": "lora", "target_regex": ADAPTED, "lora_rank": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0,
        "torch_dtype": "bfloat16" if on_gpu else "float32", "bf16": str(on_gpu).lower(), "fp16": "false",
        "attn_impl": "sdpa", "gradient_checkpointing": "false", "dataloader_num_workers": place.workers,
        "per_device_train_batch_size": place.batch, "gradient_accumulation_steps": 1, "num_train_epochs": 1000,
        "learning_rate": LEARNING_RATE, "output_dir": out, "save_strategy": "no", "eval_strategy": "no",
        "logging_steps": 1, "report_to": "none", **further,
    }  # fmt: skip
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def training_ways(
    options: argparse.Namespace, place: Place, model: Path, rows: Path, folder: Path
) -> dict[str, Callable[[], Player]]:
    """All ways of training, each a function that starts its player."""
    half, audio = {"judge.depth": options.depth}, {"cache.what": "audio"}
    together = {"data.batches": "groups"}  # the responses to a context, which is read once then
    ours = {
        "ours, cold": {},
        "ours, cold, contexts together": together,
        "ours, audio kept, contexts together": together | audio,
        f"ours, cold, contexts together, depth {options.depth:g}": together | half,
        f"ours, audio kept, contexts together, depth {options.depth:g}": together | half | audio,
    }

    def start(name: str, run: Callable[..., None], *values: Any) -> Callable[[], Player]:
        return partial(Player.of, run, place, folder / name, *values, log=folder / f"{name}.log")

    told = {"arguments": swift_arguments(place, model, rows, folder / "swift_runs")}
    others = {
        NAIVE: start(NAIVE, train_naively, False),
        SWIFT: partial(swift, options.swift, told, folder / "swift"),
    }
    return others | {name: start(name, train_with_us, False, values) for name, values in ours.items()}


def scoring_ways(
    options: argparse.Namespace, place: Place, model: Path, rows: Path, folder: Path
) -> dict[str, Callable[[], Player]]:
    """All ways of scoring, each a function that starts its player; pairs come once, in the order of the data set."""
    out = folder / "swift_adapter"
    few = swift_arguments(
        place, model, rows, out, max_steps=1, save_strategy="steps", save_steps=1, add_version="false"
    )
    program = "import sys; from peers_swift import fine_tune; fine_tune(sys.argv[1:])"
    path = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run(
        [options.swift, "-c", program, *few], cwd=folder, env=os.environ | path, check=True, capture_output=True
    )
    engine = {"task_type": "seq_cls", "num_labels": 1, "problem_type": "regression", "model_type": "qwen2_audio"}
    engine |= {"adapters": [str(out / "checkpoint-1")], "attn_impl": "sdpa"}
    told = {"model": str(model), "batch": place.batch, "rows": str(rows), "engine": engine}

    def start(name: str, run: Callable[..., None], *values: Any) -> Callable[[], Player]:
        return partial(Player.of, run, place, *values, log=folder / f"scoring {name}.log")

    return {
        NAIVE: start(NAIVE, score_naively),
        SWIFT: partial(swift, options.swift, told, folder / "swift_scoring"),
        "ours": start("ours", score_with_us, None),
        f"ours, depth {options.depth:g}": start("ours, depth", score_with_us, options.depth),
    }


def score_naively(turns: Turns, place: Place) -> None:
    """Batches of the naive way."""
    rater, collate = NaiveRater(place.checkpoint, None, torch.device(place.device)), Collate(place.checkpoint)
    rater.eval()
    items = read_items(PairDataset.load(place.data), "train")
    turns.wait()
    while True:
        for start in range(0, len(items), place.batch):
            own = collate(items[start : start + place.batch])
            turns.batch_came(len(own.targets), own.inputs["attention_mask"])
            rater.score(iter([own]))
            turns.step_done()


def score_with_us(turns: Turns, place: Place, depth: float | None) -> None:
    """Batches of the scorer behind `score`, which keeps what it has heard of a context from one batch to the next."""
    judge = random_judge(place.checkpoint, torch.device(place.device), depth)
    judge.merge()  # as `Scorer` does
    pairs = [pair for pair, _ in read_items(PairDataset.load(place.data), "train")]
    turns.wait()
    while True:
        scorer = PairScorer(judge, place.batch)
        for start in range(0, len(pairs), place.batch):
            own = pairs[start : start + place.batch]
            turns.batch_came(len(own), torch.ones(len(own), 1))
            list(scorer.predict(own))
            turns.step_done()


if __name__ == "__main__":
    main()
