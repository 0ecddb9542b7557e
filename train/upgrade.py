"""`empathy-judge upgrade`: what earlier versions wrote, in the names of today: recipes, sweep files, runs, judges."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ..data_modules.errors import UserError
from ..data_modules.folders import replace_file, replace_text, resolve_inside
from ..data_modules.written import is_of, write_files
from ..data_modules.yaml_files import read_yaml
from ..models import CHECKPOINTS, CONFIG_FILE, JUDGE_FILE
from ..models.description import is_old, parse, read_json, upgraded
from ..models.weight_files import check_hash, file_hash, read_checkpoint
from .settings import nested, new_name


def upgrade(path: Path) -> list[str]:
    """Convert a recipe or a sweep file (YAML), the folder of a run, or that of a judge in place, each file as a whole
    or not at all.

    Returns:
        What was changed, one line for each change; empty if all is up to date.

    Raises:
        UserError: If it is none of these, or cannot be read.
    """
    if path.is_file():
        return _upgrade_yaml(path)
    if (path / JUDGE_FILE).is_file():
        return _upgrade_judge(path)
    if (path / CONFIG_FILE).is_file() or (path / CHECKPOINTS).is_dir():
        config = path / CONFIG_FILE
        changed = _upgrade_yaml(config) if config.is_file() else []
        for file in sorted((path / CHECKPOINTS).glob("*.ckpt")):
            changed += _upgrade_checkpoint(file)
        return changed
    raise UserError(f"{path}: expected a recipe or sweep file (YAML), a run folder or a judge folder")


def _upgrade_judge(folder: Path) -> list[str]:
    file, changed = folder / JUDGE_FILE, []
    description = read_json(file)
    before = json.dumps(description)
    if is_old(description):
        version, description = description["schema_version"], upgraded(description)
        changed.append(f"{file}: schema_version {version} -> {description['schema_version']}, settings as of today")
    members = [f"{name}/{JUDGE_FILE}" for name in parse(file, description).members or ()]
    hashes = description.get("sha256", {})
    # checked before anything is written: the folders of an ensemble are named by a file from outside
    for member in members:
        resolve_inside(folder.resolve(), member, f"{file}: members")
        if member in hashes and is_old(read_json(folder / member)):
            check_hash(folder / member, hashes[member])
    for member in members:
        converted = _upgrade_judge((folder / member).parent)
        if member in hashes and hashes[member] != (now := file_hash(folder / member)):
            hashes[member] = now  # the ensemble knows its files by their hashes
            # one that was converted before, as where a conversion was killed, or exchanged: nobody can tell
            converted = converted or [f"{file}: hash of {member} as it is now"]
        changed += converted
    if json.dumps(description) != before:
        replace_text(file, json.dumps(description, indent=2, allow_nan=False) + "\n")
    return changed


def _upgrade_checkpoint(file: Path) -> list[str]:
    import torch

    checkpoint = read_checkpoint(file)
    description = checkpoint.get("description")
    if not is_old(description):
        return []
    checkpoint["description"] = upgraded(description)
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    replace_file(file, lambda temporary: torch.save(checkpoint, temporary))
    os.utime(file, ns=times)  # a run goes on from its newest checkpoint
    return [f"{file}: description of the judge in today's names"]


def _upgrade_yaml(path: Path) -> list[str]:
    read_yaml(path)  # refuses what is broken
    text = path.read_bytes().decode("utf-8")
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise UserError(f"{path}: expected a recipe, a sweep file, a run folder or a judge folder")
    blocks = {key.value: (key, value) for key, value in root.value}
    if "search" in blocks:
        result, changed = _with_new_names(text, [blocks[name][1] for name in ("overrides", "search") if name in blocks])
    else:
        try:
            result, changed = _with_new_tree(text, root)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    if changed and is_of("train", path):  # of a run, which goes on
        write_files("train", path.parent, {path.name: result.encode()})
    elif changed:
        replace_text(path, result)
    return [f"{path}: {old} -> {new}" for old, new in changed]


Changed = list[tuple[str, str]]


def _with_new_names(text: str, groups: list[yaml.Node]) -> tuple[str, Changed]:
    """A sweep file, whose settings are dotted names, with other names and nothing else changed."""
    keys = [key for group in groups if isinstance(group, yaml.MappingNode) for key, _ in group.value]
    changed = []
    for key in sorted(keys, key=lambda key: -key.start_mark.index):  # from the end: earlier positions stay valid
        if (new := new_name(key.value)) is not None:
            text = text[: key.start_mark.index] + new + text[key.end_mark.index :]
            changed.insert(0, (key.value, new))
    return text, changed


def _with_new_tree(text: str, root: yaml.MappingNode) -> tuple[str, Changed]:
    """A recipe with `model` taken apart; comments stay with the lines that they follow."""
    entry = next((pair for pair in root.value if pair[0].value == "model"), None)
    if entry is None or not isinstance(entry[1], yaml.MappingNode):
        return text, []
    key, model = entry
    lines = text.splitlines()
    after = [node.start_mark.line for node, _ in root.value if node.start_mark.line > key.start_mark.line]
    end = min(after, default=len(lines))
    settings: dict[str, list[str]] = {}  # dotted name of today -> its lines
    changed: Changed = []
    starts = [name.start_mark.line for name, _ in model.value] + [end]
    for number, (name, value) in enumerate(model.value):
        new = new_name(f"model.{name.value}")
        if new is None:
            raise UserError(f"there was never a setting model.{name.value}; expected a recipe that could be trained")
        changed.append((f"model.{name.value}", new))
        last = new.rpartition(".")[2]
        if model.flow_style:
            plain = yaml.safe_load(yaml.serialize(value))
            block = yaml.safe_dump({last: plain}, sort_keys=False, allow_unicode=True).splitlines()
        else:
            indent = name.start_mark.column
            below = lines[starts[number] : starts[number + 1]]
            block = [line[indent:] if line[:indent].isspace() else line for line in below]
            block[0] = last + block[0][name.end_mark.column - indent :]
        settings[new] = block
    # groups before top-level settings; a key that the file has already would be a duplicate
    tree = dict(sorted(nested(settings).items(), key=lambda item: isinstance(item[1], list)))
    if (duplicate := next((node.value for node, _ in root.value if node.value in tree), None)) is not None:
        raise UserError(f"{duplicate} stands beside model; expected a file of one version")
    merged = [*lines[: key.start_mark.line], *_written(tree), *lines[end:]]
    result = "\n".join(merged) + "\n"
    # the text is changed by lines, and YAML can be written in ways that have none
    if not _means_the_same(text, result):
        raise UserError("model cannot be converted as it is written; expected a setting a line, without ? or ...")
    return result, changed


def _means_the_same(old: str, new: str) -> bool:
    """Whether a converted recipe has the settings of the old one, under their new names."""
    before = yaml.safe_load(old)
    named = ((new_name(f"model.{name}"), value) for name, value in before.pop("model").items())
    settings = {name: value for name, value in named if name is not None}
    try:
        return yaml.safe_load(new) == {**before, **nested(settings)}
    except yaml.YAMLError:
        return False


def _written(tree: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, content in tree.items():
        if isinstance(content, list):
            yield from (f"{indent}{line}".rstrip() for line in content)
        else:
            yield f"{indent}{name}:"
            yield from _written(content, f"{indent}  ")
