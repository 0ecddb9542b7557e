"""From what a user calls a judge (a folder, a name, a `Scorer`, an object of their own) to a judge at work.

Raters of the dataset may be judges, too: their ratings are then nobody's yardstick.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ...data_modules.errors import UserError
from ...data_modules.schema import PairDataset
from ...scorer import Scorer
from ..probes import choose
from . import Judge
from .baselines import BASELINES, check_apart, open_baseline, probe
from .baselines.simple import PREFIX, HumanJudge, without_raters
from .prompted.factory import is_prompted, open_prompted
from .scores_file import ScoresFile
from .trained import TrainedJudge

if TYPE_CHECKING:
    from ...models.backbones.base import Quantization
    from .prompted.judges import PromptedJudge

AnyJudge = str | Path | Judge | Scorer
"""Folder of a judge or a run; a name (``openai:MODEL``, ``gemini:MODEL``, ``local:BACKBONE``, ``scores:FILE``,
``probe:JUDGE_OR_BACKBONE``, ``human:RATER`` or one of `baselines.BASELINES`); a `Scorer`; or any object that is a
`Judge`."""


class Loading(TypedDict, total=False):
    """How judges that are named are loaded; see `Scorer.from_pretrained` for the first five.

    Attributes:
        device: "cpu", "cuda", ...
        backbone: Where the backbone lies now.
        quantization: "nf4" or "none".
        cache: Folder for what the audio tower makes of clips.
        windows: Long clips are heard in windows.
        budget: Dollars that each prompted judge may spend.
        answers: SQLite file in which answers of prompted judges are kept; None = in the user's cache.
    """

    device: str | None
    backbone: str | None
    quantization: Quantization | None
    cache: str | Path | None
    windows: bool
    budget: float | None
    answers: str | Path | None


@dataclass(frozen=True)
class Opened:
    """Judges at work, and what they are measured on.

    Attributes:
        dataset: Without the ratings of raters who are judges.
        judges: In the order given.
        provenances: What is known of each.
    """

    dataset: PairDataset
    judges: list[Judge]
    provenances: list[Mapping[str, Any] | None]


def open_judges(
    judges: Sequence[AnyJudge],
    data: str | Path | PairDataset,
    split: str | None,
    seed: int = 0,
    probes: Sequence[str] | Literal["all"] | None = None,
    loading: Loading | None = None,
    dry_run: bool = False,
) -> Opened:
    """Loads judges for the pairs of a split.

    Where raters of the dataset are judges, their ratings are in it for none of the judges: all meet the same people.
    Standard error says so, and what prompted judges would send and what it would cost, before anything is sent.

    Args:
        judges: Of whatever kind.
        data: Folder of a pair dataset, its address, or a dataset.
        split: The pairs that they will be measured on; None = all.
        seed: Of baselines.
        probes: Listening checks that were asked for by name; None = none were.
        loading: How judges are loaded.
        dry_run: Also print a request of each prompted judge, and do not ask for a budget.

    Raises:
        UserError: If there is no such judge, it cannot be loaded, or it does not fit the data.
    """
    dataset = data if isinstance(data, PairDataset) else PairDataset.load(data)
    raters = [judge.removeprefix(PREFIX) for judge in judges if isinstance(judge, str) and judge.startswith(PREFIX)]
    people = {PREFIX + rater: HumanJudge(dataset, rater) for rater in raters}
    if people:
        dataset = without_raters(dataset, raters)
        print(f"judges are compared with the other raters: without {', '.join(people)}", file=sys.stderr)
    opener = _Opener(dataset, split, seed, probes, loading or {}, dry_run)
    opened = [people[judge] if isinstance(judge, str) and judge in people else opener.open(judge) for judge in judges]
    provenances = [getattr(judge, "record", None) for judge in opened]  # judges of users may have none
    if raters:
        provenances = [{**(said or {}), "raters_left_out": raters} for said in provenances]
    return Opened(dataset, opened, provenances)


@dataclass(frozen=True)
class _Opener:
    dataset: PairDataset
    split: str | None
    seed: int
    probes: Sequence[str] | Literal["all"] | None
    loading: Loading
    dry_run: bool

    def open(self, judge: AnyJudge) -> Judge:
        opened = TrainedJudge.of_scorer(judge) if isinstance(judge, Scorer) else judge
        if isinstance(opened, str | Path):
            opened = self._named(str(opened))
        if isinstance(opened, TrainedJudge):
            opened.check_scales(self.dataset.card)
            _warn_of_known_pairs(opened.description, self.dataset, self.split)
        if not callable(getattr(opened, "score", None)):
            raise UserError(
                f"judge of type {type(opened).__name__}; expected a folder, a name, a Scorer, or an object with the "
                "attributes of a Judge"
            )
        return opened

    def _named(self, spec: str) -> Judge:
        if spec in BASELINES:
            return open_baseline(spec, self.dataset, self._other_splits(), self.split, self.seed)
        named = self.loading
        if spec.startswith(probe.PREFIX):
            check_apart(spec, self._other_splits(), self.split)
            learned = self.dataset.subset(self._other_splits())
            return probe.open_probe(
                spec,
                learned,
                self.seed,
                device=named.get("device"),
                backbone=named.get("backbone"),
                quantization=named.get("quantization"),
                cache=named.get("cache"),
                windows=named.get("windows", True),
            )
        if spec.startswith("scores:"):
            return ScoresFile(Path(spec.removeprefix("scores:")))
        if is_prompted(spec):
            return self._prompted(spec)
        if not Path(spec).exists():
            raise UserError(
                f"judge {spec!r}: expected a judge folder, a run folder, openai:MODEL, gemini:MODEL, local:BACKBONE, "
                f"probe:JUDGE_OR_BACKBONE, scores:FILE, human:RATER, {', '.join(BASELINES)}"
            )
        cache = named.get("cache")
        return TrainedJudge.load(
            Path(spec),
            named.get("backbone"),
            named.get("device"),
            named.get("quantization"),
            None if cache is None else Path(cache),
            named.get("windows", True),
        )

    def _prompted(self, spec: str) -> PromptedJudge:
        from .prompted.cache import AnswerCache, default_path
        from .prompted.costs import check_budget, disclosure, example_request

        file, named = self.loading.get("answers"), self.probes is not None
        answers = AnswerCache(Path(file) if file else default_path())
        judge = open_prompted(
            spec,
            self.dataset,
            self._other_splits(),
            answers,
            self.loading.get("budget"),
            named,
            self.loading.get("device"),
            self.loading.get("quantization"),
        )
        plan = judge.session.plan(judge.tasks(self.dataset.subset(self.split).pairs))
        checks = () if self.probes is None else choose(self.probes)
        print(disclosure(judge, plan, 1 + len(checks)), file=sys.stderr)
        if self.dry_run:
            print(example_request(judge, plan))
        else:
            check_budget(judge, plan)
        return judge

    def _other_splits(self) -> list[str]:
        """What a judge may learn from: train, or where there are folds, all but the one that is measured."""
        names = sorted({pair.split for pair in self.dataset.pairs if pair.split is not None} - {self.split})
        return names if names and "train" not in names else ["train"]


def _warn_of_known_pairs(description: Mapping[str, Any], dataset: PairDataset, split: str | None) -> None:
    """Says on standard error where a judge is measured on pairs that it was trained or chosen on."""
    here = (dataset.card.content_hash, dataset.split_hash())
    warnings: dict[str, None] = {}
    for origin in description.get("member_provenance", [description["provenance"]]):
        if (origin["content_hash"], origin["split_hash"]) == here:
            for done, splits in (("trained", origin.get("train_splits")), ("chosen", origin.get("validation_splits"))):
                if splits and (split is None or split in splits):
                    name = "all" if split is None else split
                    warnings[f"warning: split {name}: this judge was {done} on {', '.join(splits)}"] = None
    for warning in warnings:
        print(warning, file=sys.stderr)
