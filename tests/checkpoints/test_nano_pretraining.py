"""The script that made the shipped backbone: its questions have right answers, and it runs from nothing to a README."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from empathy_judge.audio.functionals import DELIVERY
from empathy_judge.checkpoints.nano.make import answer, corpus, listen
from empathy_judge.checkpoints.nano.make.architecture import HOP, build_model, build_processor
from empathy_judge.checkpoints.nano.make.clips import LABELS, LEVELS, MEASURES, ClipStore, NanoClip
from empathy_judge.checkpoints.nano.make.corpus import (
    collect,
    digest,
    find_recordings,
    hold_out,
    make_voices,
    pitch_range,
    real_shards,
    synthetic_shards,
)
from empathy_judge.checkpoints.nano.make.pretrain import pretrain
from empathy_judge.checkpoints.nano.make.questions import CLOSED, OPEN, Delivery
from empathy_judge.checkpoints.nano.make.teacher import taught
from empathy_judge.core.errors import UserError
from empathy_judge.core.files import file_hash
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.backbones.qwen2_audio import Qwen2Audio
from safetensors.torch import load_file
from torch.nn.functional import gelu
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

QUESTIONS = {question.name: question for question in (*CLOSED, *OPEN)}


def _delivery(quality: int = -1, sex: int = -1, recording: int = -1, **measures: float) -> Delivery:
    return Delivery([measures.get(name, math.nan) for name in MEASURES], [quality, sex, recording])


LOW = _delivery(pitch=-0.7, rate=3.5, level=-38.0, pitch_range=0.5, pitch_shift=-3.0, quality=1, sex=1, recording=2)
HIGH = _delivery(pitch=0.8, rate=3.7, level=-20.0, pitch_range=5.0, pitch_shift=0.0, quality=0, sex=0, recording=0)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("pitch of context", "very low"), ("pitch of response", "very high"), ("pitch_range of context", "flat"),
        ("level of response", "very loud"), ("pitch_shift of context", "lowered"), ("quality of context", "breathy"),
        ("sex of response", "female"), ("recording of context", "noisy"), ("more pitch", "response"),
        ("more rate", "same"), ("more level", "response"),
    ],
)  # fmt: skip
def test_answers(name, answer):
    assert QUESTIONS[name].answer(LOW, HIGH) == answer


def test_unknown_is_not_asked():
    assert QUESTIONS["rate of response"].answer(LOW, _delivery(pitch=0.0)) is None
    assert QUESTIONS["more rate"].answer(LOW, _delivery(pitch=0.0)) is None
    assert QUESTIONS["pitch of context"].answer(None, HIGH) is None
    assert QUESTIONS["describe response"].answer(None, _delivery(level=-30.0)) == "level medium"


def test_pitch_range_ignores_octave_errors():
    octaves = np.linspace(-0.1, 0.1, 21)
    assert pitch_range(octaves) == pytest.approx(12 * 0.12, abs=1e-6)
    wild = np.concatenate([octaves, [1.0, 1.0, -1.0]])
    assert pitch_range(wild) == pytest.approx(pitch_range(octaves), abs=0.2)
    assert math.isnan(pitch_range(np.array([0.1, np.nan, 0.2])))


def _noise_clips(*lengths: int, taught: bool = False) -> list[NanoClip]:
    """Random clips of so many frames; `taught` = with states of a teacher."""
    rng = np.random.default_rng(0)
    return [
        NanoClip(
            rng.normal(size=(frames, 128)).astype(np.float16),
            rng.normal(size=len(MEASURES)).astype(np.float32),
            np.zeros(len(LABELS), np.int64),
            np.zeros((frames // 4, 2), np.float32),
            rng.normal(size=(frames // 4, 6 * taught)).astype(np.float16),
            rng.normal(size=(2 * taught, 6 * taught)).astype(np.float16),
        )
        for frames in lengths
    ]


def test_clip_store_round_trip_and_padding(tmp_path):
    clips = _noise_clips(40, 63)
    ClipStore.of(clips).save(tmp_path / "clips.npz")
    store = ClipStore.load(tmp_path / "clips.npz")
    assert store.digest() == ClipStore.of(clips).digest()
    mel, lengths, frames = store.batch([1, 0])
    assert lengths.tolist() == [60, 40]  # whole audio tokens only
    torch.testing.assert_close(mel[0, :, :60].T, torch.from_numpy(clips[1].mel[:60]).float())
    assert frames[1, 10:].isnan().all()


def test_voices_are_half_women_and_repeat():
    voices = make_voices(40, seed=1)
    assert [voice.sex for voice in voices].count("f") == 20
    assert voices == make_voices(40, seed=1)
    assert not set(voices) & set(make_voices(40, seed=2))


def test_architecture_is_qwen2_audio_in_miniature():
    processor = build_processor(["How fast is the response?"])
    model = build_model(processor)
    weights = sum(weight.numel() for weight in model.parameters())
    assert 2.5e6 < weights <= 3.1e6
    window = processor.feature_extractor
    assert model.get_parameter("model.audio_tower.embed_positions.weight").shape[0] * 2 * HOP == window.n_samples
    assert window.chunk_length == 30
    for text in ("How fast?", "Größe: 12 €\n", "<|im_start|>user\nhi<|im_end|>"):
        assert processor.tokenizer.decode(processor.tokenizer(text)["input_ids"]) == text


def _new_backbone():
    processor = build_processor(["How fast is the response?"])
    torch.manual_seed(0)
    model = build_model(processor)
    return Qwen2Audio(model.model, processor, Checkpoint("nano")), model, processor


def _teach_tower(kept: Path) -> dict[str, torch.Tensor]:
    """Two epochs of the tower on random clips that a teacher has heard."""
    backbone, model, _ = _new_backbone()
    listen.train_tower(backbone, ClipStore.of(_noise_clips(*[40] * 40, taught=True)), epochs=2, seed=1, kept=kept)
    return dict(model.model.audio_tower.state_dict())


def _teach_language_model(kept: Path) -> dict[str, torch.Tensor]:
    """Four steps of the language model on random clips."""
    backbone, model, processor = _new_backbone()
    listener = answer.Listener(backbone, ClipStore.of(_noise_clips(*[40] * 12)))
    answer.train_language_model(backbone, model, processor, listener, steps=4, seed=1, kept=kept)
    return dict(model.state_dict())


@pytest.mark.parametrize(
    ("teach", "module", "name"),
    [(_teach_tower, listen, "_loss"), pytest.param(_teach_language_model, answer, "_draw", marks=pytest.mark.long)],
)
def test_an_interrupted_stage_ends_as_the_uninterrupted_one(teach, module, name, tmp_path, monkeypatch):
    """A Ctrl-C in the last of four steps, of which two are kept: two batches make an epoch of the tower."""
    monkeypatch.setattr(answer, "_SAVE_EVERY", 2)
    whole = teach(tmp_path / "whole.pt")
    function, calls = getattr(module, name), []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return function(*arguments)

    monkeypatch.setattr(module, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "cut.pt")
    resumed = teach(tmp_path / "cut.pt")
    assert len(calls) == 4 + 2
    for name, weight in whole.items():
        assert torch.equal(weight, resumed[name]), name


def _write_teacher(folder: Path, seconds: int = 30) -> Path:
    """A miniature of Whisper with random weights."""
    config = WhisperConfig(
        d_model=32, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=50 * seconds, vocab_size=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        WhisperForConditionalGeneration(config).save_pretrained(folder)
    WhisperFeatureExtractor(chunk_length=seconds).save_pretrained(folder)
    return folder


def test_a_teacher_hears_what_nano_hears(tmp_path):
    folder = _write_teacher(tmp_path, seconds=5)
    with pytest.raises(UserError, match=r"hears 5 s; expected an encoder of Whisper, of 30 s"):
        pretrain(tmp_path / "out", tmp_path / "work", [], 64, 1, 3, 1, teacher=folder)
    assert not (tmp_path / "work").exists()


def test_a_teacher_is_heard_token_by_token_and_as_a_whole(tmp_path, make_tone):
    """Two of the encoder's layers, four of its states to a token, in a window of the clip and a second; statistics of
    all its layers."""
    _write_teacher(tmp_path)
    clips = _noise_clips(60, 100)
    samples = [make_tone(seconds, pitch, 0.1) for seconds, pitch in ((1.2, 150), (2.01, 200))]
    found = taught(list(zip(clips, samples, strict=True)), tmp_path)
    encoder = WhisperForConditionalGeneration.from_pretrained(tmp_path).model.encoder
    extractor = WhisperFeatureExtractor.from_pretrained(tmp_path)
    for clip, sound, tokens, length, window in zip(found, samples, (15, 25), (60, 101), (150, 200), strict=True):
        mel = extractor(sound, sampling_rate=16_000, return_tensors="pt", max_length=window * 320)["input_features"]
        embedded = gelu(encoder.conv2(gelu(encoder.conv1(mel)))).transpose(1, 2)
        layers = [embedded + encoder.embed_positions.weight[:window]]
        for layer in encoder.layers:
            layers.append(layer(layers[-1], None))
        layers[-1] = encoder.layer_norm(layers[-1])
        whole = torch.stack(layers)[:, 0, :length]  # (layers, states, size)
        summary = torch.cat([whole.mean(1), whole.std(1, correction=0)], 1)
        torch.testing.assert_close(torch.from_numpy(clip.summary).float(), summary.detach(), atol=0.01, rtol=0.01)
        means = whole[1, : 4 * tokens].unflatten(0, (tokens, 4)).mean(1).tile(2)  # of three layers both are the second
        torch.testing.assert_close(torch.from_numpy(clip.states).float(), means.detach(), atol=0.01, rtol=0.01)
    assert taught(list(zip(clips, samples, strict=True)), None) == clips


def test_coordinates_keep_the_order_of_what_varies_and_make_it_even():
    torch.manual_seed(0)
    spread = torch.tensor([81.0, 16.0, 1.0, 0.0001])  # variances after the values are standardised differ less
    mixed = torch.randn(4_000, 4) * spread.sqrt() @ torch.linalg.qr(torch.randn(4, 4))[0]
    coordinates = listen.Coordinates(mixed)(mixed)
    assert coordinates.shape == (4_000, 256)
    assert not coordinates[:, 4:].any()
    variances = coordinates[:, :4].var(0)
    expected = torch.linalg.eigvalsh(torch.corrcoef(mixed.T)).flip(0).sqrt()
    torch.testing.assert_close(variances, expected / expected.mean(), atol=2e-3, rtol=2e-3)
    torch.testing.assert_close(coordinates.T @ coordinates, (coordinates.T @ coordinates).diag().diag(), atol=1, rtol=0)


def test_the_tower_learns_what_the_teacher_says(tmp_path, capsys):
    """What it says is a function of the spectrogram: of the errors of whoever knows the mean alone, little is left."""
    backbone, *_ = _new_backbone()
    clips = []
    for clip in _noise_clips(*[40] * 64):
        mel = np.float16(clip.mel + np.random.default_rng(clip.mel[0, :4].view(np.uint16)).normal(size=(1, 128)))
        means = mel.astype(np.float32).reshape(10, 4, 128).mean(1)[:, :12]
        summary = np.stack([means.mean(0), means.std(0)])
        clips.append(replace(clip, mel=mel, states=means.astype(np.float16), summary=summary.astype(np.float16)))
    listen.train_tower(backbone, ClipStore.of(clips), epochs=12, seed=1, kept=tmp_path / "tower.pt")
    lines = re.findall(r"lessons ([\d.]+) and ([\d.]+)", capsys.readouterr().out)
    first, last = ([float(value) for value in line] for line in (lines[0], lines[-1]))
    # of the 256 coordinates 12 are not empty
    assert first[0] > 0.03
    assert last[0] < 0.4 * first[0]
    assert last[1] < 0.4 * first[1]


def test_every_measure_of_the_signal_is_a_target_and_a_gain_moves_two():
    assert len(MEASURES) == 6 + len(DELIVERY) == 164
    assert [MEASURES[column] for column in LEVELS] == ["level", "delivery_level"]


def test_cepstra_of_a_token_are_the_transform_of_the_mean_of_its_frames():
    mel = torch.randn(2, 128, 8)
    found = listen.cepstra(mel)
    assert found.shape == (2, 2, 24)
    torch.testing.assert_close(found[1, 1, 0], mel[1, :, 4:].mean(1).sum() / 128**0.5)
    louder = listen.cepstra(mel + 0.1)
    torch.testing.assert_close(louder[..., 1:], found[..., 1:], atol=1e-5, rtol=0)  # a gain moves the first alone


def test_long_clips_are_asked_about_together():
    """Among short ones they would fill most batches with padding."""
    backbone, *_ = _new_backbone()
    listener = answer.Listener(backbone, ClipStore.of(_noise_clips(40, 600, 480, 1400)))
    assert (listener.short.tolist(), listener.long.tolist()) == ([0, 2], [1, 3])
    drawn: list[set[int | None]] = []
    for seed in range(200):
        rows = list(answer._draw(listener, np.random.default_rng(seed)))
        drawn.append({context for context, *_ in rows} | {response for _, response, _ in rows})
    kinds = [clips - {None} <= {1, 3} for clips in drawn]
    assert all(long or clips - {None} <= {0, 2} for clips, long in zip(drawn, kinds, strict=True))
    assert 1 <= sum(kinds) <= 20  # one in 25


@pytest.fixture
def recordings(tmp_path, make_tone):
    """Two folders of recordings as `../shared/data` has them: twelve speakers of one, seven of the other."""
    for name, columns, row in (
        ("read_speech", "clip,speaker_id,text,gender,age", "{clip},S{n},WE CALL IT BEAR,{sex},{age}"),
        ("expressive_speech", "clip,title,author,reader,license_url", "{clip},A man,An Author,R{n},https://x/by/3.0/"),
    ):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        lines = [columns]
        for n in range(12 if name == "read_speech" else 7):
            soundfile.write(folder / f"{n}.wav", make_tone(1.0, 120 + 10 * n, 0.1), 16_000)
            lines.append(row.format(clip=f"{n}.wav", n=n, sex="fm"[n % 2], age=8 if n == 3 else 30))
        (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "data"


def test_recordings_are_held_out_by_speaker_and_folder(recordings):
    found = find_recordings(recordings)
    assert len(found) == 19
    assert [own.sex for own in found[:4]] == ["f", "m", "f", None]  # a child
    assert found[-1].source == "A man by An Author, read by R6 (CC BY 3.0)"
    train, unseen = hold_out(found, seed=1)
    folders = [own.speaker.partition("/")[0] for own in unseen]
    assert sorted(folders) == ["expressive_speech", "read_speech", "read_speech"]
    assert len(train) == 16
    (recordings / "expressive_speech" / "metadata.csv").unlink()
    with pytest.raises(UserError, match=r"expressive_speech.metadata\.csv: not found; give the folder that holds"):
        find_recordings(recordings)


def test_a_digest_tells_what_is_read_and_not_where(recordings, tmp_path):
    before = digest(find_recordings(recordings))
    recordings.rename(tmp_path / "elsewhere")
    assert digest(find_recordings(tmp_path / "elsewhere")) == before
    soundfile.write(tmp_path / "elsewhere" / "read_speech" / "0.wav", np.zeros(9_000), 16_000)
    assert digest(find_recordings(tmp_path / "elsewhere")) != before


def test_a_recording_is_heard_as_it_is_in_another_voice_and_degraded(recordings):
    adult, child = find_recordings(recordings)[2:4]
    ((plain, other, degraded, *of_child),) = [shard() for shard in real_shards([adult, child], seed=1)]
    pitch, rate, level = (MEASURES.index(name) for name in ("pitch", "rate", "level"))
    assert plain.measures[pitch] == pytest.approx(np.log2(140 / 150), abs=0.01)
    assert 0.1 < abs(other.measures[pitch] - plain.measures[pitch]) < 0.3
    # what is played faster is higher by as much
    assert other.measures[rate] / plain.measures[rate] == pytest.approx(
        2 ** float(other.measures[pitch] - plain.measures[pitch]), rel=0.03
    )
    assert abs(degraded.measures[level] - plain.measures[level]) > 0.5
    labels = [dict(zip(LABELS, clip.labels.tolist(), strict=True)) for clip in (plain, other, degraded, *of_child)]
    assert [own["sex"] for own in labels] == [0, -1, 0, -1, -1, -1]
    assert [own["recording"] for own in labels[:2]] == [0, 0]
    assert labels[2]["recording"] > 0


@pytest.mark.long
def test_a_corpus_does_not_depend_on_the_number_of_workers(monkeypatch):
    monkeypatch.setattr(corpus, "_SHARD", 4)
    voices = make_voices(6, seed=3)
    made = [ClipStore.of(collect(synthetic_shards(8, voices, 3), "clips", workers)) for workers in (1, 2)]
    assert made[0].digest() == made[1].digest()
    other = ClipStore.of(collect(synthetic_shards(8, voices, 4), "clips"))
    assert other.digest() != made[0].digest()


@pytest.mark.long
def test_script_runs_from_nothing(tmp_path):
    _write_teacher(tmp_path / "teacher")
    pretrain(
        tmp_path / "out", tmp_path / "work", [], clips=64, tower_epochs=1, steps=3, seed=1, measured_pairs=12,
        teacher=tmp_path / "teacher",
    )  # fmt: skip
    backbone = load_backbone(Checkpoint(str(tmp_path / "out")))
    assert backbone.sampling_rate == 16_000
    for name, stored in load_file(tmp_path / "out" / "model.safetensors").items():
        assert stored.dtype == torch.float16
        if not name.startswith("language_model."):
            weight = backbone.network.get_parameter(name)
            assert weight.dtype == torch.float32
            assert torch.equal(weight, stored.float())
    measured = json.loads((tmp_path / "out" / "measured.json").read_text())
    assert measured["clips"] == {"train": 64, "unseen_voices": 40}
    weights = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert measured["sha256"]["weights"] == hashlib.sha256(weights).hexdigest()
    of_teacher = file_hash(tmp_path / "teacher" / "model.safetensors")
    assert measured["sha256"]["teacher"] == of_teacher
    assert of_teacher[:16] in (tmp_path / "out" / "README.md").read_text()
    assert set(measured["seconds"]) == {"corpora", "audio tower", "language model"}
    assert "| question | n | majority | accuracy |" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(UserError, match="holds the stages of another recipe"):
        pretrain(tmp_path / "out", tmp_path / "work", [], clips=64, tower_epochs=1, steps=4, seed=1)
