"""What several commands share: data, what they print, and how they open a judge."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from ..core.processes import say
from ..eval.measurement import Asking, Loading, chosen
from . import DONE

if TYPE_CHECKING:
    from ..eval.frame import Frame
    from ..scoring.scorer import Scorer


@dataclass(frozen=True, kw_only=True)
class Printing:
    """What a command prints.

    Attributes:
        json: print JSON
    """

    json: bool = False

    def tell(self, found: Any, views: Callable[[Any], Iterable[Any]]) -> int:
        """Print what was found, as JSON or as its views: tables and text. A report is typed, the rest is plain."""
        if self.json:
            plain = found if isinstance(found, dict | list) else found.as_json()
            # NaN is no JSON: it would be an error in the program that reads it, far from here
            print(json.dumps(plain, indent=2, allow_nan=False))
            return DONE
        for view in views(found):
            say(view, stderr=False)
        return DONE


@dataclass(frozen=True, kw_only=True)
class Data:
    """What judges are measured on.

    Attributes:
        data: folder of a pair dataset, or its address (hf://datasets/...)
    """

    data: str


class JudgeNames:
    """The help of an argument that names any judge, or several of them.

    Attributes:
        judge, judges (JUDGE): judge folder, run folder, openai:MODEL, gemini:MODEL, qwen:MODEL (with settings, as in
            openai:gpt-audio-1.5,samples=5), gemini-decision:MODEL, systemone:MODEL,base_url=..., hume: (decision
            models), scores:FILE, human:RATER (one rater against the others), probe:JUDGE_OR_BACKBONE (a regression on
            what the frozen backbone hears), or a baseline: acoustic, acoustic:egemaps, text, random, constant
    """


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Saying what would be sent.

    Attributes:
        dry_run: say what would be sent, where to and what it costs, print one request, and send nothing
    """

    TITLE: ClassVar[str] = Asking.TITLE

    dry_run: bool = False


def open_scorer(judge: str, how: Loading, batch_size: int | None = None) -> Scorer:
    """Load a judge. A wrong name of it is reported before torch is loaded."""
    from ..models.hub import require_judge

    # Before the import below, which takes seconds
    require_judge(Path(judge), how.backbone)
    from ..scoring.scorer import Scorer

    return Scorer.from_pretrained(judge, batch_size=batch_size, **chosen(how, Loading))


@dataclass(frozen=True, kw_only=True)
class Columns:
    """How a table of scores is read, and what of it counts.

    Attributes:
        column (OURS=THEIRS): column names, where they differ from item, annotator, dimension, score, dataset, group,
            system
        scores (COLUMN): columns that hold scores, where the header leaves it open; 'R*' = all that begin with R
        choice (WORD=SCORE): what a word of the scale stands for; NA = no score
        annotators (NAME): only these count (default: all)
        exclude (NAME): these do not count, such as a median of the others
    """

    TITLE: ClassVar[str] = "table of scores"

    column: Sequence[str] = field(default=(), metadata={"action": "extend"})
    scores: Sequence[str] = ()
    choice: Sequence[str] = field(default=(), metadata={"action": "extend"})
    annotators: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def read_table(self, *paths: str) -> tuple[Frame, Frame]:
        """A table in one file or several, whole and without what does not count."""
        from ..data_modules.rating_words import parse_choices
        from ..data_modules.tables import parse_mapping
        from ..eval.frame import read_frame

        columns = parse_mapping(self.column, "--column")
        table = read_frame(paths, columns, self.scores, parse_choices(self.choice))
        return table, table.select(self.annotators, self.exclude)
