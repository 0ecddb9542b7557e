"""Numbers of a recipe are in their ranges, or refused in one line."""

from __future__ import annotations

import re

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.train.ranges import RANGES

from ..conftest import failed


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--trainer.devices=1000", "trainer.devices 1000; expected -1 to "),
        (
            "--trainer.val_check_interval=00:00:10:00",
            "trainer.val_check_interval 00:00:10:00; expected batches, or a share of an epoch",
        ),
        ("--judge.lora.rank=0", "judge.lora.rank 0; expected 1 to 4,096"),
        ("--judge.lora.dropout=1", "judge.lora.dropout 1; expected at least 0 and less than 1"),
        ("--data.num_workers=1000000000", "data.num_workers 1000000000; expected 0 to "),
        ("--optimizer.learning_rate=nan", "optimizer.learning_rate nan; expected a finite number, 0 to 1000"),
        ("--optimizer.learning_rate=.nan", "optimizer.learning_rate nan; expected a finite number, 0 to 1000"),
        ("--optimizer.learning_rate=-1", "optimizer.learning_rate -1.0; expected 0 to 1000"),
        ("--cache.gigabytes=nan", "cache.gigabytes nan; expected a finite number above 0, at most 1000000000"),
        ("--cache.gigabytes=-inf", "cache.gigabytes -inf; expected a finite number above 0, at most 1000000000"),
        ("--cache.gigabytes=0", "cache.gigabytes 0.0; expected a number above 0, at most 1000000000"),
        ("--data.preference_share=1.2", "data.preference_share 1.2; expected 0 to 1"),
        ("--objective.losses.mse=.inf", "objective.losses.mse inf; expected a finite number, 0 to 1000000"),
        ("--objective.settings.temperature=0", "objective.settings.temperature 0.0; expected a number above 0, at"),
        ("--judge.lora.alpha=nan", "judge.lora.alpha nan; expected a finite number"),
        ("--judge.depth=inf", "judge.depth inf; expected a finite number"),
        ("--data.augmentation.noise_snr=[nan, 1]", "data.augmentation.noise_snr nan; expected a finite number"),
        ("--patience=0", "patience 0; expected 1 to 1000000000"),
    ],
)
def test_a_number_out_of_its_range_is_refused_in_one_line(word, message, capsys):
    assert message in failed(capsys, "train", "--config", "nano", "--run", "r", word)


def test_every_number_of_a_recipe_has_a_range(parser):
    """Those of LoRA, of what the head reads, of augmentation, the depth and the window check themselves."""
    elsewhere = (
        r"judge\.lora\.|judge\.head_input\.|data\.augmentation\.|judge\.depth|judge\.window_seconds|trainer\.logger"
    )
    others = {"resume", "expected_trainable", "trainer.fast_dev_run", "trainer.precision", "trainer.max_time"}
    numbers = {
        action.dest
        for action in parser.parser._actions
        if re.search(r"\b(int|float)\b", str(getattr(action, "_typehint", action.type)))
        and not re.match(elsewhere, action.dest)
    }
    assert numbers - others == set(RANGES)


@pytest.mark.parametrize("precision", ["16-true", "bf16-true", "64", "64-true", "transformer-engine"])
def test_a_precision_with_which_a_run_would_fail_is_refused_first(precision, parser):
    words = ["--config", "nano", "--data.path", "d", "--trainer.precision"]
    with pytest.raises(UserError, match=rf"trainer\.precision {precision}; expected 32-true, bf16-mixed or 16-mixed;"):
        parser.parse([*words, precision])
    assert [parser.parse([*words, good]).trainer.precision for good in ("32", "16-mixed")] == [32, "16-mixed"]


ON_CPU = ["--trainer.accelerator", "cpu"]


@pytest.mark.parametrize(
    ("dtype", "precision", "more", "message"),
    [
        ("float16", "bf16-mixed", [], "with trainer.precision bf16-mixed; expected judge.dtype bfloat16 or float32"),
        ("float16", "16-mixed", [], "16-mixed, which is bf16-mixed on a CPU; expected judge.dtype bfloat16 or float32"),
        ("bfloat16", "16-mixed", ["--dry-run"], "trainer.precision 16-mixed; expected judge.dtype float16 or float32"),
        ("float16", "bf16", ["--dry-run"], "with trainer.precision bf16; expected judge.dtype bfloat16 or float32"),
        ("float16", "16-mixed", [*ON_CPU, "--dry-run"], "16-mixed, which is bf16-mixed on a CPU; expected judge.dtype"),
        ("bfloat16", "16-mixed", [*ON_CPU, "--dry-run"], None),
        ("float16", "16-mixed", ["--trainer.accelerator", "gpu"], None),  # that there is none is told later
        *(("bfloat16", precision, [], None) for precision in ("bf16-mixed", "16-mixed", "32")),
        *(("float32", precision, [], None) for precision in ("bf16-mixed", "16-mixed")),
        ("float16", "16", ["--dry-run"], None),
        ("float16", "32-true", [], None),
    ],
)
def test_states_in_the_other_16_bits_than_autocast_are_refused(dtype, precision, more, message, parser):
    """Their first concatenation would end the run, on GPUs as on the CPU; a dry run may be for a GPU."""
    words = ["--config", "nano", "--data.path", "d", "--trainer.accelerator", "auto"]
    words += ["--judge.dtype", dtype, "--trainer.precision", precision, *more]
    if message is None:
        assert parser.parse(words).judge.dtype == dtype
    else:
        with pytest.raises(UserError, match=rf"^judge\.dtype {dtype} .*{re.escape(message)}"):
            parser.parse(words)


def test_a_revision_of_a_folder_is_refused(parser, tmp_path):
    """The shipped backbone was trained whatever revision was asked for."""
    for backbone in ("nano", str(tmp_path)):
        words = ["--config", "nano", "--data.path", "d", "--judge.backbone", backbone, "--judge.revision", "v2"]
        with pytest.raises(UserError, match=r"judge.revision 'v2': backbone .* is a folder; expected null"):
            parser.parse(words)
    parser.parse(["--config", "nano", "--data.path", "d", "--judge.backbone", "org/name", "--judge.revision", "v2"])


def test_a_dry_run_is_about_another_machine(parser):
    words = ["--config", "nano", "--data.path", "d", "--trainer.devices=1000"]
    assert parser.parse([*words, "--dry-run"]).trainer.devices == "1000"
    with pytest.raises(UserError, match=r"trainer\.devices 1000; expected -1 to "):
        parser.parse(words)
