"""The judge: backbones, what is trained on them, and how they are stored."""

# What the files of judges and runs are called, and the backbone that is shipped: here, so that they are known without
# torch
JUDGE_FILE = "judge.json"
CALIBRATION_FILE = "calibration.json"
CHECKPOINTS = "checkpoints"
CONFIG_FILE = "config.yaml"
BEST, LAST = "best.ckpt", "last.ckpt"
NANO = "nano"
