"""The eGeMAPS functionals of openSMILE, as another list of measures."""

from __future__ import annotations

import warnings

import numpy as np

from ....data_modules.errors import UserError
from ....data_modules.prosody import RATE
from .clip_features import Measures


def egemaps() -> Measures:
    """The 88 functionals of eGeMAPSv02 (Eyben et al., 2016, doi 10.1109/TAFFC.2015.2457417).

    All are NaN where a clip is too short for openSMILE.

    Raises:
        UserError: If opensmile is not installed.
    """
    try:
        import opensmile
    except ImportError:
        raise UserError(
            "acoustic:egemaps: opensmile is not installed; accepted: pip install 'empathy-judge[acoustic]'"
        ) from None
    smile = opensmile.Smile(opensmile.FeatureSet.eGeMAPSv02, opensmile.FeatureLevel.Functionals)

    def measure(samples: np.ndarray) -> np.ndarray:
        return smile.process_signal(samples, RATE).to_numpy(np.float64).ravel()

    # it warns of short clips; what they lack is NaN, and the judge says how it fills that
    warnings.filterwarnings("ignore", message="Segment too short", category=UserWarning)
    return Measures(tuple(smile.feature_names), measure)
