"""The baseline that hears how clean a recording is: DNSMOS of the response."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ....data_modules.errors import AudioError, UserError
from ....data_modules.prosody import RATE
from ....data_modules.schema import Dimension, Pair
from .. import OK, score_table
from .acoustic import ClipFeatures, Measures

_WINDOW = int(9.01 * RATE)
_OVERALL = np.poly1d([-0.06766283, 1.11546468, 0.04602535])  # from what the network says to a MOS, as published
_LOWEST, _HIGHEST = 1.0, 5.0  # of a MOS


class QualityJudge:
    """Implements `Judge`: the overall MOS of DNSMOS P.835 (Reddy et al., 2022, doi 10.1109/ICASSP43922.2022.9746108)
    of the response, whatever the context.

    The MOS is mapped linearly onto the scale, end to end and good to good. It was never meant for what was rated here:
    only the order of the scores means something. A judge of delivery that agrees with it hears the recording.

    Args:
        dimensions: What it scores; all alike.

    Raises:
        UserError: If its packages are not installed.
    """

    name = "quality"
    only_given: str | None = None

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        try:
            import onnxruntime

            weights = importlib.resources.files("speechmos") / "dnsmos_models" / "sig_bak_ovr.onnx"
        except ImportError:
            raise UserError(
                "quality: onnxruntime and speechmos are not both installed; run pip install 'empathy-judge[quality]'"
            ) from None
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1  # clips are measured in threads
        self._network = onnxruntime.InferenceSession(weights.read_bytes(), settings, providers=["CPUExecutionProvider"])
        self.dimensions = tuple(dimension.name for dimension in dimensions)
        self.record: Mapping[str, Any] = {"model": "DNSMOS P.835, sig_bak_ovr.onnx of speechmos", "rate": RATE}
        self._scales = tuple(dimensions)
        self._clips = ClipFeatures(Measures(("overall MOS",), lambda samples: np.array([self.mos(samples)])))

    def score(self, pairs: Sequence[Pair]) -> pd.DataFrame:
        """See `Judge.score`. A response that cannot be used has no score and says why in `status`."""
        found = self._clips.of_clips([pair.response for pair in pairs])
        scores = np.full((len(pairs), len(self._scales)), np.nan)
        statuses = [OK] * len(pairs)
        for row, pair in enumerate(pairs):
            mos = found[pair.response]
            if isinstance(mos, AudioError):
                statuses[row] = str(mos)
            else:
                scores[row] = [_onto(scale, mos.item()) for scale in self._scales]
        return score_table(pairs, self.dimensions, scores, statuses=statuses)

    def mos(self, samples: np.ndarray) -> float:
        """Overall MOS, about 1 to 5, as the published program has it.

        Short clips are repeated; of long ones windows of 9.01 s, one second apart, are averaged.

        Args:
            samples: Mono `(samples,)` at `RATE` Hz; beyond full scale they are cut off.
        """
        clip = np.clip(samples, -1, 1).astype(np.float32)
        while len(clip) < _WINDOW:
            clip = np.concatenate([clip, clip])
        starts = [RATE * number for number in range(int(len(clip) // RATE - _WINDOW / RATE) + 1)]
        raw = [np.asarray(self._network.run(None, {"input_1": clip[None, at : at + _WINDOW]})) for at in starts]
        return float(np.mean(_OVERALL(np.stack(raw)[:, 0, 0, 2])))  # of signal, background and overall the last


def _onto(scale: Dimension, mos: float) -> float:
    fraction = (np.clip(mos, _LOWEST, _HIGHEST) - _LOWEST) / (_HIGHEST - _LOWEST)
    if not scale.higher_is_better:
        fraction = 1 - fraction
    return scale.minimum + fraction * (scale.maximum - scale.minimum)
