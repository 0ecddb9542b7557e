"""What the files of judges and runs are called; loads nothing, so that a folder is known without torch."""

JUDGE_FILE = "judge.json"
CALIBRATION_FILE = "calibration.json"
CHECKPOINTS = "checkpoints"
BEST, LAST = "best.ckpt", "last.ckpt"
