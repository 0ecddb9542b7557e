"""Sheets of Excel, by openpyxl."""

from __future__ import annotations

import itertools
import zipfile
from pathlib import Path
from typing import Any

from ..core.errors import DataError, UserError, shown

_LARGEST = 1 << 30  # bytes of a workbook, unpacked: a small file must not fill the memory


def read_sheet(path: Path) -> tuple[tuple[str, ...], list[dict[str, Any]], list[int]]:
    """The header of the only sheet, its rows without empty ones, and the number of each in the sheet, from 1.

    Values of formulas are those that a spreadsheet program stored. A number is an int or a float, an empty cell None.

    Raises:
        UserError: If openpyxl is not installed.
        DataError: If it is no workbook, is too large, has several sheets, a formula without a stored value, or values
            in a column without a name.
    """
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise UserError(
            f"{path}: needs openpyxl: pip install 'empathy-judge[excel]'; or save the sheet as CSV UTF-8"
        ) from None
    try:
        with zipfile.ZipFile(path) as archive:
            # Before anything is parsed: openpyxl would unpack all of it
            if sum(part.file_size for part in archive.infolist()) > _LARGEST:
                raise DataError(f"{path}: more than {_LARGEST >> 30} GiB unpacked; expected a smaller sheet, or CSV")
            sheets = (archive.read(part) for part in archive.namelist() if part.startswith("xl/worksheets/"))
            has_formulas = any(b"<f>" in sheet or b"<f " in sheet for sheet in sheets)
        book = load_workbook(path, read_only=True, data_only=True)
        # Without those that hold nothing: a workbook may be made with three sheets, of which one is used
        filled = [(sheet.title, rows) for sheet in book.worksheets if (rows := _filled(sheet))]
        # Most have no formula, and need not be read twice
        unknown = _without_value(path, book) if has_formulas else None
        book.close()
    except DataError:
        raise
    except Exception as error:  # zipfile, XML parsers and openpyxl have no common base
        raise DataError(f"{path}: not readable as Excel ({type(error).__name__}: {error})") from None
    if unknown is not None:
        raise DataError(
            f"{path}: the formula in {unknown} has no stored value; expected a file that a spreadsheet program saved"
        )
    if len(filled) != 1:
        names = ", ".join(shown(name) for name, _ in filled) or "none"
        raise DataError(f"{path}: sheets that hold something: {names}; expected one (save the others elsewhere)")
    (_, names), *rows = filled[0][1]
    header = tuple("" if name is None else str(name) for name in names)
    width = max(number for number, name in enumerate(header, start=1) if name)
    for line, values in rows:
        beyond = [value for name, value in zip(header[:width], values, strict=False) if not name] + [*values[width:]]
        if any(value is not None for value in beyond):
            raise DataError(f"{path}, row {line} of the sheet: a value in a column without a name; expected a name")
    kept = [number for number, name in enumerate(header) if name]
    # A row ends at its last cell: empty ones behind it are not stored
    table = [{header[n]: values[n] if n < len(values) else None for n in kept} for _, values in rows]
    return tuple(header[n] for n in kept), table, [line for line, _ in rows]


def _filled(sheet: Any) -> list[tuple[int, tuple[Any, ...]]]:
    """Number and values of the rows that hold something; an empty text is nothing."""
    rows = ((line, tuple(v if v != "" else None for v in row)) for line, row in enumerate(sheet.values, start=1))
    return [(line, row) for line, row in rows if any(value is not None for value in row)]


def _without_value(path: Path, book: Any) -> str | None:
    """The first cell whose formula has no stored value, as a library writes it: it would be read as empty. `book` is
    the workbook with stored values."""
    from openpyxl import load_workbook

    # openpyxl shows of a cell either what is stored or its formula
    written: Any = load_workbook(path, read_only=True)
    try:
        for values, formulas in zip(book.worksheets, written.worksheets, strict=True):
            rows = zip(values.rows, formulas.rows, strict=True)
            for cell, formula in itertools.chain.from_iterable(zip(*row, strict=True) for row in rows):
                # An empty text that a formula made is stored as a text; what was never computed has no type
                if formula.data_type == "f" and cell.value is None and cell.data_type == "n":
                    return f"{formula.column_letter}{formula.row}"
    finally:
        written.close()
    return None
