"""Reads recipes: one tree of settings, the same in YAML, on the command line and in Python."""

from __future__ import annotations

import math
import re
import textwrap
from argparse import ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace

from ..core.errors import UserError, nearest, shown
from ..core.numerals import is_plain
from ..core.yaml_files import ODD_NUMBER, check_yaml, read_yaml
from .ranges import check_ranges, is_not_finite, out_of_range
from .settings import LOGS, Recipe, find_recipe, nested

# Values of Trainer that this program sets itself
_OURS: set[str | int] = {
    "callbacks",
    "default_root_dir",
    "enable_model_summary",
    "num_sanity_val_steps",
    "plugins",
    "use_distributed_sampler",
}
_ELSEWHERE = {
    "default_root_dir": "run", "output_dir": "run", "out": "run", "epochs": "trainer.max_epochs",
    "lr": "optimizer.learning_rate", "data": "data.path", "dataset": "data.path", "batch": "data.batch_size",
    "model": "judge.backbone", "num_epochs": "trainer.max_epochs", "gpus": "trainer.devices",
    "logger": "trainer.logger",
}  # fmt: skip
"""Names in other programs, or for other commands -> settings."""
Config = str | Path | Sequence[str] | Mapping[str, Any]
"""A recipe: its name or file, a tree of settings, or words of a command line."""
_WIDTH = 100  # of a comment
_HERE = {"WandbLogger": ".", "MLFlowLogger": "./mlruns"}  # what `save_dir` is by default (Lightning 2.6.6)
_OF_DRY_RUN = ("clip_seconds", "gpu_gib")
_NOT_KEPT = ("dry_run", "json", *_OF_DRY_RUN)


class RecipeParser:
    """Reads recipes: files, words of a command line, or a tree in Python."""

    def __init__(self, trainer: bool = True) -> None:
        """Build the parser. Without `trainer` neither Lightning nor torch is loaded, and what stands below `trainer` is
        taken as it is.
        """
        self.parser = ArgumentParser(
            prog="empathy-judge train",
            description="Train a judge on rated pairs. Recipes by name: empathy-judge recipes",
            epilog="example: empathy-judge train --config nano --data.path my_data --run runs/first",
            exit_on_error=False,
        )
        self.parser.add_argument(
            "--config",
            action="config",
            help="YAML file or name of a recipe, repeatable; a later file overrides an earlier one, and arguments "
            "override files",
        )
        self.parser.add_class_arguments(Recipe, skip={"trainer"})
        self._whole = trainer
        if trainer:
            _add_trainer(self.parser)
        else:
            self.parser.add_argument(
                "--trainer", type=dict[str, Any] | str, default={},  # a file
                help="arguments of lightning.Trainer, as in --trainer.max_epochs 3: see train --trainer.help",
            )  # fmt: skip
        for action in self.parser._actions:
            if action.dest in _NOT_KEPT:  # no keys of recipes: spelled as options of other commands are
                action.option_strings = [f"--{action.dest.replace('_', '-')}"]
        self.named = frozenset[str]()
        """Settings that the words of the last `parse` give one by one: they count before any file."""
        defaults = self.parser.get_defaults()
        self._names = [name for name in defaults.keys() if name != "config"]  # noqa: SIM118 a namespace of namespaces

    def parse(self, config: Config, values: Mapping[str, str] | None = None) -> Namespace:
        """Parse and check all values of a run.

        Args:
            config: Name or file of a recipe; the tree that a YAML file would hold, whose key `config` may name recipes
                that it is laid over; or words of a command line.
            values: Dotted name -> value, laid over it.

        Raises:
            UserError: In one line, if a file or a setting does not exist or a value is not one of its kind.
        """
        values = values or {}
        self.named = frozenset(values)
        if isinstance(config, str | Path):
            config = ["--config", str(config)]
        try:
            if isinstance(config, Mapping):
                tree = self._laid_over(self._tree(config), nested(values))
                parsed, typed = self.parser.parse_object(tree), [("", tree)]
            else:
                given = [word for name, value in values.items() for word in (f"--{name}", value)]
                words, typed = self._words([*config, *given])
                parsed = self.parser.parse_args(words)
        except ArgumentError as error:
            raise UserError(_in_one_line(error.message)) from None
        for where, tree in typed:
            _check_numbers(tree, parsed, where)
        check_ranges(parsed, "")
        for name in _OF_DRY_RUN if not parsed.dry_run else ():
            if parsed[name] is not None:
                raise UserError(f"--{name.replace('_', '-')} {parsed[name]:g}; expected with --dry-run")
        return parsed

    def _tree(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """A tree in Python, laid over the recipes that it names."""
        settings = {**config}
        files = settings.pop("config", ())
        tree: dict[str, Any] = {}
        # A later recipe is laid over an earlier one, and the tree itself over all of them
        for name in [files] if isinstance(files, str | Path) else files:
            tree = self._laid_over(tree, self._read(find_recipe(str(name))))
        self._check_tree(settings, "recipe", "")
        return self._laid_over(tree, settings)

    def _laid_over(self, tree: Mapping[str, Any], over: Mapping[str, Any], group: str = "") -> dict[str, Any]:
        """A tree with another laid over: groups of settings are merged, values replaced."""
        merged = {**tree}
        for key, value in over.items():
            below = merged.get(key)
            if isinstance(value, Mapping) and isinstance(below, Mapping) and self._is_group(f"{group}{key}"):
                value = self._laid_over(below, value, f"{group}{key}.")
            merged[key] = value
        return merged

    def check(self, parsed: Namespace) -> None:
        """Check what values of a run say together, as far as this takes neither Lightning nor torch.

        Raises:
            UserError: If they contradict each other, or one is out of its range.
        """
        self.parser.instantiate(parsed)

    def recipe(self, parsed: Namespace) -> Recipe:
        """Build the objects of a recipe from its values.

        Raises:
            UserError: If the package of a logger or of a strategy is not installed, or too old.
        """
        try:
            built = self.parser.instantiate(_logs_in_run(parsed))
        except ValueError as error:  # of all kinds of values that jsonargparse tried, with Lightning's words for ours
            if missing := re.search(r"pip install -U '?([\w-]+)", str(error)):
                name = missing[1]
                extra = f"'empathy-judge[{name}]'" if name in ("wandb", "deepspeed") else name
                raise UserError(f"trainer: {name} is not installed, or too old; pip install {extra}") from None
            raise
        values = {name: getattr(built, name) for name in Recipe.__dataclass_fields__}
        recipe = Recipe(**{**values, "trainer": built.trainer.as_dict()})
        if recipe.cache.what != "auto":
            return recipe
        # A probe has no adapters, and neither has the first step of `auto`; its second step is a recipe of method lora
        trains_tower = recipe.method == "lora" and recipe.judge.lora.trains_tower
        changes = trains_tower or recipe.data.augmentation.active
        sharded = getattr(recipe.trainer["strategy"], "shards_weights", False)
        return replace(recipe, cache=replace(recipe.cache, what="none" if changes or sharded else "audio"))

    def text(self, parsed: Namespace) -> str:
        """The values as the YAML of `config.yaml`, which can be run again."""
        settings = parsed.clone(with_meta=False)
        # What belongs to one call, such as a dry run, is no part of the recipe
        for name in _NOT_KEPT:
            settings.pop(name, None)
        return self.parser.dump(settings, skip_validation=True)

    def with_help(self, text: str) -> str:
        """A recipe as text, with the help of each setting as a comment above its key; values stay as they are."""
        helps = {action.dest: action.help for action in self.parser._actions if not self._is_group(action.dest)}
        lines: list[str] = []
        above: list[tuple[int, str]] = []  # indentation and key of the groups that a line stands in
        for line in text.splitlines():
            if key := re.match(r"( *)(\w+):", line):
                # A line that is indented as much or less ends the groups before it
                above = [*(group for group in above if group[0] < len(key[1])), (len(key[1]), key[2])]
                about = helps.get(".".join(name for _, name in above)) or ""
                width = _WIDTH - len(key[1])
                lines += [f"{key[1]}# {part}" for part in textwrap.wrap(" ".join(about.split()), width)]
            lines.append(line)
        return "\n".join(lines) + "\n"

    def _words(self, arguments: Sequence[str]) -> tuple[list[str], list[tuple[str, Mapping[str, Any]]]]:
        """Check the words and put files before single values, so that a value counts wherever it stands.

        Returns:
            The words; and what files and words say, as trees, each with the head of a message about it.
        """
        files, values = [], []
        typed: list[tuple[str, Mapping[str, Any]]] = []
        waiting = list(arguments)
        while waiting:
            word = waiting.pop(0)
            name, equals, value = word.partition("=")
            if name == "--config":
                if not equals and not waiting:
                    raise UserError("--config without a value; expected a YAML file or the name of a recipe")
                path = find_recipe(value if equals else waiting.pop(0))
                typed.append((f"{path}: ", self._read(path)))
                files += ["--config", str(path)]
            elif word.startswith("--") and word not in ("--help", "--print_config"):
                key = name[2:].replace("-", "_")
                self._check_name(key, name)
                self.named |= {key}
                given = value if equals else next(iter(waiting), "")
                if key in _ELSEWHERE and not given.startswith("{") and not Path(given).is_file():  # a group, no tree
                    raise UserError(f"{name} {given}: expected --{_ELSEWHERE[key]} {given}".rstrip())
                # Flags as other commands have them stand alone, and jsonargparse wants a value
                bare = key in ("dry_run", "json") and not equals and waiting[:1] not in (["true"], ["false"])
                values.append(f"--{key}" + ("=true" if bare else f"{equals}{value}"))
                if not bare and (equals or waiting):
                    typed.append(("", nested({key: value if equals else waiting[0]})))
            else:
                values.append(word)
        return files + values, typed

    def _read(self, path: Path) -> dict[str, Any]:
        """Read the tree in a file and check its names."""
        tree = read_yaml(path)
        if not isinstance(tree, Mapping):
            raise UserError(f"{path}: expected settings and their values, as in a recipe")
        self._check_tree(tree, str(path))
        return dict(tree)

    def _check_tree(self, tree: Mapping[str, Any], where: str, group: str = "") -> None:
        for key, value in tree.items():
            name = f"{group}{key}"
            if isinstance(value, Mapping) and self._is_group(name):
                self._check_tree(value, where, f"{name}.")
            else:
                self._check_name(name, where)
                of_one = name in self._names and self.parser.get_default(name) is not None
                if value is None and (of_one or self._is_group(name)):  # jsonargparse accepts it
                    raise UserError(f"{where}: {name} without a value; expected one, or no such line")
                if self._is_group(name) and not isinstance(value, str):  # of a file jsonargparse reads the tree
                    raise UserError(f"{where}: {name} {shown(value)}; expected settings and their values")

    def _is_group(self, name: str) -> bool:
        return any(known.startswith(f"{name}.") for known in self._names)

    def _check_name(self, name: str, where: str) -> None:
        """Refuse what is no setting; below some, such as a logger, there are further ones."""
        ours = name.removeprefix("trainer.") in _OURS
        if not ours and (self._is_group(name) or any(f"{name}.".startswith(f"{known}.") for known in self._names)):
            return
        at = "" if where == f"--{name}" else f"{where}: "
        near = self._nearest(name, ("config",) if where.startswith("--") else ())
        if near is None and not ours and not self._whole:  # it may be an argument of the Trainer
            RecipeParser()._check_name(name, where)
        hint = f" (did you mean {near}?)" if near is not None else " that you can set" if ours else ""
        raise UserError(f"{at}there is no setting {name}{hint}; see empathy-judge train --help")

    def _nearest(self, name: str, more: Sequence[str]) -> str | None:
        """The setting that a wrong name most likely stands for; None if none is like it.

        Last parts are compared, in the same group first: what names of one group share says nothing.
        """
        group, _, end = name.rpartition(".")
        if end in _ELSEWHERE:
            return _ELSEWHERE[end]
        for among in ([known for known in self._names if known.rpartition(".")[0] == group], [*self._names, *more]):
            ends = {known.rpartition(".")[2]: known for known in reversed(among)}
            if (near := nearest(end, ends)) is not None:
                return ends[near]
        return None


def trainer_help() -> str:
    """The arguments of Lightning's Trainer."""
    parser = ArgumentParser(prog="empathy-judge train", description="Arguments of lightning.Trainer.", usage="%(prog)s")
    _add_trainer(parser)
    return parser.format_help()


def name_part(parsed: Namespace, whole: str, part: str) -> None:
    """Give the loggers of one of several runs names of its own, so that none goes on with the log of another.

    Args:
        parsed: The values of the run, which are changed.
        whole: Name of all runs together.
        part: Name of this one among them; empty = it is the result.
    """
    for kind, logger in _loggers(parsed):
        own = logger.init_args
        for key in ("version", "id"):  # a number or name that a recipe gives would be that of every part
            if part and own.get(key) is not None:
                own[key] = f"{own[key]}-{part.replace('/', '-')}"
        if kind == "WandbLogger":
            more = logger.get("dict_kwargs") or {}
            group = more.get("group") or own.get("name") or whole
            own.name = "/".join(filter(None, (own.get("name") or whole, part)))
            logger.dict_kwargs = {**more, "group": group}


def _loggers(parsed: Namespace) -> Iterator[tuple[str, Namespace]]:
    """The loggers of a recipe that have settings, each with the name of its class."""
    loggers = parsed.trainer.logger
    for logger in loggers if isinstance(loggers, list) else [loggers]:
        if isinstance(logger, Namespace) and "init_args" in logger:
            yield logger.class_path.rpartition(".")[2], logger


def _logs_in_run(parsed: Namespace) -> Namespace:
    """The values of a run whose loggers write below its folder, as its table does, and not where the command is run."""
    parsed = parsed.clone()
    for kind, logger in _loggers(parsed):
        if parsed.run and kind in _HERE and logger.init_args.save_dir == _HERE[kind]:
            logger.init_args.save_dir = str(Path(parsed.run) / LOGS)
    return parsed


def _add_trainer(parser: ArgumentParser) -> None:
    import lightning as L

    parser.add_class_arguments(L.Trainer, "trainer", skip=_OURS, instantiate=False)


def _check_numbers(typed: Any, found: Any, where: str, name: str = "") -> None:
    """Refuse a text that stands for a number and is not one for everybody: jsonargparse makes 12 of 012, 90 of 1:30.

    `typed` is what somebody wrote, `found` the values that were made of it; `where` and `name` head the message.
    """
    if isinstance(typed, Mapping):
        for key, value in typed.items():
            below = found.get(key) if isinstance(found, Mapping | Namespace) else None
            _check_numbers(value, below, where, f"{name}.{key}" if name else str(key))
    elif isinstance(typed, list | tuple) and isinstance(found, list | tuple):
        for value, below in zip(typed, found, strict=False):
            _check_numbers(value, below, where, name)
    elif isinstance(typed, str) and isinstance(found, int | float) and not isinstance(found, bool):
        # a word of a file, such as auto, over which a number was laid, did not become this number
        is_number = re.match(r"[-+.]*\d", typed.strip())
        if is_number and math.isfinite(found) and not is_plain(typed.strip()):
            raise UserError(f"{where}{name} {shown(typed)} {ODD_NUMBER}")
    elif isinstance(typed, str) and isinstance(found, list | tuple | Mapping | Namespace):
        try:
            if Path(typed).is_file():
                read_yaml(Path(typed))
            else:
                check_yaml(typed, as_typed=True)
        except (yaml.YAMLError, ValueError) as error:
            raise UserError(f"{where}{name} {shown(typed)}: {' '.join(str(error).split())}") from None


def _in_one_line(message: str) -> str:
    """Shorten jsonargparse's message about a wrong value, which it spreads over a page, or about a missing one."""
    if missing := re.search(r"arguments are required: ([\w.]+)", message):
        return f"no --{missing[1]}; expected it here or in a recipe; see empathy-judge train --help"
    name = re.search(r'Parser key "([^"]+)"', message)
    if name and "Unable to load config" in message:  # one value for a group of settings
        return f"{name[1]}: expected settings and their values"
    value = re.search(r"(?:Given value|Got value): (.*)", message)
    kinds = [_kind(kind) for kind in re.findall(r"Expected an? (.+?)(?:\. Got value.*)?$", message, re.MULTILINE)]
    if name and value and (problem := out_of_range(name[1], value[1])):
        return problem
    if name and value and "float" in kinds and is_not_finite(value[1]):
        return f"{name[1]} {value[1]}; expected a finite number"
    if name and value and kinds:
        return f"{name[1]} {value[1]}; expected {' or '.join(dict.fromkeys(kinds))}"
    return " ".join(message.split())


def _kind(text: str) -> str:
    """Describe a type in words."""
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    return text.replace("typing.", "").replace("NoneType", "null").removeprefix("Literal").strip("[]").replace("'", "")
