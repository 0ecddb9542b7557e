"""What is published of a run: its best checkpoint, and the calibration from the scores of its validation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lightning as L

from ..audio.decode import AudioSource
from ..audio.prosody import ClipFacts, clip_facts
from ..core.errors import UserError
from ..core.processes import say
from ..data_modules.datamodule import PairDataModule
from ..data_modules.schema import Pair
from ..models import BEST, CHECKPOINTS
from ..models.description import start_in_words
from ..models.heads import Prediction
from ..models.judge import EmpathyJudge
from ..models.weight_files import hash_of, read_checkpoint
from ..scoring.judge_calibration import fit_calibration, store_calibration
from ..scoring.predictor import ScoredPair
from .features import all_gather_object, barrier, rank_and_world_size
from .module import JudgeModule
from .run_folder import is_global_zero


def keep_as_best(trainer: L.Trainer, module: JudgeModule, run: Path, scores: Mapping[str, Prediction]) -> None:
    """Keep a refit judge as the best checkpoint, with the scores of other judges in place of those of a validation.

    Args:
        trainer: Has trained it.
        module: The judge.
        run: Folder.
        scores: Pair -> prediction of a judge that was not trained on it.

    Raises:
        UserError: If there are none.
    """
    if not scores:
        raise UserError("refit: no pair can be left out; expected ratings of each dimension in several groups")
    module.measure(scores)
    trainer.save_checkpoint(run / CHECKPOINTS / BEST)


def publish(run: Path, judge: EmpathyJudge, data: PairDataModule) -> None:
    """Check the best checkpoint of a run, say where it began, and calibrate it.

    Raises:
        UserError: If there is none.
    """
    best = check_best(run)
    if is_global_zero():
        for line in start_in_words(best["description"]["provenance"]):
            say(line)
    calibrate(run, best, judge, data)


def check_best(run: Path) -> dict[str, Any]:
    """Load the best checkpoint of a run.

    Raises:
        UserError: If there is none, or its agreement is undefined.
    """
    path = run / CHECKPOINTS / BEST
    if not path.is_file():
        raise UserError(
            f"{run}: no best checkpoint: training ended before the first validation; expected more trainer.max_steps, "
            "or a trainer.val_check_interval that is reached"
        )
    # Lightning keeps a first checkpoint although the value it watches is NaN
    checkpoint = read_checkpoint(path)
    # The file may be deleted below: all processes must have read it before
    barrier()
    if math.isnan(checkpoint["agreement"]):
        path.unlink(missing_ok=True)
        raise UserError(f"{run}: no best checkpoint: agreement on the validation split was undefined after every epoch")
    return checkpoint


def calibrate(run: Path, checkpoint: dict[str, Any], judge: EmpathyJudge, data: PairDataModule) -> None:
    """Calibrate the best checkpoint of a run from the scores of its validation, which are in it.

    Where that is not possible, print why: the run is usable without. Each process measures some of the clips, so that
    all end at the same time: a scheduler that waits for none is not kept waiting by the first.
    """
    facts = measured(data.validation.pairs, judge)
    if not is_global_zero():
        return
    try:
        if (values := checkpoint["validations"].get(checkpoint["global_step"])) is None:
            raise UserError(f"{run}: its best checkpoint has no scores; `empathy-judge calibrate` scores anew")
        # `judge` has the weights of the last step, and the calibration belongs to those of the checkpoint
        trained = {key: value for key, value in checkpoint["state_dict"].items() if key.startswith("judge.")}
        predictions = Prediction.from_stored(*values.unbind(-1)).each()
        judged = {
            pair.pair_id: ScoredPair(prediction, tuple(facts[source] for source in pair.clips))
            for pair, prediction in zip(data.validation.pairs, predictions, strict=True)
        }
        weights = hash_of([{key.removeprefix("judge."): value for key, value in trained.items()}])
        calibration = fit_calibration(weights, judge.dimensions, data.dataset, data.validation_splits, judged)
    except UserError as error:
        say(f"no calibration: {error}")
    else:
        store_calibration(calibration, run)


def measured(pairs: Sequence[Pair], judge: EmpathyJudge) -> dict[AudioSource, ClipFacts]:
    """Facts about the clips of scored pairs. A collective operation of all processes."""
    clips = list(dict.fromkeys(source for pair in pairs for source in pair.clips))
    rank, ranks = rank_and_world_size()
    share = clips[rank::ranks]
    with ThreadPoolExecutor() as pool:
        results = pool.map(lambda clip: clip_facts(judge.decode(clip), judge.backbone.sampling_rate), share)
        share_facts = dict(zip(share, results, strict=True))
    return {clip: facts for part in all_gather_object(share_facts) for clip, facts in part.items()}
