"""What is published of a run, and when nothing is."""

from __future__ import annotations

import json

import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.train.run import train

from .conftest import BEST_FILE, small_dataset, under_torchrun


def test_a_judge_that_scores_all_alike_has_no_best_checkpoint(train_arguments, dataset_folder, tmp_path, capsys):
    """All pairs of the validation split have the same clip, and each a rating of its own."""
    data, run = small_dataset(tmp_path / "data", dataset_folder, 4, same_clip=True), tmp_path / "run"
    with pytest.raises(UserError, match="no best checkpoint: agreement on the validation split"):
        train(train_arguments(run, data__path=data, trainer__max_epochs=1))
    assert not (run / BEST_FILE).exists()
    assert "no Spearman for empathy: " in capsys.readouterr().err


# The second comes later to where a best checkpoint that is none is deleted
UNDEFINED = """
import json, os, sys, time
from pathlib import Path
from empathy_judge.train import publishing, run
from empathy_judge.train.validation import Agreement

out, rank, plain = Path(sys.argv[1]), int(os.environ["LOCAL_RANK"]), publishing.check_best
Agreement.value = float("nan")
publishing.check_best = lambda folder: time.sleep(rank) or plain(folder)
try:
    run.train(json.loads((out / "words.json").read_text()))
except Exception as error:
    (out / f"{rank}.json").write_text(json.dumps(str(error)))
"""


@pytest.mark.long
def test_all_processes_say_why_there_is_no_best_checkpoint(train_arguments, tmp_path):
    options = {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__logger": "false", "trainer__max_epochs": 1}
    (tmp_path / "words.json").write_text(json.dumps(train_arguments(tmp_path / "run", **options)))
    done = under_torchrun(tmp_path, UNDEFINED, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        assert "was undefined after every epoch" in json.loads((tmp_path / f"{rank}.json").read_text())
    assert not (tmp_path / "run" / BEST_FILE).exists()
