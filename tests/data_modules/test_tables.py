"""Tables in text files. Names that are nearly ours and numbers that are nearly ids are never taken in silence."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from empathy_judge.core.errors import DataError
from empathy_judge.data_modules.importers.clips import ClipCell
from empathy_judge.data_modules.importers.table import read_pairs
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.tables import SourceTable, TableMapping, plain_text, read_table
from empathy_judge.eval.frame import read_frame

PAIRS = SourceTable.of(Path("pairs.csv"), [{"pair_id": "p", "response_audio": "a.wav"}])


def ratings(*rows: dict[str, Any], pairs: SourceTable = PAIRS, **columns: str) -> list[tuple[object, ...]]:
    mapping = TableMapping({}, columns, [Dimension("empathy", 1, 5, 1)])
    found = read_pairs(pairs, [SourceTable.of(Path("ratings.csv"), list(rows))], mapping, ClipCell).ratings
    return list(found[["rater_id", "score"]].itertuples(index=False, name=None))


def test_a_dimension_in_upper_case_is_not_passed_over():
    """All rows would count as ratings of the only dimension that was named."""
    row = {"pair_id": "p", "rater_id": "r", "Dimension": "warmth", "score": "4"}
    with pytest.raises(
        DataError, match=r"^ratings\.csv: column 'Dimension'; expected 'dimension', a mapping --rating-c"
    ):
        ratings(row)
    with pytest.raises(DataError, match=r"row 1, column 'Dimension': value 'warmth'; expected empathy"):
        ratings(row, dimension="Dimension")
    assert ratings({**row, "dimension": "empathy"}) == [("r", 4.0)]  # then it is another column
    del row["Dimension"]
    assert ratings({**row, "Seconds": "20"}) == [("r", 4.0)]  # perhaps of the clip


@pytest.mark.parametrize("name", ["Empathy:ben", "empathy :ben", "EMPATHY:ben"])
def test_a_rater_whose_column_is_nearly_of_the_dimension(name):
    with pytest.raises(DataError, match=f"^ratings.csv: column '{name}'; expected 'empathy:ben', or another name"):
        ratings({"pair_id": "p", "empathy:anna": "4", name: "5"})


@pytest.mark.parametrize("name", ["Response_Speaker", "group_id ", " SYSTEM_ID"])
def test_columns_of_pairs(name):
    pairs = SourceTable.of(PAIRS.path, [{**PAIRS.rows[0], name: "x"}])
    with pytest.raises(
        DataError, match=f"^pairs.csv: column '{name}'; expected '{name.strip().casefold()}', a mapping"
    ):
        ratings({"pair_id": "p", "rater_id": "r", "score": "4"}, pairs=pairs)


def test_a_group_in_upper_case_of_a_table_of_annotations(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("item,annotator,dimension,score,Group\na,r,w,1,g\nb,r,w,2,g\n")
    with pytest.raises(
        DataError, match="column 'Group'; expected 'group', a mapping --column 'group=Group', or another"
    ):
        read_frame(path, {})
    assert read_frame(path, {"group": "Group"}).rows["cluster"].tolist() == ["group g", "group g"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Decimal("9007199254740993"), "9007199254740993"),  # whose float is ...992
        (Decimal("7.00"), "7"),
        (2.0**53 - 1, "9007199254740991"),
        (2.0**53, 2.0**53),  # may stand for ...993: no name, which is refused
        (2**53 + 1, "9007199254740993"),
    ],
)
def test_whole_numbers_as_ids(value, expected):
    assert plain_text(value) == expected


def test_decimal_ids_of_a_table(tmp_path):
    ids = [Decimal(2**53), Decimal(2**53 + 1), Decimal(2**62 + 1)]
    frame = pd.DataFrame({"item": ids, "annotator": "r", "dimension": "w", "score": [1, 2, 3]})
    frame.to_parquet(tmp_path / "table.parquet")
    assert read_frame(tmp_path / "table.parquet", {}).rows["pair_id"].tolist() == [str(number) for number in ids]


def test_not_utf_8(source):
    pairs, ratings = source.table("pairs.csv", source.pairs), source.table("r.csv", source.ratings)
    data = pairs.read_bytes()
    line = data.splitlines(keepends=True)
    pairs.write_bytes(b"".join([*line[:2], line[2].replace(b"g0", b"caf\xe9"), *line[3:]]))
    offset = pairs.read_bytes().index(b"\xe9")
    source.refuses(rf"pairs\.csv, line 3: byte 0xe9 at offset {offset} is not UTF-8", pairs, ratings)
    pairs.write_text(data.decode(), encoding="utf-16")
    source.refuses(r"pairs\.csv, line 1: byte 0xff at offset 0 is not UTF-8", pairs, ratings)


def test_byte_order_mark_is_no_part_of_the_header(source):
    pairs = source.table("pairs.csv", source.pairs)
    pairs.write_text(pairs.read_text(), encoding="utf-8-sig")
    assert len(source.load(pairs, source.table("r.csv", source.ratings)).pairs) == 4


def test_a_comma_in_a_name_of_two_lines_is_no_separator(tmp_path):
    (tmp_path / "survey.csv").write_text('id;"Well, how\ndoes it sound?"\n1;2,5\n')
    table = read_table(tmp_path / "survey.csv")
    assert (table.columns, table.decimal_comma) == (("id", "Well, how\ndoes it sound?"), True)


def test_ragged_rows_and_broken_quotes(source):
    ratings = source.table("r.csv", source.ratings)
    pairs = source.folder / "pairs.csv"
    pairs.write_text('pair_id,response_audio\n"a\nb",x.wav\n\nc,x.wav,extra\n')
    source.refuses(r"pairs\.csv, row 2 \(line 5\): 3 values; expected 2", pairs, ratings)
    pairs.write_text('pair_id,response_audio\na,x.wav\nb,"x.wav\n')
    source.refuses(r"pairs\.csv, line 3: not readable as CSV", pairs, ratings)
    pairs.write_text("pair_id,pair_id,response_audio\na,b,c\n")
    source.refuses("column 'pair_id' stands twice in the header", pairs, ratings)
    pairs = pairs.rename(pairs.with_suffix(".ods"))
    source.refuses(r"suffix '\.ods'; expected .*\(save the sheet as \.xlsx or CSV UTF-8\)", pairs, ratings)


@pytest.mark.parametrize("line", ["{", "[1]", '{"a": 1, "a": 2}', '{"a": ' + "9" * 5_000 + "}", "[" * 100_000])
def test_broken_json(source, line):
    path = source.folder / "pairs.jsonl"
    path.write_text(json.dumps(source.pairs[0]) + "\n\n" + line + "\n")
    source.refuses(r"pairs\.jsonl, row 2 \(line 3\): ", path, source.table("r.csv", source.ratings))


def test_broken_parquet_and_unknown_suffix(source):
    ratings = source.table("r.csv", source.ratings)
    for name, data, message in (
        ("pairs.parquet", b"PAR1 and so on", r"pairs\.parquet: not readable as Parquet"),
        ("pairs.docx", b"PK", r"suffix '\.docx'; expected \.csv, \.tsv, \.txt, \.json, \.jsonl, \.parquet"),
    ):
        (source.folder / name).write_bytes(data)
        source.refuses(message, source.folder / name, ratings)
    source.refuses(r"nothing\.csv: no such file", source.folder / "nothing.csv", ratings)
    (source.folder / "folder.csv").mkdir()
    source.refuses(r"folder\.csv: is a folder; expected a file", source.folder / "folder.csv", ratings)
    source.refuses(r"/dev/null: is a device or pipe; expected a file", source.folder / "/dev/null", ratings)
