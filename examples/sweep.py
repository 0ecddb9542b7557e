"""Search the settings of a recipe with Optuna: learning rate and rank of LoRA, by agreement on the validation split.

    python examples/sweep.py demo/data --config nano --trials 12 --out runs/sweep

A trial trains the recipe with settings of its own. Its score is Spearman with the mean ratings of the validation split,
averaged over dimensions. Trials are kept in `OUT/trials.db`: the same command adds more, and several processes, say one
on each GPU, may share them. The best of many trials looks better than it is: measure it on a split that chose nothing.
Needs `pip install 'optuna>=4'`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
from empathy_judge import train
from empathy_judge.core.errors import UserError


def settings(trial: optuna.Trial) -> dict[str, Any]:
    """What is searched, laid over the recipe: change this for other settings."""
    return {
        "optimizer": {"learning_rate": trial.suggest_float("learning_rate", 2e-4, 1e-2, log=True)},
        "judge": {"lora": {"rank": trial.suggest_categorical("rank", [4, 8, 16, 32])}},
    }


def search(recipe: str, data: str, trials: int, out: Path) -> optuna.Study:
    """Train so many trials, each into a run folder of its own. Trials that cannot be trained count as failed."""
    out.mkdir(parents=True, exist_ok=True)
    storage = f"sqlite:///{out / 'trials.db'}"
    study = optuna.create_study(storage=storage, study_name="sweep", direction="maximize", load_if_exists=True)

    def score(trial: optuna.Trial) -> float:
        run = train({"config": recipe, **settings(trial)}, data, out / f"trial{trial.number}")
        assert run is not None  # only a dry run has none
        values = [value for value in run.agreement.values() if value is not None]
        if len(values) < len(run.agreement):
            raise optuna.TrialPruned("Spearman is undefined on a dimension")
        return fmean(values)

    study.optimize(score, trials, catch=UserError, gc_after_trial=True)
    return study


def main() -> None:
    """Search, and print the best trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="folder of a pair dataset, or its address")
    parser.add_argument("--config", default="nano", help="name of a recipe, or a YAML file")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("runs/sweep"))
    options = parser.parse_args()
    study = search(options.config, options.data, options.trials, options.out)
    if not study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.COMPLETE]):
        sys.exit("error: no trial has a score")
    best = study.best_trial
    print(f"best of {len(study.trials)} trials: Spearman {best.value:.3f} with the validation ratings, {best.params}")
    print(f"run: {options.out / f'trial{best.number}'}")


if __name__ == "__main__":
    main()
