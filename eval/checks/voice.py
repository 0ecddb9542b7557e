"""Checks of the voice: intonation, loudness, voice quality or the speaker is flattened or changed.

Speech is separated into excitation and spectral envelope, and resynthesised with another excitation. The envelope comes
from linear prediction (Atal and Hanauer, 1971). The excitation consists of pulses at a given pitch and noise, mixed by
the autocorrelation peak, which is the share of harmonic power (Boersma, 1993). This is a vocoder: it keeps the timbre
within the envelope, loses the fine structure of the voice, and buzzes. The check ``resynthesis`` measures the effect of
the vocoder alone on a judge.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from ...audio import prosody
from ...audio.decode import Clip, decode, resample

LEVEL = -26.0
"""dB relative to full scale; level of flattened clips wherever there is speech."""
FLAT_PITCH = 150.0
"""Hz; the one pitch of flattened prosody, between those of men and women."""
FLAT_PERIODICITY = 0.9
"""Share of harmonic power in voiced stretches of flattened prosody: voice quality is gone."""
SPEAKER = 106
"""Percent of pitch and formants of a smaller speaker, a semitone up; for a larger one they are as much lower."""
# Standard deviation of the level smoothing (120 ms): it evens out syllables, not single sounds
_SMOOTH_FRAMES = 6.0
_STRETCH_WINDOW = 0.046  # s
RATE = 16_000
"""Hz; the rate of `audio.prosody`, whose tracks are used."""
FRAME, HOP = 512, 128
"""Samples of an analysis window (32 ms: two periods of the lowest pitch), and between windows."""
_SIZE = 2 * FRAME  # of the transforms: room for the response of the filter
# A pair of poles per kHz and one for the tilt of the voice, which the emphasis has flattened before
_ORDER, _EMPHASIS = 18, 0.97
# Width of the lag window (Tohkura, 1978): without it poles sit on single harmonics of high voices
_LAG_HERTZ = 60.0
# Noise floor of the prediction, -50 dB: without it the equations of silence have no solution
_WHITENING = 1e-5
_PULSE_TAPS = 16


@dataclass(frozen=True)
class Speech:
    """A clip with its pitch and periodicity."""

    samples: np.ndarray  # shape (n,), float64, at `RATE`
    # shape (n,), Hz, in unvoiced stretches that of a straight line between their ends (log frequency); NaN everywhere
    # in a clip without voice
    pitch: np.ndarray
    periodic: np.ndarray  # shape (n,), share of harmonic power, 0 where unvoiced


def analyse(clip: Clip) -> Speech:
    """Tracks pitch and periodicity."""
    samples = decode(clip, RATE)
    track = prosody.track(samples)
    voiced = ~np.isnan(track.pitch)
    time, frame = np.arange(len(samples)), np.arange(len(track.pitch)) * prosody.HOP
    if not voiced.any():
        return Speech(samples.astype(np.float64), np.full(len(samples), np.nan), np.zeros(len(samples)))
    # In log frequency, in which voices glide
    pitch = np.exp(np.interp(time, frame[voiced], np.log(track.pitch[voiced])))
    nearest = np.minimum((time + prosody.HOP // 2) // prosody.HOP, len(frame) - 1)
    return Speech(samples.astype(np.float64), pitch, np.where(voiced, track.harmonicity, 0.0)[nearest])


def resynthesise(speech: Speech, pitch: np.ndarray, periodic: np.ndarray, rng: np.random.Generator) -> Clip:
    """Resynthesises a clip with its own envelope and level, every 8 ms, and another excitation.

    Args:
        speech: The clip.
        pitch: Shape (n,), Hz; may be NaN where nothing is periodic.
        periodic: Shape (n,), share of harmonic power, 0 to 1.
        rng: Generator of the noise.

    Returns:
        A clip at `RATE` of the same length.
    """
    noise = rng.standard_normal(len(speech.samples))
    excitation = np.sqrt(1 - periodic) * noise
    if periodic.any():
        # Roots, since the shares are of power, and pulses and noise have unit power
        excitation += np.sqrt(periodic) * pulses(pitch)
    source, original = _windowed(excitation), _windowed(speech.samples)
    shaped = np.fft.rfft(source, _SIZE) / _whitening_filter(original)
    power = np.abs(shaped) ** 2
    # By Parseval's theorem
    energy = (2 * power.sum(-1) - power[:, 0] - power[:, -1]) / _SIZE  # in time: this is half of each spectrum
    # Frame by frame, so that loudness stays what it was: only what the check names may change
    level = np.sqrt((original**2).sum(-1) / np.maximum(energy, 1e-20))
    return Clip(_overlap_add(np.fft.irfft(shaped * level[:, None], _SIZE), len(excitation)), RATE)


def pulses(pitch: np.ndarray) -> np.ndarray:
    """Band-limited pulses, unit power, at a pitch given for each sample.

    Args:
        pitch: Shape (n,), Hz.

    Returns:
        Shape (n,).
    """
    n = len(pitch)
    cycles = np.cumsum(pitch / RATE)
    positions = np.interp(np.arange(1, int(cycles[-1]) + 1), cycles, np.arange(n))
    taps = np.floor(positions).astype(int)[:, None] + np.arange(1 - _PULSE_TAPS // 2, _PULSE_TAPS // 2 + 1)
    distance = taps - positions[:, None]
    shape = np.sinc(distance) * np.cos(np.pi * distance / (_PULSE_TAPS + 2)) ** 2
    # Fewer pulses in a second have to be higher for the same power
    height = np.sqrt(RATE / pitch[np.minimum(np.rint(positions).astype(int), n - 1)])
    train = np.zeros(n)
    inside = (taps >= 0) & (taps < n)
    np.add.at(train, taps[inside], (shape * height[:, None])[inside])
    return train


def _windowed(samples: np.ndarray) -> np.ndarray:
    """Frames under a Hann window, (frames, FRAME); each sample is in four of them."""
    padded = np.pad(samples, (FRAME - HOP, FRAME))
    frames = np.lib.stride_tricks.sliding_window_view(padded, FRAME)[::HOP]
    return frames * np.hanning(FRAME + 1)[:-1]


def _overlap_add(frames: np.ndarray, n: int) -> np.ndarray:
    """Overlap-add of frames (frames, _SIZE) from `_windowed` to n samples, float32."""
    count, hops = len(frames), _SIZE // HOP
    total = np.zeros((count + hops, HOP))
    for part in range(hops):
        total[part : part + count] += frames[:, part * HOP : (part + 1) * HOP]
    windows = 0.5 * FRAME / HOP  # what overlapping Hann windows add up to
    return (total.reshape(-1)[FRAME - HOP :][:n] / windows).astype(np.float32)


def _whitening_filter(frames: np.ndarray) -> np.ndarray:
    """Spectrum of the inverse of the envelope of each frame (frames, FRAME); shape (frames, _SIZE / 2 + 1), complex."""
    spectrum = np.fft.rfft(frames, _SIZE)
    emphasis = np.fft.rfft([1.0, -_EMPHASIS], _SIZE)
    correlation = np.fft.irfft(np.abs(spectrum * emphasis) ** 2, _SIZE)[:, : _ORDER + 1]
    lags = np.arange(_ORDER + 1)
    correlation = correlation * np.exp(-0.5 * (2 * np.pi * _LAG_HERTZ * lags / RATE) ** 2)
    correlation[:, 0] = correlation[:, 0] * (1 + _WHITENING) + 1e-12
    toeplitz = correlation[:, np.abs(lags[:-1, None] - lags[:-1])]
    predictor = np.linalg.solve(toeplitz, correlation[:, 1:, None])[..., 0]
    inverse = np.concatenate([np.ones((len(frames), 1)), -predictor], axis=1)
    return np.fft.rfft(inverse, _SIZE) * emphasis


def resynthesis(clip: Clip, rng: np.random.Generator) -> Clip:
    """The clip through the vocoder with its own pitch and periodicity: the side effect of `monotone`."""
    speech = analyse(clip)
    return resynthesise(speech, speech.pitch, speech.periodic, rng)


def monotone(clip: Clip, rng: np.random.Generator) -> Clip:
    """The clip through the vocoder at the median of its pitch."""
    speech = analyse(clip)
    voiced = speech.pitch[speech.periodic > 0]
    # The speaker's own median: one pitch for all would also change who is heard
    median = np.median(voiced) if len(voiced) else np.nan
    return resynthesise(speech, np.full_like(speech.pitch, median), speech.periodic, rng)


def level_flattened(clip: Clip, rng: np.random.Generator | None = None) -> Clip:
    """Sets speech to `LEVEL`, measured over some 120 ms; pauses follow their surroundings, silence stays silence."""
    if not clip.samples.any():
        return clip
    track = prosody.track(decode(clip, prosody.RATE))
    reach = np.arange(-3 * int(_SMOOTH_FRAMES), 3 * int(_SMOOTH_FRAMES) + 1)
    kernel = np.exp(-0.5 * (reach / _SMOOTH_FRAMES) ** 2)
    power = np.convolve(np.where(track.active, 10 ** (track.level / 10), 0.0), kernel)
    weight = np.convolve(track.active.astype(float), kernel)
    inner = slice(len(reach) // 2, len(reach) // 2 + len(track.level))
    # Only speech has a level of its own; the gain of pauses is interpolated between their ends
    frames = np.flatnonzero(track.active)
    gain = LEVEL - 10 * np.log10(power[inner][frames] / weight[inner][frames])
    seconds = np.arange(len(clip.samples)) / clip.rate
    change = 10 ** (np.interp(seconds, frames * prosody.HOP / prosody.RATE, gain) / 20)
    return dataclasses.replace(clip, samples=(clip.samples * change).astype(np.float32))


def flat_prosody(clip: Clip, rng: np.random.Generator) -> Clip:
    """One pitch, one periodicity and one level for all clips; only the timing of the delivery is left."""
    speech = analyse(clip)
    periodic = np.where(speech.periodic > 0, FLAT_PERIODICITY, 0.0)
    # Level last, since the vocoder gives each frame its old one
    return level_flattened(resynthesise(speech, np.full_like(speech.pitch, FLAT_PITCH), periodic, rng))


def other_speaker(clip: Clip, rng: np.random.Generator) -> Clip:
    """A smaller or a larger speaker, drawn for each clip: pitch and formants by `SPEAKER`; timing and level stay.

    The clip is resampled, and a phase vocoder (Flanagan and Golden, 1966) gives it back its duration.
    """
    import torch  # only where a clip is changed: reports, which name the checks, begin without it
    from torchaudio import functional

    # Up or down at random: a judge that favours high voices would gain on all clips, and here the gains cancel
    ratio = (SPEAKER, 100) if rng.random() < 0.5 else (100, SPEAKER)
    scaled = resample(clip.samples, *ratio)
    size = 1 << round(np.log2(_STRETCH_WINDOW * clip.rate))
    hop, window = size // 4, torch.hann_window(size)
    samples = torch.from_numpy(np.pad(scaled, (0, max(0, size - len(scaled)))))
    spectrum = torch.stft(samples, size, hop, window=window, return_complex=True)
    # The FFT of silence is 0 on some CPUs and -0, whose phase is pi, on others
    spectrum += 0
    advance = torch.linspace(0, torch.pi * hop, size // 2 + 1)[:, None]
    stretched = functional.phase_vocoder(spectrum, len(scaled) / len(clip.samples), advance)
    changed = torch.istft(stretched, size, hop, window=window, length=len(clip.samples)).numpy()
    level = np.sqrt(np.square(scaled).mean() / max(np.square(changed).mean(), 1e-20))
    return dataclasses.replace(clip, samples=changed * level)
