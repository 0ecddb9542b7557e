"""Values of Arrow arrays as Python has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from .steps import as_written


class Unreadable:
    """Stands for a value that Python cannot hold, such as a date in the year 300,000. It is no text and no number."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"<{self._value}>"


def cell_values(array: Any) -> list[Any]:
    """As `array_values`, but numbers of float32 or float16 are those that were written: 1.1, which Python would make
    1.100000023841858. Lists of them stay as they are: samples of audio are float32, and are read as that again."""
    if not (pa.types.is_float32(array.type) or pa.types.is_float16(array.type)):
        return array_values(array)
    numbers = as_written(array.fill_null(np.nan).to_numpy(zero_copy_only=False)).tolist()
    return [number if given else None for number, given in zip(numbers, array.is_valid().to_pylist(), strict=True)]


def array_values(array: Any) -> list[Any]:
    """The values of an array; equal texts of a dictionary are one object, and see `Unreadable`. Structures and lists
    are taken apart: `to_pylist` takes five times as long for them."""
    kind, types = array.type, pa.types
    if types.is_dictionary(kind):
        used = array.indices.unique()  # a part of four rows may have the dictionary of a million
        texts = dict(zip(used.to_pylist(), array.dictionary.take(used).to_pylist(), strict=True))
        return [texts[index] for index in array.indices.to_pylist()]
    if types.is_struct(kind) and kind.num_fields:
        names = [field.name for field in kind]
        rows = [dict(zip(names, row, strict=True)) for row in zip(*map(cell_values, array.flatten()), strict=True)]
    elif types.is_list(kind) or types.is_large_list(kind):
        items, ends = array_values(array.flatten()), array.value_lengths().fill_null(0).to_numpy().cumsum().tolist()
        rows = [items[start:end] for start, end in pairwise([0, *ends])]
    else:
        try:
            return array.to_pylist()
        except (ValueError, OverflowError, pa.ArrowInvalid):
            return [_value(cell) for cell in array]
    if array.null_count:
        return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]
    return rows


def _value(cell: pa.Scalar[Any]) -> Any:
    try:
        return cell.as_py()
    except (ValueError, OverflowError, pa.ArrowInvalid) as error:
        return Unreadable(f"{cell.type} that cannot be represented: {error}")
