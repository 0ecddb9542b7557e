"""Shapes of backbones that come with the package: what a dry run counts with, without a hub."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from .settings import JudgeSettings

_SHAPES = Path(__file__).parents[1] / "configs" / "shapes"


def shapes_of(backbone: str) -> Path | None:
    """Folder with the configuration of a backbone of a shipped recipe, and a vocabulary of a few words. None = the
    package has none, or a folder has this name."""
    folder = _SHAPES / backbone.replace("/", "--")
    return folder if "/" in backbone and not Path(backbone).exists() and folder.is_dir() else None


def without_hub(settings: JudgeSettings) -> JudgeSettings:
    """The settings with the shapes that come with the package in place of a backbone on the hub."""
    shapes = shapes_of(settings.backbone)
    return settings if shapes is None else replace(settings, backbone=str(shapes), revision=None)
