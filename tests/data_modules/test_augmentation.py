"""Augmentation: exact levels, the same length, and the same draws whatever reads the data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.audio.decode import Clip
from empathy_judge.data_modules.augmentation import augment_clip, augment_pair, coloured_noise
from empathy_judge.data_modules.sampling import EpochBatches, EpochOrder, FixedSize, Position
from empathy_judge.data_modules.schema import Pair, PairDataset, Turn
from empathy_judge.data_modules.settings import Augmentation
from empathy_judge.data_modules.training_items import RatedPairs
from torch.utils.data import DataLoader

RATE = 16_000
STEPS = ("noise", "codec", "gain")


def speechlike(seconds: float = 1.0, rate: int = RATE, seed: int = 0) -> Clip:
    """Bursts of harmonics with pauses between them, and half a second of silence at the end."""
    time = np.arange(round(seconds * rate)) / rate
    voice = sum(np.sin(2 * np.pi * 140 * number * time) / number for number in range(1, 12))
    noise = np.random.default_rng(seed).standard_normal(len(time))
    samples = 0.1 * (voice + 0.1 * noise) * (np.sin(2 * np.pi * 3 * time) > -0.3)
    return Clip(np.concatenate([samples, np.zeros(rate // 2)]).astype(np.float32), rate, "clip.wav")


def only(*names: str, probability: float = 1.0, **values: Any) -> Augmentation:
    return Augmentation(**{f"{name}_probability": probability for name in names}, **values)


def level(samples: np.ndarray) -> float:
    return 10 * np.log10(np.mean(samples.astype(np.float64) ** 2))


@pytest.mark.parametrize("snr", [-5.0, 10.0, 20.0, 30.0])
def test_noise_has_the_stated_snr(snr):
    clip = speechlike()
    noisy = augment_clip(clip, only("noise", noise_snr=(snr, snr)), np.random.default_rng(1))
    assert level(clip.samples) - level(noisy.samples - clip.samples) == pytest.approx(snr, abs=1e-3)


@pytest.mark.parametrize("slope", [0.0, 0.5, 1.0])
def test_noise_has_the_slope_it_is_asked_for(slope):
    power = np.abs(np.fft.rfft(coloured_noise(1 << 18, slope, RATE, np.random.default_rng(0)).numpy())) ** 2
    octaves = [power[(1 << 10) << n : (1 << 11) << n].mean() for n in range(7)]  # from 62.5 Hz
    falls = np.diff(10 * np.log10(octaves))
    assert falls == pytest.approx(np.full(6, -10 * np.log10(2) * slope), abs=0.6)


@pytest.mark.parametrize("gain", [-6.0, 3.5])
def test_gain_is_exact(gain):
    clip = speechlike()
    changed = augment_clip(clip, only("gain", gain_db=(gain, gain)), np.random.default_rng(0))
    assert np.allclose(changed.samples, clip.samples * 10 ** (gain / 20), rtol=1e-6, atol=0)


# above 200 kHz libsndfile ends the process at Ogg Vorbis
@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 10_000, 250_000])
@pytest.mark.parametrize("codec", ["mu_law", "ogg", "mp3"])
def test_codecs_keep_length_level_and_place(codec, rate):
    clip = speechlike(rate=rate)
    decoded = augment_clip(clip, only("codec", codecs=(codec,), codec_compression=(0.3, 0.3)), np.random.default_rng(0))
    assert (decoded.samples.shape, decoded.samples.dtype, decoded.rate) == (clip.samples.shape, np.float32, rate)
    assert level(decoded.samples) == pytest.approx(level(clip.samples), abs=0.6)
    assert not np.array_equal(decoded.samples, clip.samples)
    shifts = [np.dot(clip.samples[100:-100], np.roll(decoded.samples, by)[100:-100]) for by in range(-50, 51)]
    assert int(np.argmax(shifts)) == 50


@pytest.mark.parametrize("codec", ["ogg", "mp3"])
@pytest.mark.parametrize("compression", [0.0, 1.0])
def test_codecs_take_both_ends_of_their_compression(codec, compression):
    settings = only("codec", codecs=(codec,), codec_compression=(compression, compression))
    assert augment_clip(speechlike(), settings, np.random.default_rng(0)).samples.any()


def test_a_clip_beyond_full_scale_is_not_clipped_by_a_codec():
    clip = Clip(speechlike().samples * 8, RATE)
    assert np.abs(clip.samples).max() > 1.5
    for codec in ("mu_law", "ogg"):
        loud = augment_clip(clip, only("codec", codecs=(codec,)), np.random.default_rng(0)).samples
        assert np.abs(loud).max() == pytest.approx(np.abs(clip.samples).max(), rel=0.15)


def test_length_rate_and_name_stay_and_silence_stays_silence():
    clip, silence = speechlike(), Clip(np.zeros(RATE, np.float32), RATE)
    everything = only(*STEPS)
    for seed in range(20):
        changed = augment_clip(clip, everything, np.random.default_rng(seed))
        assert (len(changed.samples), changed.rate, changed.name) == (len(clip.samples), RATE, "clip.wav")
        assert np.isfinite(changed.samples).all()
        assert not augment_clip(silence, everything, np.random.default_rng(seed)).samples.any()


def test_probability_is_kept_and_steps_do_not_move_each_others_draws():
    clip = speechlike(0.1)
    gains = [
        augment_clip(clip, Augmentation(gain_probability=0.3), np.random.default_rng(n)).samples for n in range(400)
    ]
    changed = [not np.array_equal(samples, clip.samples) for samples in gains]
    assert np.mean(changed) == pytest.approx(0.3, abs=0.07)
    both = Augmentation(gain_probability=0.3, noise_probability=1.0)
    loudest = np.argmax(np.abs(clip.samples))
    for n, samples in enumerate(gains[:40]):
        noisy = augment_clip(clip, only("noise"), np.random.default_rng(n)).samples
        factor = samples[loudest] / clip.samples[loudest]
        assert np.allclose(augment_clip(clip, both, np.random.default_rng(n)).samples, noisy * factor, rtol=1e-5)


def test_context_and_response_get_draws_of_their_own():
    clip = speechlike()
    pair = Pair("p", clip, (Turn("user", clip), Turn("user", clip)))
    settings = only("gain")
    heard = augment_pair(pair, settings, seed=1, epoch=0)
    clips = [heard.response, *(turn.audio for turn in heard.context)]
    levels = {level(one.samples) for one in clips if isinstance(one, Clip)}
    assert len(levels) == 3
    assert [turn.role for turn in heard.context] == ["user", "user"]
    assert heard.pair_id == "p"


@pytest.fixture
def dataset(source) -> PairDataset:
    for row in source.pairs:
        soundfile.write(source.folder / row["response_audio"], speechlike(seed=int(row["pair_id"][-1])).samples, RATE)
    return source.load()


def heard(dataset: PairDataset, epoch: int, workers: int = 0, ranks: int = 1, seed: int = 5, persistent: bool = False):
    """Epoch -> item -> samples of its response, as several ranks with several workers hear them from epoch 0 on."""
    epochs: list[dict[int, np.ndarray]] = [{} for _ in range(epoch + 1)]
    for rank in range(ranks):
        order = EpochOrder(len(dataset.pairs), shuffle=True, seed=seed, rank=rank, ranks=ranks)
        loader = DataLoader(
            RatedPairs(dataset, only(*STEPS, probability=0.5), seed),
            batch_sampler=EpochBatches(FixedSize([order], 2), Position()),
            num_workers=workers, collate_fn=_responses, persistent_workers=persistent,
        )  # fmt: skip
        for number in range(epoch + 1):
            loader.batch_sampler.set_epoch(number)  # pyright: ignore[reportAttributeAccessIssue] as Lightning does
            for batch in loader:
                epochs[number].update(batch)
    return epochs


def _responses(items: Any) -> dict[int, np.ndarray]:
    return {item.index: item.pair.response.samples for item in items}


def alike(one: dict[int, np.ndarray], other: dict[int, np.ndarray]) -> int:
    return sum(np.array_equal(one[index], other[index]) for index in range(4))


@pytest.mark.parametrize(("workers", "ranks", "persistent"), [(2, 1, False), (2, 1, True), (0, 2, False)])
def test_the_same_epoch_sounds_the_same(dataset, workers, ranks, persistent):
    plain = heard(dataset, 2)
    assert [sorted(items) for items in plain] == [[0, 1, 2, 3]] * 3
    other = heard(dataset, 2, workers, ranks, persistent=persistent)
    assert [alike(one, same) for one, same in zip(plain, other, strict=True)] == [4, 4, 4]
    assert alike(plain[0], plain[1]) <= 1
    assert alike(plain[0], heard(dataset, 0, seed=6)[0]) <= 1
