"""Which seconds of a pair cost the score: attribution over time, for the context and for the response.

Occlusion edits a window of one clip in several ways and scores the pair again: exact, and one forward pass for each
edited window (Zeiler and Fergus, 2014). Everything is in rating points: what a stretch contributes; below 0, what it
costs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import convolve1d

from ..audio import prosody
from ..audio.decode import Clip, decode
from ..core.errors import AudioError, UserError, shown
from ..data_modules.schema import Dimension, Pair, Turn, check_situation
from ..scoring.audio_inputs import Audio, clip
from ..scoring.predictor import Predictor
from ..scoring.scorer import Scorer
from .checks import voice

WINDOWS = (0.25, 1.0)
"""Seconds that a stretch may last."""
STRETCHES = 3
"""Largest number of worst stretches, and of best ones, that are named."""
_STEPS_APART = 4  # windows that begin within the length of one
# Weights of a window and its neighbours
_SMOOTHING = (0.25, 0.5, 0.25)
# Seconds of the edges of an edited window: a cut would be a click, which judges hear
_FADE = 0.01
# Seconds on both sides of a place, and percent of the frames there, that are its noise floor
_NEAR, _QUIET = 0.5, 15
_PERMUTATIONS = 1000
_LEVEL = 95  # percent of permutations that stay inside the null band
# Of the scale: what moves the score less is not named, however regular it is. Seconds of an even tone that carry the
# score whatever is said add up to half a point of 1 to 5; hardly any of them cost as much.
_LEAST_COST, _LEAST_GAIN = 0.05, 0.15
NOISE = "noise floor"


@dataclass(frozen=True)
class Stretch:
    """Seconds of a clip that stand out, and what they contribute to the score in points; `reason` says it in words."""

    start: float
    end: float
    contribution: float
    reason: str


@dataclass(frozen=True)
class Curve:
    """What the stretches of one clip contribute to one dimension."""

    clip: str  # context or response
    dimension: str  # name of the dimension
    seconds: float  # duration of the clip
    starts: list[float]  # first second of each window, rising
    ends: list[float]  # last second of each window
    # of each window, in points; below 0 = it costs. The mean over the edits, smoothed over neighbouring windows.
    contributions: list[float]
    edits: dict[str, list[float]]  # change of the score by each way to edit each window
    low: float  # lower edge of the null band: of 95 % of permutations no window contributes less
    high: float  # its upper edge
    # stretches beyond the band that make the response worse: below it, where lower is better above it. The worst first;
    # they do not overlap. Often there is none.
    worst: list[Stretch]
    best: list[Stretch]  # those that make it better, the best first

    @property
    def lowest(self) -> str:
        """The seconds that contribute least, whether they stand out or not."""
        number = int(np.argmin(self.contributions))
        return f"{self.starts[number]:.1f} to {self.ends[number]:.1f} s"


@dataclass(frozen=True)
class Explanation:
    """Which seconds of a pair count."""

    scores: dict[str, float]  # points by dimension of the pair as it is heard here, at 16 kHz
    curves: list[Curve]  # one for each clip and dimension


def explain(
    scorer: Scorer,
    context: Audio | None,
    response: Audio,
    *,
    situation: str | None = None,
    window: float = 0.4,
    seed: int = 0,
) -> Explanation:
    """Which seconds of context and response raise or lower the score.

    Args:
        scorer: The judge.
        context: What the response answers; None = it is judged alone.
        response: The clip that is judged.
        situation: Text about the situation, as raters were given it.
        window: Seconds of a stretch, 0.25 to 1.
        seed: Of noise and permutations.

    Raises:
        UserError: For another window.
        AudioError: If a clip cannot be used.
    """
    if not WINDOWS[0] <= window <= WINDOWS[1]:
        raise UserError(f"window {shown(window)}; expected {WINDOWS[0]:g} to {WINDOWS[1]:g} seconds")
    clips: dict[str, Clip] = {}
    for side, audio in (("context", context), ("response", response)):
        if audio is not None:
            scorer.check_clip(clip(audio))
            # At the rate of the edits, so that a score changes by an edit and not by resampling
            clips[side] = Clip(decode(clip(audio), voice.RATE), voice.RATE)
    if situation is not None:
        check_situation(situation)
    # This predictor measures no clip: of edited ones only the scores count
    predictor = Predictor(scorer.judge, scorer.batch_size, windows=scorer.windows)
    work = Scorer(scorer.loaded, scorer.name, predictor)
    return _by_occlusion(work, clips, situation, window, np.random.default_rng(seed))


def _pair(clips: Mapping[str, Clip], situation: str | None) -> Pair:
    context = (Turn("user", clips["context"]),) if "context" in clips else ()
    return Pair("explained", clips["response"], context, situation)


def _windows(seconds: float, window: float) -> tuple[np.ndarray, np.ndarray]:
    """First and last seconds of overlapping windows; those at both ends reach the end of the clip."""
    if seconds <= window:
        return np.zeros(1), np.full(1, seconds)
    starts = np.linspace(0, seconds - window, 1 + int(np.ceil((seconds - window) / (window / _STEPS_APART))))
    return starts, starts + window


def _by_occlusion(
    work: Scorer,
    clips: Mapping[str, Clip],
    situation: str | None,
    window: float,
    rng: np.random.Generator,
) -> Explanation:
    pairs, clip_windows = [_pair(clips, situation)], []
    for side, audio in clips.items():
        edited = {name: edit(audio.samples, rng) for name, edit in {NOISE: noise_floor, **EDITS}.items()}
        starts, ends = _windows(audio.seconds, window)
        clip_windows.append((side, audio.seconds, starts, ends))
        time = np.arange(len(audio.samples)) / audio.rate
        for replacement in edited.values():
            for start, end in zip(starts, ends, strict=True):
                inside = np.minimum((time - start) / _FADE + (start == 0), (end - time) / _FADE + (end == ends[-1]))
                mixed = audio.samples + np.clip(inside, 0, 1) * (replacement - audio.samples)
                pairs.append(_pair({**clips, side: Clip(mixed, audio.rate)}, situation))
    assessments = []
    for assessment in work.assess_pairs(pairs):
        if isinstance(assessment, AudioError):
            raise assessment
        assessments.append(assessment)
    scores, ways, curves, first = assessments[0].points, (NOISE, *EDITS), [], 1
    for side, seconds, starts, ends in clip_windows:
        changed, first = assessments[first : first + len(ways) * len(starts)], first + len(ways) * len(starts)
        for dimension in work.dimensions:
            changes = np.array([assessment.points[dimension.name] for assessment in changed]).reshape(len(ways), -1)
            changes -= scores[dimension.name]
            edits = dict(zip(ways, changes, strict=True))
            # neighbouring windows share three quarters: a change in only one of them comes from the edit, not the clip
            smoothed = convolve1d(changes, _SMOOTHING, axis=1, mode="nearest")
            # Within each edit, whose changes have a size of their own: only where they lie is shuffled
            null = -np.stack([rng.permuted(smoothed, axis=1).mean(0) for _ in range(_PERMUTATIONS)])
            curves.append(_curve(side, dimension, (seconds, starts, ends), -smoothed.mean(0), null, edits))
    return Explanation(scores, curves)


def _curve(
    clip_name: str,
    dimension: Dimension,
    windows: tuple[float, np.ndarray, np.ndarray],
    contributions: np.ndarray,
    null: np.ndarray,
    edits: Mapping[str, np.ndarray],
) -> Curve:
    """The curve of a clip, with the stretches that stand out.

    These lie beyond the largest deviation of most permutations, `null` of shape `(permutations, windows)`, and are not
    too small. A worst stretch must itself cost points (where lower is better, add some): it is not enough to contribute
    less than the others.
    """
    seconds, starts, ends = windows
    middle, scale = float(np.median(contributions)), dimension.maximum - dimension.minimum
    # The largest deviation over all windows, since the worst of many windows is looked at
    deviations = null - np.median(null, 1, keepdims=True)
    # Where lower is better, points that are added are a cost
    cost = 1 if dimension.higher_is_better else -1
    least = {cost: _LEAST_COST * scale, -cost: _LEAST_GAIN * scale}
    low = middle - max(least[1], float(np.percentile((-deviations).max(1), _LEVEL)))
    high = middle + max(least[-1], float(np.percentile(deviations.max(1), _LEVEL)))

    def named(sign: int) -> list[Stretch]:
        chosen: list[Stretch] = []
        for number in np.argsort(sign * contributions, kind="stable"):
            start, end, value = (float(values[number]) for values in (starts, ends, contributions))
            beyond = sign * value < -least[sign] / 2 and (value < low if sign > 0 else value > high)
            if (
                beyond
                and len(chosen) < STRETCHES
                and all(end <= stretch.start or start >= stretch.end for stretch in chosen)
            ):
                effect = {name: float(changes[number]) for name, changes in edits.items()}
                chosen.append(Stretch(start, end, value, f"{start:.1f} to {end:.1f} s: {_reason(effect, sign)}"))
        return chosen

    return Curve(
        clip_name,
        dimension.name,
        seconds,
        starts.tolist(),
        ends.tolist(),
        contributions.tolist(),
        {name: changes.tolist() for name, changes in edits.items()},
        low,
        high,
        named(cost),
        named(-cost),
    )


def _reason(effect: Mapping[str, float], sign: int) -> str:
    """Say which edit changed the score most in this direction, and by how much."""
    name = max(effect, key=lambda edit: sign * effect[edit])
    change = "the noise floor in its place" if name == NOISE else f"flattening the {name}"
    return f"{change} {'raises' if sign > 0 else 'lowers'} the score by {abs(effect[name]):.1f}"


def noise_floor(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Noise with the level and spectrum of the quietest frames nearby `(samples,)`, at `voice.RATE`."""
    size, hop = voice.FRAME, voice.FRAME // 2
    window = np.hanning(size + 1)[:-1]
    padded = np.pad(samples.astype(np.float64), (hop, size))
    frames = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop] * window
    inside = slice(1, max(2, len(samples) // hop))  # the others are padded with zeros
    power = np.abs(np.fft.rfft(frames))[inside] ** 2
    level, reach = power.sum(1), int(_NEAR * voice.RATE / hop)
    spectra = np.empty_like(power)
    for index in range(len(power)):
        nearby = slice(max(0, index - reach), index + reach + 1)
        # The room and not silence: digital silence in the middle of a clip is a sound of its own to a judge
        quiet = level[nearby] <= np.percentile(level[nearby], _QUIET)
        spectra[index] = power[nearby][quiet].mean(0)
    nearest = np.clip(np.arange(len(frames)) - 1, 0, len(power) - 1)
    noise = np.fft.rfft(rng.standard_normal(frames.shape) * np.sqrt(window))
    shaped = np.fft.irfft(noise * np.sqrt(spectra[nearest] / (window.sum())), size) * np.sqrt(window)
    total = np.zeros(len(padded) + size)
    for number, frame in enumerate(shaped):
        total[number * hop : number * hop + size] += frame
    return total[hop : hop + len(samples)].astype(np.float32)


def flattened(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The clip with a constant pitch, its median, and a constant level, that of its speech."""
    even = voice.level_flattened(voice.monotone(Clip(samples, voice.RATE), rng)).samples
    return even * _speech_level(samples) / max(_speech_level(even), 1e-9)


def neutral(samples: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The clip at the pitch, periodicity and level of the check ``flat_prosody``; only its timing is its own."""
    return voice.flat_prosody(Clip(samples, voice.RATE), rng).samples


def _speech_level(samples: np.ndarray) -> float:
    track = prosody.track(samples)
    return float(np.sqrt((10 ** (track.level[track.active] / 10)).mean()))


EDITS = {"pitch and loudness": flattened, "delivery": neutral}
"""Edits of a window beside the noise floor, named as in reasons: flattening the ... raises the score."""
