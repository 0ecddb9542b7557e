"""The recipes that come with the package: what each is and needs, by the comments at its head. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..data_modules.errors import UserError, nearest
from ..data_modules.folders import read_yaml

CONFIGS = Path(__file__).parents[1] / "configs"
_NEEDS = "# needs: "


@dataclass(frozen=True)
class ShippedRecipe:
    """A recipe, or a sweep file, that comes with the package."""

    name: str  # to be given to ``--config``
    about: str  # what it is
    backbone: str | None  # name or hub id; None where the file is laid over another recipe
    needs: str  # GPUs and memory; figures are those of ``train --dry-run``, counted from shapes, not measured
    command: str  # that runs it


def shipped_recipes() -> list[ShippedRecipe]:
    """All recipes that come with the package, sorted by name."""
    recipes = []
    for path in sorted(CONFIGS.glob("*.yaml")):
        lines = path.read_text(encoding="utf-8").splitlines()
        needs = next(line.removeprefix(_NEEDS) for line in lines if line.startswith(_NEEDS))
        backbone = read_yaml(path).get("judge", {}).get("backbone")
        command, about = (line.removeprefix("# ") for line in lines[:2])
        recipes.append(ShippedRecipe(path.stem, about, backbone, needs, command))
    return recipes


def find_recipe(name: str, option: str = "--config") -> Path:
    """The YAML file of this path or, of a recipe that comes with the package, of this name; `option` is where the user
    wrote it.

    Raises:
        UserError: If there is neither.
    """
    path, shipped = Path(name), CONFIGS / f"{name}.yaml"
    if path.is_file():
        return path
    if path.name == name and shipped.is_file():
        return shipped
    names = sorted(path.stem for path in CONFIGS.glob("*.yaml"))
    if (near := nearest(name, names)) is not None:
        raise UserError(f"{option} {name}: no such file or recipe (did you mean {near}?); see empathy-judge recipes")
    raise UserError(f"{option} {name}: no such file or recipe; expected a YAML file or one of {', '.join(names)}")
