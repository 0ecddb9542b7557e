"""Memory to load the thinker out of a whole Qwen2.5-Omni checkpoint, against the official class for the whole.

A checkpoint of random weights (3 GB) is written in the hub's layout: thinker, talker and vocoder, bfloat16, in shards.
Each side loads it in a process of its own and then reads every weight that it holds once, as moving it to a GPU would:
weights that are only mapped from the file would not count otherwise. Peaks of resident memory are the kernel's, above
what the process had after its imports. In another type than that of the file, weights are copies and their pages in the
file, which the system can drop, stay mapped until all are read. Run: `python benchmarks/loading.py`
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from empathy_judge.models.backbones import load_backbone, qwen_omni
from empathy_judge.models.backbones.base import Checkpoint
from materials import hub_name, write_weights
from timing import memory, reset_peak
from transformers import (
    Qwen2_5OmniConfig,
    Qwen2_5OmniForConditionalGeneration,
    Qwen2Tokenizer,
    WhisperFeatureExtractor,
)

LIMIT = 1.2
"""Largest ratio of peak memory to the thinker's own bytes that passes, in the type of the file."""
SHARD = 500_000_000
_LANGUAGE_MODEL = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
}  # fmt: skip
CONFIG = Qwen2_5OmniConfig(
    thinker_config={
        "audio_config": {
            "d_model": 768, "encoder_layers": 12, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072,
            "output_dim": 1024,
        },
        "vision_config": {"depth": 8, "hidden_size": 768, "intermediate_size": 2048, "out_hidden_size": 1024},
        "text_config": _LANGUAGE_MODEL,
    },
    talker_config={"embedding_size": 1024, "head_dim": 64, **_LANGUAGE_MODEL},
)  # fmt: skip


def main() -> None:
    """Print both sides; exit with 1 if the thinker takes too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(*options.measure)))
        return
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoint(Path(folder))
        print(f"checkpoint: {size / 1e6:.0f} MB; of it the listening half of the thinker:", end=" ", flush=True)
        sides = {}
        for side in ("thinker", "thinker at half depth", "thinker in float32", "whole"):
            command = [sys.executable, __file__, "--measure", side, folder]
            ran = subprocess.run(command, check=True, capture_output=True, text=True)
            sides[side] = json.loads(ran.stdout.splitlines()[-1])
    stored, converted = sides["thinker"]["weights"], sides["thinker in float32"]["weights"]
    print(f"{stored / 1e6:.0f} MB")
    for (side, result), base in zip(sides.items(), (stored, stored, converted, stored), strict=True):
        print(
            f"{side}: {result['weights'] / 1e6:.0f} MB in {result['seconds']:.1f} s; peak above imports "
            f"{result['peak'] / 1e6:.0f} MB, {result['peak'] / base:.2f} times the thinker's bytes"
        )
    sys.exit(0 if sides["thinker"]["peak"] <= LIMIT * stored else 1)


def write_checkpoint(folder: Path) -> int:
    """Write random weights under the names and in the shapes of the whole model; returns their bytes."""
    with torch.device("meta"):
        shapes = Qwen2_5OmniForConditionalGeneration(CONFIG).state_dict()
    weights = {hub_name(key): tensor.shape for key, tensor in shapes.items()}
    noise = torch.randn(max(shape.numel() for shape in weights.values())).mul_(0.02).bfloat16()

    def draw(key: str) -> torch.Tensor:
        return noise[: weights[key].numel()].reshape(weights[key]).clone()

    parameters = write_weights(weights, draw, folder, SHARD)
    CONFIG.save_pretrained(folder)
    torch.save({}, folder / "spk_dict.pt")  # the official class asks for speakers
    tokenizer = Qwen2Tokenizer(extra_special_tokens={"audio_token": "<|AUDIO|>"})
    tokenizer.chat_template = "{{ messages }}"
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=128, chunk_length=300).save_pretrained(folder)
    return 2 * parameters


def measure(side: str, folder: str) -> dict[str, float]:
    """Load in this process; bytes above what it has now, and seconds."""
    load = {
        "thinker": lambda: load_backbone(Checkpoint(folder, dtype=torch.bfloat16)).network,
        "thinker at half depth": lambda: load_backbone(Checkpoint(folder, dtype=torch.bfloat16, depth=0.5)).network,
        "thinker in float32": lambda: load_backbone(Checkpoint(folder, dtype=torch.float32)).network,
        "whole": lambda: Qwen2_5OmniForConditionalGeneration.from_pretrained(folder, dtype=torch.bfloat16),
    }[side]
    assert qwen_omni  # imported before the baseline
    reset_peak(torch.device("cpu"))
    before, start = memory("VmRSS"), time.perf_counter()
    network = load()
    seconds = time.perf_counter() - start
    for weight in network.parameters():
        weight.sum()
    size = sum(weight.nbytes for weight in network.parameters())
    return {"weights": size, "peak": memory("VmHWM") - before, "seconds": seconds}


if __name__ == "__main__":
    main()
