"""Manifests read as streams: where rows begin, what pieces there are, and what stops a job before it begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.data_modules.errors import DataError
from empathy_judge.manifests.index import file_hash, index, open_table, read_chunk
from empathy_judge.manifests.rows import row_id

from .conftest import row

SUFFIXES = ["csv", "tsv", "jsonl", "parquet"]


def ids(path: Path) -> list[str]:
    """Of all rows, read chunk by chunk, the last chunk first."""
    table = open_table(path)
    chunks = index(table).chunks
    read = {chunk.number: [row_id(record, path) for record in read_chunk(table, chunk)] for chunk in reversed(chunks)}
    return [found for chunk in chunks for found in read[chunk.number]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_row_is_in_one_chunk_and_can_be_read_from_there(suffix, write):
    rows = [row(number, situation='Late,\n"again".' if number % 3 else None) for number in range(150)]
    path = write(rows, f"m.{suffix}")
    table = open_table(path)
    found = index(table)
    assert (found.rows, [chunk.rows for chunk in found.chunks]) == (150, [64, 64, 22])
    assert found.sha256 == file_hash(path)
    assert ids(path) == [f"p{number}" for number in range(150)]
    (one,) = [record for record in read_chunk(table, found.chunks[2]) if record.start.position == 130]
    assert one.cells == {name: value for name, value in rows[130].items() if value is not None}


@pytest.mark.parametrize(("rows", "sizes"), [(1, {1}), (8_192, {64}), (8_193, {128, 1}), (10**7, {1024, 640})])
def test_chunks_grow_with_the_manifest_up_to_a_limit(rows, sizes):
    from empathy_judge.manifests.index import _STEP, _chunks
    from empathy_judge.manifests.records import Start

    chunks = _chunks(rows, [Start(position, 0, None) for position in range(0, rows, _STEP)])
    assert {chunk.rows for chunk in chunks} == sizes
    assert sum(chunk.rows for chunk in chunks) == rows


def test_byte_order_marks_blank_lines_and_windows_line_ends_are_no_rows(clips):
    (clips / "m.csv").write_bytes(b"\xef\xbb\xbfpair_id,response_audio\r\n\r\na,r0.wav\r\n\r\nb,r1.wav\r\n")
    (clips / "m.jsonl").write_bytes(
        b'\xef\xbb\xbf{"pair_id": "a", "response_audio": "r0.wav"}\n \n{"pair_id": "b", "response_audio": "r1.wav"}'
    )
    for name, lines in (("m.csv", [3, 5]), ("m.jsonl", [1, 3])):
        assert ids(clips / name) == ["a", "b"]
        assert [record.start.line for record in open_table(clips / name).records()] == lines


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_without_ids_are_numbered(suffix, write):
    rows: list[dict[str, Any]] = [{"response_audio": "r0.wav"} for _ in range(70)]
    assert ids(write(rows, f"m.{suffix}")) == [str(number) for number in range(1, 71)]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_an_id_that_stands_there_twice_names_both_rows(suffix, write):
    rows = [row(number) for number in range(140)]
    rows[133]["pair_id"] = "p66"
    path = write(rows, f"m.{suffix}")
    lines = {"parquet": ("", ""), "jsonl": (" (line 134)", " (line 67)")}.get(suffix, (" (line 135)", " (line 68)"))
    with pytest.raises(DataError) as found:
        index(open_table(path))
    assert str(found.value) == (
        f"{path}, row 134{lines[0]}, column 'pair_id': 'p66' stands there twice, also in {path}, row 67{lines[1]}; "
        "accepted: unique ids"
    )


def test_a_number_by_default_and_the_same_as_an_id_are_twice_the_same(write):
    path = write([row(0, pair_id="2"), row(1, pair_id=None)], "m.parquet")
    with pytest.raises(DataError, match=r"row 2, column 'pair_id': '2' stands there twice, also in .*row 1;"):
        index(open_table(path))


def test_ids_with_the_same_hash_are_two(write, monkeypatch):
    monkeypatch.setattr("empathy_judge.manifests.index.hash", lambda text: 7, raising=False)
    assert index(open_table(write([row(number) for number in range(70)]))).rows == 70


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("m.csv", "pair_id,audio\na,b\n", "no column 'response_audio'; it has pair_id, audio; accepted: pair_id,"),
        ("m.jsonl", '{"pair_id": "a"}\n', "no column 'response_audio'; it has pair_id;"),
        ("m.csv", "response_audio\n", "the table holds no rows"),
        ("m.csv", "", "the table holds no rows"),
        ("m.jsonl", "\n", "the table holds no rows"),
        ("m.csv", "response_audio,pair_id\na.wav\n", "row 1 (line 2): 1 values; accepted: 2, one per column"),
        ("m.csv", 'response_audio\n"a.wav\n', "not readable as CSV"),
        ("m.csv", "response_audio,response_audio\na,b\n", "column 'response_audio' stands twice in the header"),
        ("m.jsonl", '{"response_audio": "a"}\n{"response_audio"\n', "row 2 (line 2): not readable as JSON"),
        ("m.jsonl", '{"response_audio": "a", "response_audio": "b"}\n', "a name stands twice in an object"),
        ("m.jsonl", "[1]\n", "row 1 (line 1): value [1]; accepted: one JSON object per line"),
        ("m.jsonl", '{"response_audio": "a", "pair_id": 1.5}\n', "column 'pair_id': value 1.5; accepted: text"),
        ("m.csv", b"response_audio\n\xff.wav\n", "line 2: byte 0xff is not UTF-8"),
        ("m.parquet", b"PAR1 no more", "not readable as Parquet"),
        ("m.txt", "", "suffix '.txt'; accepted: .csv, .tsv, .jsonl, .parquet"),
    ],
)
def test_a_broken_table_is_one_line(name, content, text, clips):
    path = clips / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as found:
        index(open_table(path))
    assert text in str(found.value)
    assert str(found.value).startswith(str(path))


def test_a_missing_table_and_one_that_changed_meanwhile(write, clips):
    with pytest.raises(DataError, match=r"absent\.csv: no such file"):
        open_table(clips / "absent.csv")
    table = open_table(write([row(number) for number in range(70)]))
    chunks = index(table).chunks
    write([row(0)])
    with pytest.raises(DataError, match=r"row 70 is gone; was the file changed\?"):
        list(read_chunk(table, chunks[1]))


def test_a_column_that_comes_late_is_a_column(clips):
    lines = [json.dumps({"a": 1, "pair_id": "x"}), json.dumps({"pair_id": "y", "response_audio": "r0.wav"})]
    (clips / "m.jsonl").write_text("\n".join(lines))
    assert index(open_table(clips / "m.jsonl")).rows == 2


def test_parquet_is_read_on_where_it_was_left(clips, monkeypatch):
    """Large row groups are decoded once by a worker that goes forward, whatever it leaves out."""
    from empathy_judge.manifests import parquet_table

    pq.write_table(pa.table({"response_audio": ["r0.wav"] * 500}), clips / "m.parquet")
    opened = []
    plain = parquet_table.parquet_tables
    monkeypatch.setattr(parquet_table, "parquet_tables", lambda *given: opened.append(given) or plain(*given))
    table = open_table(clips / "m.parquet")
    chunks = index(table).chunks
    for number in (0, 1, 3, 6):
        assert next(iter(read_chunk(table, chunks[number]))).start.position == 64 * number
        assert len(opened) == 1
    assert next(iter(read_chunk(table, chunks[2]))).start.position == 128
    assert len(opened) == 2
