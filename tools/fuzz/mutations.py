"""Random damage to files: to their bytes, and to the values of JSON, JSONL, CSV, YAML and Parquet."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
import struct
from collections.abc import Callable
from datetime import date
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

ODDVALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**400, -0.0, 0.5, 1e308, float("nan"), float("inf"), "", " ", "\n",
    "a\nb", "\0", "\ud800", "\u2028", "x" * 5_000, "../x", "/etc/hostname", "C:\\x", ".", "nan", "1e999", "[]",
    [], {}, [None], [[]], [1, "a"], {"": {}}, {"bytes": None, "path": None}, {"role": 1, "audio": None},
)  # fmt: skip
"""What nobody expects in a cell."""
HEADER_BYTES = 128
_INTEGERS = (0, 1, 2, 7, 8, 16, 24, 32, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def mutate(name: str, data: bytes, rng: random.Random) -> tuple[bytes, str]:
    """A damaged copy of a file, and in words what was done.

    Args:
        name: File name; its suffix says which values it holds.
        data: A valid file, not empty.
        rng: Decides everything.
    """
    change_values, what = VALUES.get(PurePosixPath(name).suffix), ""
    if change_values is not None and rng.random() < 0.6:
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            data, what = change_values(data, rng)
        return data, f"{name}: {what}"
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        done.append(rng.choice(_ANYWHERE))
        data = _change_bytes(data or b"\0", done[-1], rng)
    return data, f"{name}: {', '.join(done)}"


def _flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 2, 8, 32])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _edit_header(data: bytes, rng: random.Random) -> bytes:
    """A number at the front or, as Parquet has it, at the end."""
    kind = rng.choice(["<B", "<H", ">H", "<I", ">I"])
    field = struct.pack(kind, rng.choice(_INTEGERS) & (256 ** struct.calcsize(kind) - 1))
    last = max(0, min(HEADER_BYTES, len(data)) - len(field))
    start = rng.randint(0, last)
    if rng.random() < 0.2:
        start = max(0, len(data) - len(field) - start)
    return data[:start] + field + data[start + len(field) :]


_PARTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "overwrite": lambda part, rng: rng.randbytes(len(part)),
    "insert": lambda part, rng: rng.randbytes(rng.choice([1, 2, 3, 16, 300])) + part,
    "duplicate": lambda part, rng: part + part * rng.choice([1, 1, 20]),
    "zero": lambda part, rng: bytes(len(part)),
    "delete": lambda part, rng: b"",
}
"""What becomes of some bytes in the middle of a file."""
_ANYWHERE = ("flip bits", "truncate", "edit header", "edit header", *_PARTS)


def _change_bytes(data: bytes, what: str, rng: random.Random) -> bytes:
    if what == "flip bits":
        return _flip_bits(data, rng)
    if what == "edit header":
        return _edit_header(data, rng)
    start = rng.randrange(len(data))
    if what == "truncate":
        return data[:start]
    end = min(len(data), start + rng.choice([1, 2, 4, 8, 64, 512, 4_096]))
    return data[:start] + _PARTS[what](data[start:end], rng) + data[end:]


def _in_json(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    value, what = _in_tree(json.loads(data), rng)
    return json.dumps(value).encode(), what


def _in_lines(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    rows, what = _in_tree([json.loads(line) for line in data.splitlines() if line.strip()], rng)
    rows = rows if isinstance(rows, list) else [rows]
    return "".join(json.dumps(row) + "\n" for row in rows).encode(), what


def _in_yaml(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    value, what = _in_tree(yaml.safe_load(data), rng)
    return yaml.safe_dump(value, allow_unicode=False).encode(errors="replace"), what


def _in_tree(tree: Any, rng: random.Random) -> tuple[Any, str]:
    """Changes one value somewhere in nested lists and objects."""
    places = list(_places(tree))
    if not places:
        return rng.choice(ODDVALUES), "another document"
    parent, key = rng.choice(places)
    action = rng.choice(["replace", "replace", "replace", "remove", "repeat", "wrap", "copy", "rename"])
    if action == "remove":
        del parent[key]
    elif action == "repeat" and isinstance(parent, list):
        parent.insert(key, parent[key])
    elif action == "wrap":
        parent[key] = [parent[key]]
    elif action == "copy":
        other, from_key = rng.choice(places)
        parent[key] = copy.deepcopy(other[from_key])
    elif action == "rename" and isinstance(parent, dict):
        parent[rng.choice(["", "id", "x" * 300, "\ud800"])] = parent.pop(key)
    else:
        parent[key] = rng.choice(ODDVALUES)
    return tree, f"{action} the value of {key!r}"


def _places(tree: Any) -> list[tuple[Any, Any]]:
    """(Parent, key or position) of every value."""
    keys = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ()
    return [(tree, key) for key in keys] + [place for key in keys for place in _places(tree[key])]


def _in_csv(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    tree, what = _in_tree(list(csv.reader(io.StringIO(data.decode(errors="replace"), newline=""))), rng)
    rows = [row if isinstance(row, list) else [row] for row in (tree if isinstance(tree, list) else [tree])]
    text = io.StringIO(newline="")
    csv.writer(text, escapechar="\\").writerows(rows)
    return text.getvalue().encode(errors="replace"), what


def _in_parquet(data: bytes, rng: random.Random) -> tuple[bytes, str]:
    table = pq.ParquetFile(pa.BufferReader(data)).read()
    action = rng.choice(
        ["values", "values", "values", "type", "type", "drop", "rename", "repeat rows", "no rows", "twice"]
    )
    names = table.column_names
    position = rng.randrange(len(names)) if names else 0
    if not names:
        table = table.append_column("x", pa.nulls(table.num_rows))
    elif action == "values":
        table = _other_values(table, position, rng)
    elif action == "type":
        values = [None, 1.5, b"x", True, ["a", None], {"a": 1}, 2**62, date(2026, 1, 1), "x"]
        kinds = [pa.array([value] * len(table)) for value in values]
        kinds.append(kinds[-1].dictionary_encode())
        table = table.set_column(position, names[position], rng.choice(kinds))
    elif action == "drop":
        table = table.remove_column(position)
    elif action == "rename":
        table = table.rename_columns([*names[:position], rng.choice(["", "x", *names]), *names[position + 1 :]])
    elif action == "twice":
        table = table.append_column(names[position], table.column(position))
    elif action == "no rows":
        table = table.slice(0, 0)
    else:
        table = pa.concat_tables([table, table.slice(0, 1)])
    sink = io.BytesIO()
    pq.write_table(table, sink, compression=rng.choice(["snappy", "none", "zstd", "gzip"]))
    return sink.getvalue(), f"{action} of column {names[position] if names else None!r}"


def _other_values(table: pa.Table, position: int, rng: random.Random) -> pa.Table:
    """A column of the same type with one odd, missing or foreign value."""
    field = table.schema.field(position)
    values = table.column(position).to_pylist()
    if not values:
        return table
    row = rng.randrange(len(values))
    tree = [values[row]]
    tree, _ = _in_tree(tree, rng) if not isinstance(values[row], bytes) else ([rng.randbytes(20)], "")
    values[row] = tree[0] if isinstance(tree, list) and tree else None
    try:
        column = pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):  # the type holds no such value
        values[row] = None
        column = pa.array(values, field.type)
    return table.set_column(position, field, column)


VALUES: dict[str, Callable[[bytes, random.Random], tuple[bytes, str]]] = {
    ".json": _in_json, ".jsonl": _in_lines, ".csv": _in_csv, ".yaml": _in_yaml, ".parquet": _in_parquet,
}  # fmt: skip
"""Suffix -> what changes the values in such a file."""
