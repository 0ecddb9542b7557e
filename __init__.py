"""A judge of vocal empathy that listens: trained on human ratings, measured against them, exported as a scorer."""

from __future__ import annotations

from .core.version import __version__

TYPE_CHECKING = False  # nothing else is imported here: at Ctrl-C the command has a line, once `cli` is reached

if TYPE_CHECKING:
    from .data_modules.importers.frames import dataset_from_frames, dataset_to_hugging_face
    from .data_modules.schema import PairDataset
    from .eval.compare import compare
    from .eval.evaluate import evaluate
    from .eval.leaderboard import leaderboard
    from .scoring.batch.scores import score_table
    from .scoring.reward import EmpathyReward
    from .scoring.scorer import Scorer
    from .train.run import train

__all__ = [
    "EmpathyReward", "PairDataset", "Scorer", "__version__", "compare", "dataset_from_frames",
    "dataset_to_hugging_face", "evaluate", "leaderboard", "score_table", "train",
]  # fmt: skip
_MODULES = {
    "EmpathyReward": "scoring.reward",
    "PairDataset": "data_modules.schema",
    "Scorer": "scoring.scorer",
    "compare": "eval.compare",
    "dataset_from_frames": "data_modules.importers.frames",
    "dataset_to_hugging_face": "data_modules.importers.frames",
    "evaluate": "eval.evaluate",
    "leaderboard": "eval.leaderboard",
    "score_table": "scoring.batch.scores",
}


def __getattr__(name: str) -> object:
    import importlib

    # Lazy (PEP 562): `empathy-judge --help` must not load torch
    if name in _MODULES:
        return getattr(importlib.import_module(f".{_MODULES[name]}", __name__), name)
    if name == "train":  # the package of this name, which can be called
        return importlib.import_module(".train", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
