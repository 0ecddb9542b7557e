"""The judge: backbones, what is trained on them, and how they are stored."""

from ..third_party import hush

hush()  # before PEFT is imported, in every process that has a judge

# What the files of judges and runs are called, and the backbone that is shipped: here, so that they are known without
# torch
JUDGE_FILE = "judge.json"
CALIBRATION_FILE = "calibration.json"
CHECKPOINTS = "checkpoints"
CONFIG_FILE = "config.yaml"
BEST, LAST = "best.ckpt", "last.ckpt"
NANO = "nano"
