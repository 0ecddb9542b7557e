"""Options that several commands have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..data_modules.parallel import say
from . import DONE
from .values import Device, Dollars, Resamples, Seed, SplitName

if TYPE_CHECKING:
    from ..eval.frame import Frame
    from ..eval.judges.opening import Loading as LoadingArguments
    from ..eval.judges.trained import Placing
    from ..scorer import Scorer


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


@dataclass(frozen=True, kw_only=True)
class Split:
    """Which pairs of a dataset.

    Attributes:
        split: which pairs; all = every pair
    """

    split: SplitName = "test"


@dataclass(frozen=True, kw_only=True)
class Draws:
    """What is drawn at random.

    Attributes:
        resamples: bootstrap resamples
        seed: of all that is drawn
    """

    resamples: Resamples = 1000
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Intervals(Draws):
    """Intervals of agreement.

    Attributes:
        interval: kind of bootstrap intervals of what is no correlation; bca: bias-corrected and accelerated;
            correlations have t intervals; of pairs, groups, systems and calibration all are percentile ones
    """

    interval: Literal["percentile", "bca"] = "percentile"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where and how a backbone is loaded.

    Attributes:
        device: cpu, cuda, ...; auto = all GPUs, then main memory (default: a GPU if there is one)
        backbone: where the backbone lies now, if not where the judge found it
        quantization: nf4 = language model in 4 bits, for small GPUs; scores change a little (default: as in training)
    """

    device: Device | None = None
    backbone: str | None = None
    quantization: Literal["none", "nf4"] | None = None


@dataclass(frozen=True, kw_only=True)
class Hearing(Place):
    """How a judge hears clips.

    Attributes:
        windows: refuse clips that are longer than the judge hears at once (default: they are heard in windows)
    """

    windows: bool = True

    def placing(self) -> Placing:
        """These options, as a judge is loaded with them."""
        how: Placing = {"device": self.device, "backbone": self.backbone, "quantization": self.quantization}
        return {**how, "windows": self.windows}

    def open_scorer(self, judge: str, batch_size: int | None = None) -> Scorer:
        """Load a judge. A wrong name of it is reported before torch is loaded."""
        from ..models.hub import require_judge

        require_judge(Path(judge), self.backbone)
        from ..scorer import Scorer

        return Scorer.from_pretrained(judge, batch_size=batch_size, **self.placing())


@dataclass(frozen=True, kw_only=True)
class Loading(Hearing):
    """How a judge is loaded.

    Attributes:
        cache (FOLDER): keep what the audio tower makes of clips here, for other commands and for training with
            --cache.folder (at most 100 GB; default: not kept)
    """

    cache: str | None = None

    def placing(self) -> Placing:
        """These options, as a judge is loaded with them."""
        return {**super().placing(), "cache": self.cache}


@dataclass(frozen=True, kw_only=True)
class Asking(Loading):
    """How any judge is opened, prompted ones included.

    Attributes:
        budget (DOLLARS): spend at most this much on each of them
        answers (FILE): SQLite file in which answers are kept, so that nothing is asked twice (default: in the user's
            cache)
        dry_run: say what would be sent, where to and what it costs, print one request, and send nothing
    """

    TITLE: ClassVar[str] = "prompted LLM judges (openai:..., gemini:...)"

    budget: Dollars | None = None
    answers: str | None = None
    dry_run: bool = False

    def loading(self) -> LoadingArguments:
        """These options, as a judge is opened with them."""
        return {**self.placing(), "budget": self.budget, "answers": self.answers}


@dataclass(frozen=True, kw_only=True)
class Columns:
    """What of a table of scores counts.

    Attributes:
        column (OURS=THEIRS): column names, where they differ from item, annotator, dimension, score, dataset, group,
            system
        annotators (NAME): only these count (default: all)
        exclude (NAME): these do not count, such as a median of the others
    """

    TITLE: ClassVar[str] = "table of scores"

    column: Sequence[str] = field(default=(), metadata={"action": "extend"})
    annotators: Sequence[str] = ()
    exclude: Sequence[str] = ()

    def read_table(self, path: str) -> tuple[Frame, Frame]:
        """A table, whole and without what does not count."""
        from ..data_modules.tables import parse_mapping
        from ..eval.frame import read_frame

        table = read_frame(path, parse_mapping(self.column, "--column"))
        return table, table.select(self.annotators, self.exclude)
