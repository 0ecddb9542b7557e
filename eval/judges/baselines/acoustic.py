"""The audio baseline: rates delivery from a list of acoustic measures (no words, no learned encoder)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline

from ....audio.decode import AudioSource, Clip, decode
from ....audio.functionals import FUNCTIONALS, functionals
from ....audio.prosody import RATE
from ....core.errors import AudioError, UserError
from ....core.processes import map_threads
from ....data_modules.schema import Pair, PairDataset
from .. import OK
from .regression import Learn, RegressionJudge, Standardised, searched

ITERATIONS = 300
"""Trees of gradient boosting for each dimension."""


@dataclass(frozen=True)
class Measures:
    """A list of measures of a clip."""

    names: tuple[str, ...]  # of the k measures
    # from mono samples at `RATE` Hz to shape (k,), float64, NaN = cannot be measured. Called in several threads.
    measure: Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class ClipFeatures:
    """Features of pairs; every distinct clip is decoded and measured once.

    Measures of clips in files are cached. Those of clips in memory are not, because listening checks make new clips.
    """

    measures: Measures  # what is measured
    _kept: dict[AudioSource, np.ndarray | AudioError] = field(default_factory=dict, repr=False)

    def of(self, pairs: Sequence[Pair]) -> tuple[np.ndarray, list[str]]:
        """The features of n pairs.

        Returns:
            Shape (n, 3 k), float64: the measures of the last turn of the context (the one that is answered), those of
            the response, and the response minus the context. NaN where a measure is undefined; without a context its
            measures and the differences are NaN. Then per pair ``ok``, or why a clip cannot be used; its row is NaN.
        """
        # The last turn is what the response answers; earlier ones have been answered already
        answered = [turn.audio for pair in pairs for turn in pair.context[-1:]]
        measured = self._of_clips([*answered, *(pair.response for pair in pairs)])
        features = np.full((len(pairs), 3 * len(self.measures.names)), np.nan)
        statuses = [OK] * len(pairs)
        absent = np.full(len(self.measures.names), np.nan)
        for row, pair in enumerate(pairs):
            response = measured[pair.response]
            context = measured[pair.context[-1].audio] if pair.context else absent
            if isinstance(context, AudioError) or isinstance(response, AudioError):
                statuses[row] = str(context if isinstance(context, AudioError) else response)
            else:
                features[row] = np.concatenate([context, response, response - context])
        return features, statuses

    def _of_clips(self, sources: Sequence[AudioSource]) -> dict[AudioSource, np.ndarray | AudioError]:
        """The measures of each clip, shape (k,), or why it cannot be used."""
        new = [source for source in dict.fromkeys(sources) if source not in self._kept]
        measured = dict(zip(new, map_threads(self._of_clip, new, "measuring clips", len(new)), strict=True))
        # Clips that a check has made would each be kept, although none comes twice
        self._kept.update((source, row) for source, row in measured.items() if not isinstance(source, Clip | bytes))
        return measured | {source: self._kept[source] for source in sources if source in self._kept}

    def _of_clip(self, source: AudioSource) -> np.ndarray | AudioError:
        try:
            return self.measures.measure(decode(source, RATE))
        except AudioError as error:
            return error


def egemaps() -> Measures:
    """The 88 functionals of eGeMAPSv02 (Eyben et al., 2016, doi 10.1109/TAFFC.2015.2457417).

    As in `functionals.delivery`, a clip is first scaled to a peak of 1. The equivalent sound level is then brought back
    to that of the clip as it came; nothing else depends on a gain. Without that, half the level moves 21 of the
    measures of a clip of emodb by more than 1 %, a slope of voiced speech by 39 % (medians of 200 clips), and a judge
    learns the microphone. Measures of loudness are those of the scaled clip. All are NaN where a clip is too short for
    openSMILE.

    Raises:
        UserError: If opensmile is not installed.
    """
    try:
        import opensmile
    except ImportError:
        raise UserError(
            "acoustic:egemaps: opensmile is not installed; run pip install 'empathy-judge[acoustic]'"
        ) from None
    smile = opensmile.Smile(opensmile.FeatureSet.eGeMAPSv02, opensmile.FeatureLevel.Functionals)

    level = smile.feature_names.index("equivalentSoundLevel_dBp")

    def measure(samples: np.ndarray) -> np.ndarray:
        peak = float(np.abs(samples).max()) or 1.0  # silence stays what it is
        measures = smile.process_signal(samples / np.float32(peak), RATE).to_numpy(np.float64).ravel().copy()
        measures[level] += 20 * np.log10(peak)
        return measures

    # openSMILE warns about short clips; their missing measures are NaN, and the judge states how it imputes them
    warnings.filterwarnings("ignore", message="Segment too short", category=UserWarning)
    return Measures(tuple(smile.feature_names), measure)


OURS = Measures(tuple(FUNCTIONALS), functionals)


class AcousticJudge(RegressionJudge):
    """Regression on measures of the last context turn, of the response, and of their difference.

    Linear ridge regression can only weigh them; with a Gaussian kernel it can also learn which delivery of the response
    suits which context.
    """

    def __init__(self, dataset: PairDataset, measures: Measures = OURS, name: str = "acoustic", seed: int = 0) -> None:
        """Fits it to a dataset (its training split); see `RegressionJudge`."""
        learns = [partial(Standardised.learn, seed=seed), boosting(seed)]
        super().__init__(name, dataset, ClipFeatures(measures).of, learns, measures=list(measures.names))
        sizes = {dimension: (fitted["pairs"], fitted["groups"]) for dimension, fitted in self.record["fitted"].items()}
        # Part of signatures: what was fitted to which data, without errors, whose last digits depend on the CPU
        self.identity: Sequence[Any] = [measures.names, sizes]


def boosting(seed: int) -> Learn:
    """Gradient boosting of trees, for rules such as "as loud as the context", which a kernel learns slowly."""
    trees = HistGradientBoostingRegressor(
        learning_rate=0.05,
        max_iter=ITERATIONS,
        l2_regularization=1.0,
        early_stopping=False,  # pyright: ignore[reportArgumentType]
        random_state=seed,
    )
    # The indicator, since that a clip has no voice says something, too
    model = make_pipeline(SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True), trees)
    return searched("boosting", model, {"histgradientboostingregressor__max_leaf_nodes": (4, 31)}, seed)
