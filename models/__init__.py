"""The judge: backbones, what is trained on them, and how they are stored."""

from ..third_party import hush

hush()  # before PEFT is imported, in every process that has a judge
