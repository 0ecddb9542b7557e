"""The side of ms-swift in `peers.py`: run by the Python of its own environment, it trains or scores in turns.

`python peers_swift.py DESCRIPTOR SETTINGS.json`: takes turns (`timing.Turns`) over a connection that is open, and does
what a user of ms-swift does: `sft_main` with `--task_type seq_cls --problem_type regression`, or its engine for
inference. Nothing here imports empathy_judge.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from timing import Finished, Turns


def train(turns: Turns, settings: dict[str, Any]) -> None:
    """`swift sft` with these arguments, in turns."""
    from swift import callbacks_map  # type: ignore[reportMissingImports]
    from transformers import TrainerCallback

    class InTurns(TrainerCallback):
        def __init__(self, args: Any, trainer: Any) -> None:
            self._pairs = args.per_device_train_batch_size

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turns.wait()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.batch_came(self._pairs)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.step_done()

    callbacks_map["in_turns"] = InTurns
    fine_tune([*settings["arguments"], "--callbacks", "in_turns"])


def fine_tune(arguments: list[str]) -> None:
    """`swift sft` with these arguments."""
    from swift import loss_map, sft_main  # type: ignore[reportMissingImports]

    loss_map["mse"] = SquaredError
    sft_main(arguments)


class SquaredError:
    """Squared error, as the regression loss of ms-swift computes it. That one fails with Qwen2-Audio, whose model gets
    the labels and takes them for tokens; a loss of one's own (`loss_map`) keeps them from it."""

    def __init__(self, *_: Any) -> None: ...

    def __call__(self, outputs: Any, labels: torch.Tensor, **_: Any) -> torch.Tensor:
        return torch.nn.functional.mse_loss(outputs.logits.squeeze(-1).float(), labels.float())


def score(turns: Turns, settings: dict[str, Any]) -> None:
    """Let the engine of ms-swift score all pairs, batch after batch, again and again."""
    from swift import InferRequest, TransformersEngine  # type: ignore[reportMissingImports]

    rows = [json.loads(line) for line in Path(settings["rows"]).read_text(encoding="utf-8").splitlines()]
    requests = [InferRequest(messages=row["messages"], audios=row["audios"]) for row in rows]
    batch = settings["batch"]
    engine = TransformersEngine(settings["model"], max_batch_size=batch, **settings["engine"])
    turns.wait()
    for start in count(step=batch):
        chunk = requests[start % len(requests) :][:batch]
        turns.batch_came(len(chunk))
        answers = engine.infer(chunk)
        assert all(isinstance(answer.choices[0].message.content, float | str) for answer in answers)
        turns.step_done()


if __name__ == "__main__":
    descriptor, file = sys.argv[1:]
    with suppress(Finished), Connection(int(descriptor)) as connection:
        chosen = json.loads(Path(file).read_text(encoding="utf-8"))
        (train if "arguments" in chosen else score)(Turns.over(connection), chosen)
