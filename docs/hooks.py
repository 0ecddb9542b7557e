"""What `make docs` adds: commands, configuration, fields of reports, prices, measures of delivery, the Python API."""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "build" / "package" / "empathy_judge"
MARK = "<!-- commands -->"
CONFIGURATION = "<!-- configuration -->"
REPORT_FIELDS = "<!-- fields of reports -->"
PRICES = "<!-- prices -->"
DELIVERY = "<!-- measures of delivery: {} -->"
_NO_CODE = {"benchmarks", "build", "docs", "examples", "tests"}


def on_pre_build(config: Any) -> None:
    """Copy the package to where its folder has its name: in a checkout that folder may be called anything."""
    shutil.rmtree(PACKAGE, ignore_errors=True)
    PACKAGE.mkdir(parents=True)
    for entry in ROOT.iterdir():
        if entry.suffix == ".py":
            shutil.copy(entry, PACKAGE)
        elif entry.name not in _NO_CODE and (entry / "__init__.py").is_file():
            shutil.copytree(entry, PACKAGE / entry.name, ignore=shutil.ignore_patterns("__pycache__"))


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put commands, configuration, fields of reports, prices and measures of delivery where a page has their mark."""
    for mark, made in (
        (MARK, commands_page),
        (CONFIGURATION, configuration_page),
        (REPORT_FIELDS, report_fields),
        (PRICES, prices_table),
        (DELIVERY.format("clip"), lambda: delivery_table("clip")),
        (DELIVERY.format("frames"), lambda: delivery_table("frames")),
    ):
        if mark in markdown:
            markdown = markdown.replace(mark, made())
    return markdown


def delivery_table(of: Literal["clip", "frames"]) -> str:
    """The measures of delivery of a whole clip, or of its short frames, as Markdown."""
    from empathy_judge.audio.functionals import FUNCTIONALS, SPECTRAL

    rows = [_table_row(name, "", what) for name, what in (FUNCTIONALS if of == "clip" else SPECTRAL).items()]
    return "\n".join(["| measure | what it is |", "|---|---|", *rows])


def prices_table() -> str:
    """What vendors ask for their models, and when they retire them, as Markdown."""
    from empathy_judge.eval.judges.prompted.prices import AS_OF, PRICES, RETIRED

    rows = [
        f"| `{model}` | {price.text_in:g} | {price.audio_in:g} | {price.out:g} | {RETIRED.get(model, '')} |"
        for model, price in PRICES.items()
    ]
    return "\n".join([f"| {AS_OF} | text in | audio in | out | retires |", "|---|---|---|---|---|", *rows])


def report_fields() -> str:
    """Every field of every report, from the types that the reports are made of, as Markdown."""
    from empathy_judge.eval import inspection
    from empathy_judge.eval.report import dataset, leaderboard, others

    reports = (
        dataset.Report, dataset.ComparisonReport, others.TableReport, others.PlanReport,
        leaderboard.LeaderboardReport, others.StressReport, others.ChallengeReport, inspection.InspectionReport,
    )  # fmt: skip
    parts: list[str] = []
    described = {report.__name__ for report in reports}
    texts = _field_texts()

    def describe(schema: dict[str, Any], kinds: dict[str, Any]) -> None:
        rows = []
        for field, own in schema["properties"].items():
            meaning = texts[schema["title"]].get(field) or kinds[own["$ref"].rpartition("/")[2]]["description"]
            rows.append(f"| `{field}` | {_kind(own)} | {_cell(meaning)} |")
        parts.append(_cell(schema["description"]))
        parts.append("\n".join(["| field | value | meaning |", "|---|---|---|", *rows]))
        for kind in dict.fromkeys(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema["properties"]))):
            if kind not in described:
                described.add(kind)
                parts.append(f"### {kind}")
                describe(kinds[kind], kinds)

    for report in reports:
        schema = report.model_json_schema(mode="serialization")
        parts.append(f"## {report.__name__}")
        describe(schema, schema["$defs"])
    return "\n\n".join(parts) + "\n"


def _field_texts() -> dict[str, dict[str, str]]:
    """Class -> field -> the text below it, inherited ones too. Pydantic would read them each time a report is imported,
    which takes as long as pandas."""
    texts: dict[str, dict[str, str]] = {}
    classes = [
        node
        for folder in ("eval/report", "eval/statistics", "eval")
        for file in sorted((ROOT / folder).glob("*.py"))
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    ]
    bases = {node.name: [ast.unparse(base) for base in node.bases] for node in classes}
    for node in classes:
        for field, text in itertools.pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts.setdefault(node.name, {})[ast.unparse(field.target)] = str(text.value.value)

    def with_inherited(name: str) -> dict[str, str]:
        inherited = [with_inherited(base) for base in bases.get(name, ())]
        return {field: text for each in (*reversed(inherited), texts.get(name, {})) for field, text in each.items()}

    return {name: with_inherited(name) for name in bases}


def _kind(schema: dict[str, Any]) -> str:
    """The values of a field in words, with a link to the type of its parts."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if values := schema.get("enum") or [schema[key] for key in ("const",) if key in schema]:
        return ", ".join(f"`{value}`" for value in values)
    if schema.get("type") == "array":
        parts = schema.get("prefixItems")
        return f"[{', '.join(map(_kind, parts))}]" if parts else f"list of {_kind(schema['items'])}"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        return f"map of {_kind(values)}" if isinstance(values, dict) else "any object"
    ends = "".join(
        f" {word} {schema[key]:g}" for key, word in (("minimum", "from"), ("maximum", "to")) if key in schema
    )
    return {"string": "text", "boolean": "true or false"}.get(kind := schema.get("type", "anything"), kind) + ends


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("None", "null").replace("``", "`").replace("|", "\\|")


def commands_page() -> str:
    """Every command with its options, as Markdown."""
    from empathy_judge.cli import COMMANDS
    from empathy_judge.commands.options import parser_of

    sections = []
    for name, command in COMMANDS.items():
        if name == "import":
            sections.append(_import_section())
        elif name == "train":
            sections.append(_train_section())
        else:
            sections.append("\n".join([f"## {name}", "", *_about(parser_of(name, command))]))
    return "\n\n".join(sections)


def _about(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Description, options and example of a parser."""
    yield from (_markdown(parser.description or ""), "")
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if not actions:
            continue
        if group.title not in ("positional arguments", "options"):
            yield from (f"**{group.title}**", "")
        yield from (f"| {'option' if actions[0].option_strings else 'argument'} | meaning |", "|---|---|")
        yield from (_row(parser, action) for action in actions)
        yield ""
    if parser.epilog:
        yield f"`{parser.epilog.removeprefix('example: ')}`"


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    meaning = (action.help or "") % {**vars(action), "prog": parser.prog}
    if action.option_strings:
        value = "" if action.nargs == 0 else _value(action)
        return _table_row(", ".join(action.option_strings), value, meaning + " (required)" * action.required)
    meaning += ": " + ", ".join(action.choices) if action.choices else ""
    return _table_row(str(action.metavar or action.dest), "", meaning)


def _table_row(names: str, value: str, meaning: str) -> str:
    name = f"`{names}` {_escaped(value.strip()).replace(',', ', ')}".strip()
    return f"| {name} | {_escaped(meaning)} |"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.metavar:
        return action.metavar + (" ..." if action.nargs in ("+", "*") else "")
    if action.choices:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return action.dest.upper() + (" ..." if action.nargs in ("+", "*") else "")


def _markdown(text: str) -> str:
    """A help text with its paragraphs, lists, definitions and indented blocks, as Markdown."""
    lines, parts = text.strip("\n").splitlines(), []
    while lines:
        plain = list(itertools.takewhile(lambda line: not line.startswith(" "), lines))
        lines = lines[len(plain) :]
        block = list(itertools.takewhile(lambda line: line.startswith(" ") or not line, lines))
        lines = lines[len(block) :]
        inner = textwrap.dedent("\n".join(block)).strip("\n")
        term = plain[-1] if plain else ""
        if term and len(term) < 60 and not term.endswith((".", ":")):
            parts += [_prose("\n".join(plain[:-1]).split("\n\n")), f"**{_escaped(term)}**", _markdown(inner)]
            continue
        parts.append(_prose("\n".join(plain).split("\n\n")))
        if inner.startswith("- "):
            parts.append(_escaped(inner))
        elif inner:
            parts.append(f"```text\n{inner}\n```")
    return "\n\n".join(part for part in parts if part)


def _prose(paragraphs: Iterable[str]) -> str:
    return "\n\n".join(_escaped(" ".join(one.split())).replace("::", ":") for one in paragraphs)


def _escaped(text: str) -> str:
    plain = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)  # references of reStructuredText
    return plain.replace("``", "`").replace("<", "&lt;").replace("|", "&#124;")


def _import_section() -> str:
    from empathy_judge.commands.data import import_parser, source_parser
    from empathy_judge.data_modules import importers

    names = list(importers.SOURCES)
    parts = ["\n".join(["## import", "", *_about(import_parser(names))])]
    for name in names:
        parts.append("\n".join([f"### import {name}", "", *_about(source_parser(name, importers.load(name)))]))
    return "\n\n".join(parts)


def _train_section() -> str:
    """What `train` has beside the keys of its configuration, which have a page of their own."""
    from empathy_judge.train.recipe import RecipeParser

    parser = RecipeParser().parser
    config = next(action for action in parser._actions if action.dest == "config")
    return "\n".join(
        [
            "## train",
            "",
            _prose([parser.description or ""]),
            "",
            "| option | meaning |",
            "|---|---|",
            _table_row("--config", "NAME or FILE", config.help or ""),
            _table_row("--print_config", "", "Print the configuration that all of it comes to, and exit."),
            _table_row("--KEY", "VALUE", "Any key of the configuration, such as `--judge.lora.rank 32`."),
            "",
            "Every key is below, under [Configuration](#configuration).",
            "",
            f"`{(parser.epilog or '').removeprefix('example: ')}`",
        ]
    )


def configuration_page() -> str:
    """Every key of a recipe with its help, values and default, as Markdown: read from the parser of `train`."""
    from empathy_judge.train.recipe import RecipeParser

    parser = RecipeParser().parser
    defaults = parser.get_defaults()
    dests = [action.dest for action in parser._actions]
    sections: dict[str, list[str]] = {}
    for action in parser._actions:
        group, _, key = action.dest.rpartition(".")
        is_group = any(name.startswith(f"{action.dest}.") and not name.endswith(".help") for name in dests)
        if is_group or key in ("help", "config", "print_config"):
            continue
        # what Lightning's help says of defaults is dropped: the last sentence of a row says it
        about = re.sub(r"\s*Default: ``[^`]*``\.?", "", " ".join((action.help or "").split())).rstrip(". ")
        default = json.dumps(_plain(defaults.get(action.dest)))
        row = _table_row(key, "", f"{about}.{_choices(action)} Default: `{default}`.")
        sections.setdefault(group.partition(".")[0], [])  # keys of a group stand before the groups in it
        sections.setdefault(group, []).append(row)
    parts = []
    for group, rows in sections.items():
        parts += [f"{'####' if '.' in group else '###'} {group or 'The run itself'}", ""]
        parts += ["| key | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(parts).strip()


def _choices(action: Any) -> str:
    """The values of a key that has a list of them."""
    kind = getattr(action, "_typehint", None)
    options = [one for one in (kind, *get_args(kind)) if get_origin(one) is Literal]
    values = [str(value) for one in options for value in get_args(one)]
    values = [*(["true", "false"] if values and bool in get_args(kind) else []), *values]
    return f" One of {', '.join(f'`{value}`' for value in values)}." if values else ""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
