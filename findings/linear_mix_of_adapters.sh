#!/usr/bin/env bash
# The "linear" mean of two equal LoRA adapters in PEFT is twice the adapter, and of two different ones as far off as it is large.
#
# One would guess: combination_type="linear" with weights 0.5 and 0.5 is the mean of the two updates B A: an ensemble of two judges in one
#   adapter; of an adapter with itself it is the adapter.
# What happens: the factors are added, not their products: (b1 B1 + b2 B2)(b1 A1 + b2 A2), b the root of the weight. With two equal
#   adapters that is twice the mean. For adapters from different seeds the mixed terms are an error as large as the mean itself (100 %).
#   "ties" and "dare_linear" at density 1 are no better (50 to 100 %), "svd" (the default) is off by half where ranks add up.
#   "cat" is exact, at the price of both ranks.
# Who meets it: whoever averages adapters of folds or seeds into one judge.
# Versions: peft 0.21.2, transformers 5.24.0, torch 2.13.0; found in a run, 2026-11-28.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 peft==0.21.2 transformers==5.24.0 numpy==2.4.6 2>/dev/null
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
import peft
import torch
import transformers

print("peft", peft.__version__, "transformers", transformers.__version__, "torch", torch.__version__)


def errors(equal):
    torch.manual_seed(0)
    base = torch.nn.Sequential(torch.nn.Linear(64, 64))
    settings = {"target_modules": ["0"], "r": 4, "init_lora_weights": False}
    model = peft.PeftModel(base, peft.LoraConfig(**settings), adapter_name="a")
    model.add_adapter("b", peft.LoraConfig(**settings))
    layer = model.base_model.model[0]
    if equal:
        for factors in (layer.lora_A, layer.lora_B):
            factors["b"].load_state_dict(factors["a"].state_dict())
    mean = (layer.get_delta_weight("a") + layer.get_delta_weight("b")) / 2
    found = {}
    for kind, more in {"linear": {}, "svd": {}, "ties": {"density": 1.0}, "dare_linear": {"density": 1.0}, "cat": {}}.items():
        model.base_model.add_weighted_adapter(["a", "b"], [0.5, 0.5], kind, combination_type=kind, **more)
        found[kind] = ((layer.get_delta_weight(kind) - mean).norm() / mean.norm()).item()
    return found


other, same = errors(equal=False), errors(equal=True)
print("error over the size of the mean, two adapters:", {kind: round(error, 3) for kind, error in other.items()})
print("of two equal ones:", {kind: round(error, 3) for kind, error in same.items()})
assert 0.8 < other["linear"] < 1.2 and other["svd"] > 0.4 and other["ties"] > 0.8 and other["cat"] < 1e-4, "mixed otherwise now"
assert abs(same["linear"] - 1) < 1e-4 and same["svd"] < 1e-4 and same["cat"] < 1e-4, "equal ones are mixed otherwise now"
print("as found")
PYTHON
