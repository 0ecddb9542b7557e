"""What makes a step fit that does not."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from empathy_judge.models.work import CUDA_CONTEXT, GIB
from empathy_judge.train.memory import ROOM, StepMemory
from empathy_judge.train.recipe import RecipeParser
from empathy_judge.train.room import ways_to_fit
from empathy_judge.train.strategies import check_strategy

from ..conftest import output_of


def test_a_step_that_does_not_fit_is_told_with_what_makes_it_fit(capsys):
    words = ["train", "--config", "nano", "--dry-run", "--clip-seconds", 8, "--gpu-gib", 1, "--data.batch_size", 32]
    found = json.loads(output_of(capsys, *words, "--json"))
    assert found["fits"] is False
    # on a CPU neither 4 bits nor more devices
    smaller, cheaper = found["to_fit"]
    assert smaller == "--data.batch_size 16 --trainer.accumulate_grad_batches 2"
    assert cheaper == "--gradient_checkpointing true"
    for way, size in found["to_fit"].items():
        then = json.loads(output_of(capsys, *words, *way.split(), "--json"))
        assert (then["fits"], then["bytes"]["all"]) == (True, pytest.approx(size, rel=0.01))
    # of a GPU of 24 GiB and the shapes of Qwen2-Audio, on a card that holds its weights in 4 bits alone
    recipe = RecipeParser().parse(["--config", "qwen2_audio", "--run", "r"])
    step = StepMemory({}, 13, 442, 15 * GIB, 0, 0, 41 * GIB, 1.0, GIB, 6 * GIB)
    cheap = replace(step, activations=3 * GIB)
    ways = dict(ways_to_fit(RecipeParser().recipe(recipe), step, cheap, cheap, 16 * GIB, 442))
    assert ways == {
        "--judge.quantization nf4 --gradient_checkpointing true": 9 * GIB + CUDA_CONTEXT,
        "--config strategy_fsdp2 --trainer.devices 2": round(11.5 * GIB) + CUDA_CONTEXT,
    }
    assert ways_to_fit(RecipeParser().recipe(recipe), step, cheap, cheap, 2 * GIB, 442) == []
    # 16 comparisons, of which a GPU holds 5: four batches of 4 and not three of 6
    recipe.data.preference_share, recipe.data.batch_size, recipe.data.batch_tokens = 1, 16, None
    step = StepMemory({}, 32, 442, GIB, 0, 0, 32 * GIB, 1.0, GIB, GIB)
    room = (12.9 * GIB + CUDA_CONTEXT) / ROOM
    smaller, _ = ways_to_fit(RecipeParser().recipe(recipe), step, step, step, room, 442)
    assert smaller == ("--data.batch_size 4 --trainer.accumulate_grad_batches 4", 9 * GIB + CUDA_CONTEXT)


OF_FSDP2 = ["--trainer.strategy", "empathy_judge.train.strategies.ShardedStrategy"]


WITHOUT = ["--gradient_checkpointing", "false"]


@pytest.mark.parametrize(
    ("command", "way"),
    [
        ([], "--config strategy_fsdp2 --trainer.devices 2"),
        pytest.param(
            [*WITHOUT, "--cache.what", "audio"],
            "--config strategy_fsdp2 --cache.what none --gradient_checkpointing true --trainer.devices 2",
            marks=pytest.mark.long,
        ),
        (
            ["--cache={what: audio}", "--trainer.strategy", "ddp", "--compile_layers=true"],
            "--config strategy_fsdp2 --cache.what none "
            f"{' '.join(OF_FSDP2)} --compile_layers false --trainer.devices 2",
        ),
        pytest.param(
            [*OF_FSDP2, *WITHOUT, "--cache.what", "none"],
            "--gradient_checkpointing true --trainer.devices 2",
            marks=pytest.mark.long,
        ),
        (["--folds", "3"], None),  # several runs, each in one process
    ],
)
def test_what_the_command_says_is_said_again_where_a_file_would_not_change_it(command, way, capsys):
    """An option counts before a file, wherever it stands. What is told is pasted behind the command."""
    words = ["--config", "nano", "--trainer.accelerator", "gpu", "--trainer.precision", "32-true", "--dry-run"]
    words += ["--clip-seconds", "8", "--gpu-gib", "0.8", "--data.path", "nowhere", *command]
    found = json.loads(output_of(capsys, "train", *words, "--json"))
    assert found["fits"] is False
    ways = [own for own in found["to_fit"] if "devices" in own]
    # the rest, about smaller batches, is as ever
    assert [own.partition(" --data.")[0] for own in ways] == ([] if way is None else [way])
    for own in ways:
        pasted = [*words, *own.split()]
        then = json.loads(output_of(capsys, "train", *pasted, "--json"))
        assert (then["fits"], then["bytes"]["all"]) == (True, pytest.approx(found["to_fit"][own], rel=0.01))
        check_strategy(RecipeParser().recipe(RecipeParser().parse(pasted)))
