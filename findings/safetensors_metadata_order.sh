#!/usr/bin/env bash
# Two files that safetensors writes of equal tensors and equal metadata may differ in their bytes.
#
# One would guess: the format sorts tensors by type and name, so equal content gives equal bytes, and the SHA-256 of a file can
#   stand for its content (caches, reproducible builds, checks of a release).
# What happens: metadata is kept in a hash map that is ordered anew in each process and each call. With two or more keys the
#   header has them in one order or another; with one key, or none, bytes are equal.
# Who meets it: whoever compares checkpoints by hash. transformers writes one key ({"format": "pt"}), which hides it.
# Versions: safetensors 0.8.0, numpy 2.4.6; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet safetensors==0.8.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" - <<'PYTHON'
import hashlib
import numpy as np
import safetensors
from safetensors.numpy import save

print("safetensors", safetensors.__version__)
tensors = {"a": np.ones(3, np.float32), "b": np.zeros(2, np.float32)}
kinds = {}
for name, metadata in {"none": None, "one key": {"x": "1"}, "two keys": {"x": "1", "y": "2"}, "four keys": dict(zip("wxyz", "1234"))}.items():
    kinds[name] = {hashlib.sha256(save(tensors, metadata)).hexdigest() for _ in range(200)}
    print(f"metadata: {name:9} 200 files of equal content have {len(kinds[name])} different hashes")
assert len(kinds["none"]) == len(kinds["one key"]) == 1, "bytes differ without metadata, too"
assert len(kinds["two keys"]) > 1 and len(kinds["four keys"]) > 2, "the order of metadata is fixed now"
print("as found")
PYTHON
