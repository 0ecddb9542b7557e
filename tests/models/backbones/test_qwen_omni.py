"""Omni checkpoints: only the half of the thinker that listens is read, wherever it lies."""

import shutil
from collections import defaultdict

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from .conftest import equal, loaded, refused, weights_of

THINKERS = {
    "qwen2_5_omni": Qwen2_5OmniThinkerForConditionalGeneration,
    "qwen3_omni_moe": Qwen3OmniMoeThinkerForConditionalGeneration,
}
HEARD = ("thinker.audio_tower.", "thinker.model.")


@pytest.fixture(params=THINKERS)
def omni(request, make_family):
    return make_family(request.param)


def test_nothing_else_is_read_or_allocated(omni, bytes_read):
    network = loaded(omni.folder).network
    stored = load_file(omni.folder / "model.safetensors")
    assert sum(bytes_read) == sum(tensor.numel() * 4 for key, tensor in stored.items() if key.startswith(HEARD))
    left = {key.removeprefix("thinker.").split(".")[0] for key in stored if not key.startswith(HEARD)}
    assert left == {"talker", "visual", "lm_head", "token2wav" if "2_5" in omni.name else "code2wav"}
    assert set(dict(network.named_children())) == {"audio_tower", "language_model", "projector"}


def test_a_thinker_that_was_saved_alone_is_the_same(omni, tmp_path):
    config = AutoConfig.from_pretrained(omni.folder).thinker_config
    thinker = THINKERS[omni.name].from_pretrained(omni.folder, config=config)
    thinker.save_pretrained(tmp_path)
    for file in omni.folder.glob("*"):
        if not (tmp_path / file.name).exists():
            shutil.copy(file, tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).model_type == f"{omni.name}_thinker"
    tensors = load_file(tmp_path / "model.safetensors")
    if any(key.startswith("thinker.") for key in tensors):  # as it was read, so it is written
        tensors = {key.removeprefix("thinker."): value for key, value in tensors.items()}
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert not any(key.startswith(("thinker.", "talker.")) for key in tensors)
    assert equal(weights_of(tmp_path), weights_of(omni.folder))


def test_a_key_of_the_thinker_that_belongs_to_none_of_its_parts_is_refused(omni, with_weights):
    folder = with_weights(omni.folder, lambda tensors: {**tensors, "thinker.nose.weight": torch.zeros(1)})
    refused(folder, r"unexpected \['thinker.nose.weight'\]")


def test_stacked_experts_are_the_same_as_single_ones(make_family, tmp_path):
    """The hub has a key for every expert, transformers 5 a stack of all."""
    omni = make_family("qwen3_omni_moe")
    folder = shutil.copytree(omni.folder, tmp_path / "copy")
    stacks, tensors = defaultdict(dict), {}
    for key, value in load_file(folder / "model.safetensors").items():
        if key.startswith("thinker.") and ".experts." in key:
            layer, _, rest = key.partition(".experts.")
            number, name, _ = rest.split(".")
            stacks[f"{layer}.experts"][int(number), name] = value
        else:
            tensors[key] = value
    assert len(stacks) == 2
    for layer, experts in stacks.items():
        gate, up, down = (
            torch.stack([experts[number, name] for number in range(4)])
            for name in ("gate_proj", "up_proj", "down_proj")
        )
        tensors[f"{layer}.gate_up_proj"], tensors[f"{layer}.down_proj"] = torch.cat([gate, up], dim=1), down
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert equal(weights_of(folder), weights_of(omni.folder))
