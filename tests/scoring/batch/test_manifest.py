"""Manifests read as streams, what stops a job before it begins, and the way from a row to a pair."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from empathy_judge.core.errors import AudioError, DataError
from empathy_judge.data_modules.schema import Pair
from empathy_judge.scoring.batch import manifest
from empathy_judge.scoring.batch.manifest import Manifest, RowReader, row_id, rows_of_manifest

from .conftest import row

SUFFIXES = ["csv", "tsv", "jsonl", "parquet"]
WHERE = "m.csv, row 3"


def ids(path: Path) -> list[str]:
    """Of all rows, read 64 at a time, the last first."""
    table = Manifest(path)
    count = table.check()
    read = [
        [row_id(record, path) for record in table.read(first, min(64, count - first))]
        for first in reversed(range(0, count, 64))
    ]
    return [found for some in reversed(read) for found in some]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_row_can_be_read_from_anywhere(suffix, write):
    rows = [row(number, situation='Late,\n"again".' if number % 3 else None) for number in range(150)]
    path = write(rows, f"m.{suffix}")
    table = Manifest(path)
    assert table.check() == 150
    assert ids(path) == [f"p{number}" for number in range(150)]
    for first in (128, 130, 2):
        (one,) = table.read(first, 1)
        assert one.cells == {name: value for name, value in rows[first].items() if value is not None}
    before = [table.sha256(whole) for whole in (False, True)]
    time = path.stat().st_mtime_ns
    write(rows, f"m.{suffix}")
    os.utime(path, ns=(time, time))
    assert [Manifest(path).sha256(whole) for whole in (False, True)] == before
    write(rows[:-1], f"m.{suffix}")
    assert not {Manifest(path).sha256(whole) for whole in (False, True)} & set(before)


def test_clips_in_parquet_that_change_places_make_another_manifest(write):
    """Size and footer stay: text of one length is stored as it is, without an index of its values."""
    texts = ["early", "later"]
    table = pa.table({"response_audio": ["r0.wav", "r1.wav"], "situation": texts})
    path = write([row(0)], "m.parquet")
    hashes, kept = [], []
    for number, order in enumerate((texts, texts[::-1])):
        changed = table.set_column(1, "situation", pa.array(order))
        pq.write_table(changed, path, compression="none", use_dictionary=False)
        os.utime(path, ns=(number, number))
        hashes.append([Manifest(path).sha256(whole) for whole in (False, True)])
        kept.append((path.stat().st_size, path.read_bytes()[-60:]))
    assert kept[0] == kept[1]
    assert not set(hashes[0]) & set(hashes[1])


def test_odd_files_that_are_right(clips):
    (clips / "m.csv").write_bytes(b"\xef\xbb\xbfpair_id,response_audio\r\n\r\na,r0.wav\r\n\r\nb,r1.wav\r\n")
    (clips / "m.jsonl").write_bytes(
        b'\xef\xbb\xbf{"pair_id": "a", "response_audio": "r0.wav"}\n \n{"pair_id": "b", "response_audio": "r1.wav"}'
    )
    (clips / "late.jsonl").write_text('{"a": 1, "pair_id": "a"}\n{"pair_id": "b", "response_audio": "r0.wav"}')
    for name, lines in (("m.csv", [3, 5]), ("m.jsonl", [1, 3]), ("late.jsonl", [1, 2])):
        assert ids(clips / name) == ["a", "b"]
        assert [record.line for record in Manifest(clips / name).read(0, 2)] == lines


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_contexts_under_another_name_are_pointed_out_once(suffix, write, capsys):
    rows = [{"response_audio": "r0.wav", "context": "r1.wav"}] * 3
    path = write(rows, f"m.{suffix}")
    assert ids(path) == ["1", "2", "3"]
    expected = f"{path}: column 'context' is not read; expected context_audio for clips\n"
    assert capsys.readouterr().err == expected
    assert ids(write([{**cells, "context_audio": "r1.wav"} for cells in rows], f"m.{suffix}")) == ["1", "2", "3"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_ids_are_numbers_by_default_and_unique(suffix, write, monkeypatch):
    path = write([{"response_audio": "r0.wav"} for _ in range(70)], f"m.{suffix}")
    assert ids(path) == [str(number) for number in range(1, 71)]
    rows = [row(number) for number in range(140)]
    rows[133]["pair_id"] = "p66"
    path = write(rows, f"m.{suffix}")
    lines = {"parquet": ("", ""), "jsonl": (" (line 134)", " (line 67)")}.get(suffix, (" (line 135)", " (line 68)"))
    text = (
        f"{path}, row 134{lines[0]}, column 'pair_id': 'p66' stands there twice, also in {path}, row 67{lines[1]}; "
        "expected unique ids"
    )
    for made in (hash, lambda text: 7):  # ids with the same hash are still two
        monkeypatch.setattr(manifest, "hash", made, raising=False)
        with pytest.raises(DataError) as found:
            Manifest(path).check()
        assert str(found.value) == text
    assert Manifest(write(rows[:133], f"m.{suffix}")).check() == 133


def test_names_of_columns_with_spaces_around_them_are_read(clips):
    (clips / "m.csv").write_text("pair_id, response_audio ,context_audio ,\tsystem_id\na,r.wav,c.wav,v1\n")
    (clips / "m.jsonl").write_text(
        '{"pair_id": "a", " response_audio": "r.wav", "context_audio ": "c.wav", "system_id ": "v1"}\n'
    )
    for name in ("m.csv", "m.jsonl"):
        found = Manifest(clips / name)
        assert found.check() == 1
        assert list(found.copied()) == ["system_id"]
        (record,) = found.read(0, 1)
        assert (record.cells["response_audio"], record.cells["context_audio"]) == ("r.wav", "c.wav")
    pq.write_table(pa.table({"response_audio": ["r.wav"], "context_audio ": ["c.wav"]}), clips / "m.parquet")
    with pytest.raises(DataError, match="column 'context_audio '; expected a name without spaces around it"):
        Manifest(clips / "m.parquet")


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("m.csv", "pair_id,audio\na,b\n", "no column 'response_audio'; it has 'pair_id', 'audio'; expected pair_id,"),
        ("m.jsonl", '{"pair_id": "a"}\n', "no column 'response_audio'; it has 'pair_id';"),
        ("m.csv", ",".join(f"c{number}" for number in range(32)), "'c28', 'c29' and 2 more; expected pair_id,"),
        ("m.csv", "response_audio\n", "the table holds no rows"),
        ("m.csv", "", "the table holds no rows"),
        ("m.jsonl", "\n", "the table holds no rows"),
        ("m.csv", "response_audio,pair_id\na.wav\n", "row 1 (line 2): 1 value; expected 2, one per column"),
        ("m.csv", 'response_audio\n"a.wav\n', "not readable as CSV"),
        ("m.csv", "response_audio,response_audio\na,b\n", "column 'response_audio' stands twice in the header"),
        ("m.csv", b"response_audio\n" + b"a" * (2**24 + 1), "line 2: a longer line; expected lines of at most 16 MiB"),
        ("m.jsonl", '{"response_audio": "a"}\n{"response_audio"\n', "row 2 (line 2): not readable as JSON"),
        ("m.jsonl", '{"response_audio": "a", "response_audio": "b"}\n', "'response_audio' stands twice in an object"),
        ("m.jsonl", "[1]\n", "row 1 (line 1): value [1]; expected one JSON object per line"),
        ("m.jsonl", '{"response_audio": "a", "pair_id": 1.5}\n', "column 'pair_id': value 1.5; expected text"),
        (
            "m.jsonl",
            '{"response_audio": "a", "pair_id": "2"}\n{"response_audio": "b"}\n',
            "row 2 (line 2), column 'pair_id': '2' stands there twice, also in ",  # a number by default is an id
        ),
        ("m.csv", b"response_audio\n\xff.wav\n", "line 2: byte 0xff is not UTF-8"),
        ("m.parquet", b"PAR1 no more", "cannot be read (Parquet"),
        ("m.txt", "", "suffix '.txt'; expected .csv, .tsv, .jsonl, .parquet"),
    ],
)
def test_a_broken_table_is_one_line(name, content, text, clips):
    path = clips / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as found:
        Manifest(path).check()
    assert text in str(found.value)
    assert str(found.value).startswith(str(path))


def test_a_missing_table_and_one_that_changed_meanwhile(write, clips):
    with pytest.raises(DataError, match=r"absent\.csv: no such file"):
        Manifest(clips / "absent.csv")
    table = Manifest(write([row(0)]))
    with pytest.raises(DataError, match=r"row 70 is gone; was the file changed\?"):
        list(table.read(64, 6))


def test_parquet_is_read_on_where_it_was_left(clips, monkeypatch):
    """Large row groups are decoded once by a worker that goes forward, and those that it leaves out not at all."""
    pq.write_table(pa.table({"response_audio": ["r0.wav"] * 500}), clips / "m.parquet", row_group_size=400)
    opened = []
    plain = manifest.parquet_tables
    monkeypatch.setattr(manifest, "parquet_tables", lambda *given: opened.append(given) or plain(*given))
    table = Manifest(clips / "m.parquet")
    for first, times in ((0, 1), (64, 1), (192, 1), (384, 1), (448, 2), (128, 3)):
        assert [record.position for record in table.read(first, 10)] == list(range(first, first + 10))
        assert len(opened) == times


# ---------------------------------------------------------------- rows


def test_every_form_of_a_clip(clips):
    reader = RowReader(clips)
    data = (clips / "r1.wav").read_bytes()
    path = (clips / "r0.wav").resolve()
    for value, clip in (
        ("r0.wav", path),
        (data, data),
        ({"bytes": data, "path": "elsewhere.wav"}, data),
        ({"bytes": None, "path": "r0.wav", "sha256": "0"}, path),
    ):
        found = reader.row("a", {"response_audio": value, "context_audio": value, "situation": "Late."}, WHERE)
        assert isinstance(found.pair, Pair)
        assert (found.pair.response, found.pair.context[0].audio, found.pair.context[0].role) == (clip, clip, "user")
        assert (found.pair_id, found.pair.situation) == ("a", "Late.")
    turns = [{"role": "user", "audio": "c.wav"}, {"role": "assistant", "path": "r0.wav", "bytes": None}]
    found = reader.row("a", {"response_audio": "r1.wav", "context_audio": turns, "situation": float("nan")}, WHERE)
    assert isinstance(found.pair, Pair)
    assert found.pair.situation is None
    assert [(turn.role, Path(str(turn.audio)).name) for turn in found.pair.context] == [
        ("user", "c.wav"),
        ("assistant", "r0.wav"),
    ]


def test_a_folder_that_is_named_may_hold_clips_and_links(clips, tmp_path):
    """Links are followed where they stand in the folder that the user named, and nowhere else."""
    beside, named, other = clips / "beside", tmp_path / "named", tmp_path / "other"
    for folder in (beside, named / "sub", other):
        folder.mkdir(parents=True)
    data = (clips / "r0.wav").read_bytes()
    for path in (named / "sub" / "in.wav", other / "out.wav", beside / "both.wav", named / "both.wav"):
        path.write_bytes(data)
    (named / "link.wav").symlink_to(other / "out.wav")
    (named / "folder").symlink_to(other)
    (named / "around.wav").symlink_to("../other/out.wav")
    (beside / "to_named").symlink_to(named)
    (beside / "to_named_and_out").symlink_to(named / "folder")
    (beside / "to_other").symlink_to(other)
    (beside / "over_named").symlink_to(named / ".." / "other")  # never stands in it
    reader = RowReader(beside, named)
    for value, path in (
        ("both.wav", beside / "both.wav"),  # what lies beside the manifest goes before
        ("sub/in.wav", named / "sub" / "in.wav"),
        ("link.wav", other / "out.wav"),
        ("folder/out.wav", other / "out.wav"),
        ("around.wav", other / "out.wav"),
        ("to_named/sub/in.wav", named / "sub" / "in.wav"),
        ("to_named/link.wav", other / "out.wav"),
        ("to_named/folder/out.wav", other / "out.wav"),
        ("to_named_and_out/out.wav", other / "out.wav"),
        (str(named / "both.wav"), named / "both.wav"),  # not what has that name beside the manifest
        (str(beside / "both.wav"), beside / "both.wav"),
    ):
        found = reader.row("a", {"response_audio": value}, WHERE)
        assert isinstance(found.pair, Pair), value
        assert found.pair.response == path.resolve(), value
    for value, kind in (
        ("to_other/out.wav", "leaves the folder"),
        ("over_named/out.wav", "leaves the folder"),
        ("../other/out.wav", "leaves the folder"),
        (str(other / "out.wav"), "leaves the folder"),
        (str(beside / "sub" / "in.wav"), "no such file"),  # although the folder that was named has one
        ("none.wav", "no such file"),
    ):
        found = reader.row("a", {"response_audio": value}, WHERE)
        assert isinstance(found.pair, AudioError), value
        assert found.pair.kind == kind, value
    assert str(found.pair).endswith(f"no such file in {beside.resolve()} and {named.resolve()}")
    alone = RowReader(beside).row("a", {"response_audio": "to_named/link.wav"}, WHERE)
    assert isinstance(alone.pair, AudioError)
    # Only `score` has an option that names the other folder
    (beside / "rows.csv").write_text(f"response_audio\n{other / 'out.wav'}\n")
    (row,) = rows_of_manifest(beside / "rows.csv", None)
    assert str(row.pair).endswith(f"or the folder named: --audio-root {other}")
    told = RowReader(beside).row("a", {"response_audio": str(other / "out.wav")}, WHERE)
    assert "--audio-root" not in str(told.pair)


@pytest.mark.parametrize(
    ("cells", "kind", "text"),
    [
        ({}, "empty cell", f"{WHERE}, column 'response_audio': empty; expected a clip"),
        ({"response_audio": "absent.wav"}, "no such file", "'response_audio': value 'absent.wav': no such file in "),
        ({"response_audio": "../outside.wav"}, "leaves the folder", "value '../outside.wav' leaves the folder "),
        ({"response_audio": "/etc/passwd"}, "leaves the folder", "value '/etc/passwd' leaves the folder "),
        ({"response_audio": "link.wav"}, "leaves the folder", "value 'link.wav' leaves the folder "),
        ({"response_audio": " leaves"}, "no such file", "value ' leaves': no such file"),
        ({"response_audio": "a\x00b"}, "no such file", r"value 'a\x00b': no such file"),
        ({"response_audio": 7}, "not a clip", "value 7; expected the path of an audio file, or its bytes"),
        ({"response_audio": {"url": "x"}}, "not a clip", "expected the path of an audio file, or its bytes"),
        ({"response_audio": {"bytes": b"", "path": None}}, "empty cell", "empty"),
        ({"response_audio": "r0.wav", "context_audio": "x"}, "no such file", "'context_audio': value 'x': no such"),
        ({"response_audio": "r0.wav", "context_audio": [{"audio": "c.wav"}]}, "not a turn", '{"role": "user", '),
        ({"response_audio": "r0.wav", "context_audio": ["c.wav"]}, "not a turn", "value 'c.wav'; expected"),
        ({"response_audio": "r0.wav", "situation": 5.5}, "not text", "'situation': value 5.5; expected text"),
    ],
)
def test_what_cannot_be_used_is_named(cells, kind, text, clips):
    (clips / "link.wav").symlink_to(clips.parent / "outside.wav")
    found = RowReader(clips).row("a", cells, WHERE)
    assert isinstance(found.pair, AudioError)
    assert found.pair.kind == kind
    assert str(found.pair).startswith(WHERE)
    assert text in str(found.pair)
    without = RowReader(None).row("a", {"response_audio": str(clips / "r0.wav")}, WHERE)
    assert isinstance(without.pair, AudioError)
    assert without.pair.kind == "a path"


def test_copied_columns_have_one_name_each(tmp_path):
    """Of scores that were scored again."""
    path = tmp_path / "m.csv"
    path.write_text("response_audio,manifest_warm,warm,manifest_manifest_warm\na.wav,1,2,3\n")
    names = {name: column.name for name, column in Manifest(path).copied({"warm"}).items()}
    assert names == {
        "manifest_warm": "manifest_warm",
        "warm": "manifest_manifest_manifest_warm",
        "manifest_manifest_warm": "manifest_manifest_warm",
    }
