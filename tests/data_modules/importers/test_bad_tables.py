"""Tables that cannot be imported: every mistake is named by its place, and nothing is written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from empathy_judge.data_modules.errors import DataError
from empathy_judge.data_modules.ratings import Dimension, parse_dimension

from ..builders import EMPATHY

HUGE = 10**400


def renamed(rows: list[dict[str, Any]], old: str, new: str) -> None:
    for row in rows:
        row[new] = row.pop(old)


class TestBadTables:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: s.ratings[2].update(pair_id="x"),
             r"row 3 \(line 4\), column 'pair_id': value 'x'; no such pair"),
            (lambda s: [row.update(pair_id="x") for row in s.ratings[2:4]], r"row 3 .*no such pair.*\(1 more\)"),
            (lambda s: s.ratings[7].update(dimension="warmth"),
             r"row 8 \(line 9\), column 'dimension': .*expected emp"),
            (lambda s: s.pairs[3].update(pair_id="000-0"),
             r"pairs\.csv, row 4 \(line 5\), .*'000-0'; .*row 1 \(line 2"),
            (lambda s: s.ratings.append({**s.ratings[2], "score": 4}),
             r"row 9 \(line 10\), .*'000-1'; .* row 3 \(line"),
            (lambda s: s.ratings[1].update(rater_id=""),
             r"row 2 \(line 3\), column 'rater_id': value None; expected tex"),
            (lambda s: [row.pop("rater_id") for row in s.ratings],
             r"no column 'rater_id'; it has 'pair_id', 'dimension'.*\(--rating-column\)"),
            (lambda s: renamed(s.pairs, "pair_id", "id"),
             r"no column 'pair_id'; .*expected a mapping pair_id=COLUMN \(--column\)"),
            (lambda s: s.pairs[1].update(system_id="s3 "),
             r"pairs\.csv, row 2 \(line 3\), column 'system_id': value 's3 '; .*without spaces around"),
            (lambda s: s.ratings[2].update(rater_id=" x"),
             r"ratings\.csv, row 3 \(line 4\), column 'rater_id': value ' x'; .*without spaces around it"),
            (lambda s: s.pairs.clear(), r"pairs\.csv: the table holds no rows"),
            (lambda s: s.ratings.clear(), r"ratings\.csv: the table holds no rows"),
        ],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, source, change, message):
        change(source)
        source.refuses(message)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"columns": {"response_audio": "file"}},
                r"no column 'file' \(mapped to response_audio\); it has 'pair_id'",
            ),
            ({"columns": {"speaker": "system_id"}}, "column mapping speaker=system_id: expected .*: pair_id, group_id"),
            (
                {"dimensions": []},
                r"pairs\.csv: no dimensions \(--dimension NAME=LOW:HIGH\[:STEP\]\); expected at least one, each",
            ),
            ({"dimensions": [EMPATHY, EMPATHY]}, "dimensions .*each name once"),
        ],
    )
    def test_mappings(self, source, options, message):
        source.refuses(message, **options)

    @pytest.mark.parametrize(
        ("score", "message"),
        [
            (6, r"value 6; expected for empathy: 1 to 5 in steps of 1"),
            (0, r"value 0; expected for empathy: 1 to 5"),
            (2.5, r"value 2\.5; expected for empathy: 1 to 5 in steps of 1"),
            ("nan", "value 'nan'; expected a finite number"),
            ("1e999", "value inf; expected a finite number"),
            ("good", "value 'good'; expected a finite number"),
            ("1_0", "value '1_0'; expected"),
            ("3,5", r"value '3,5'; expected a finite number, such as 3\.5"),
            ("NA", "value 'NA'; expected .*; not rated is an empty cell of a wide table, or no row of a long one"),
            ("\u0664", "value '\u0664'; expected a finite number"),
            ("", "value None; expected a finite number"),
        ],
    )
    def test_scores(self, source, score, message):
        source.ratings[4]["score"] = score
        source.refuses(rf"ratings\.csv, row 5 \(line 6\), column 'score': {message}")

    @pytest.mark.parametrize("score", [10**400, True, [3], {"a": 1}, None, float("nan")])
    def test_scores_in_json(self, source, score):
        source.ratings[1]["score"] = score
        pairs, ratings = source.table("pairs.csv", source.pairs), source.table("r.jsonl", source.ratings)
        source.refuses(r"r\.jsonl, row 2 \(line 2\), column 'score': value .*finite number", pairs, ratings)

    def test_not_utf_8(self, source):
        pairs, ratings = source.table("pairs.csv", source.pairs), source.table("r.csv", source.ratings)
        data = pairs.read_bytes()
        line = data.splitlines(keepends=True)
        pairs.write_bytes(b"".join([*line[:2], line[2].replace(b"g0", b"caf\xe9"), *line[3:]]))
        offset = pairs.read_bytes().index(b"\xe9")
        source.refuses(rf"pairs\.csv, line 3: byte 0xe9 at offset {offset} is not UTF-8", pairs, ratings)
        pairs.write_text(data.decode(), encoding="utf-16")
        source.refuses(r"pairs\.csv, line 1: byte 0xff at offset 0 is not UTF-8", pairs, ratings)

    def test_byte_order_mark_is_no_part_of_the_header(self, source):
        pairs = source.table("pairs.csv", source.pairs)
        pairs.write_text(pairs.read_text(), encoding="utf-8-sig")
        assert len(source.load(pairs, source.table("r.csv", source.ratings)).pairs) == 4

    def test_ragged_rows_and_broken_quotes(self, source):
        ratings = source.table("r.csv", source.ratings)
        pairs = source.folder / "pairs.csv"
        pairs.write_text('pair_id,response_audio\n"a\nb",x.wav\n\nc,x.wav,extra\n')
        source.refuses(r"pairs\.csv, row 2 \(line 5\): 3 values; expected 2", pairs, ratings)
        pairs.write_text('pair_id,response_audio\na,x.wav\nb,"x.wav\n')
        source.refuses(r"pairs\.csv, line 3: not readable as CSV", pairs, ratings)
        pairs.write_text("pair_id,pair_id,response_audio\na,b,c\n")
        source.refuses("column 'pair_id' stands twice in the header", pairs, ratings)
        pairs.write_text("pair_id;response_audio\na;x,1.wav\n")
        source.refuses(r"pairs\.csv, line 1: columns are separated by ';'; expected ',' \(or tabs", pairs, ratings)
        pairs = pairs.rename(pairs.with_suffix(".xlsx"))
        source.refuses(r"suffix '\.xlsx'; expected .*\.parquet \(save the sheet as CSV UTF-8\)", pairs, ratings)

    @pytest.mark.parametrize("line", ["{", "[1]", '{"a": 1, "a": 2}', '{"a": ' + "9" * 5_000 + "}", "[" * 100_000])
    def test_broken_json(self, source, line):
        path = source.folder / "pairs.jsonl"
        path.write_text(json.dumps(source.pairs[0]) + "\n\n" + line + "\n")
        source.refuses(r"pairs\.jsonl, row 2 \(line 3\): ", path, source.table("r.csv", source.ratings))

    @pytest.mark.parametrize("value", [["a"], 1.5, True, {"x": 1}, "a\tb", "\ud800", 10**30, " "])
    def test_ids_of_odd_types(self, source, value):
        good, ratings = source.table("pairs.csv", source.pairs), source.table("r.csv", source.ratings)
        pairs = source.table("pairs.jsonl", [{**source.pairs[0], "pair_id": value}])
        source.refuses(r"pairs\.jsonl, row 1 \(line 1\), column 'pair_id': value .*expected text", pairs, ratings)
        for column in ("pair_id", "rater_id", "dimension"):
            ratings = source.table("r.jsonl", [{**source.ratings[0], column: value}])
            source.refuses(rf"r\.jsonl, row 1 \(line 1\), column '{column}': value ", good, ratings)

    def test_a_bad_tag_is_named_by_its_column(self, source):
        source.pairs[1] |= {"tag:cue": "sad ", "mood": "low"}
        source.pairs = [{"tag:cue": "", "mood": "", **row} for row in source.pairs]
        source.refuses(r"pairs\.csv, row 2 \(line 3\), column 'tag:cue': value 'sad '")
        source.pairs[1] |= {"tag:cue": "sad", "mood": "low\n"}
        source.refuses(r"pairs\.csv, row 2 \(line 3\), column 'mood': value 'low", columns={"tag:mood": "mood"})

    def test_broken_parquet_and_unknown_suffix(self, source):
        ratings = source.table("r.csv", source.ratings)
        for name, data, message in (
            ("pairs.parquet", b"PAR1 and so on", r"pairs\.parquet: not readable as Parquet"),
            ("pairs.xlsx", b"PK", r"suffix '\.xlsx'; expected \.csv, \.tsv, \.json, \.jsonl, \.parquet"),
        ):
            (source.folder / name).write_bytes(data)
            source.refuses(message, source.folder / name, ratings)
        source.refuses(r"nothing\.csv: no such file", source.folder / "nothing.csv", ratings)
        (source.folder / "folder.csv").mkdir()
        source.refuses(r"folder\.csv: is a folder; expected a file", source.folder / "folder.csv", ratings)
        source.refuses(r"/dev/null: is a device or pipe; expected a file", source.folder / "/dev/null", ratings)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("vocal_empathy=1:5:1", Dimension("vocal_empathy", 1, 5, 1)),
        ("x=0:100", Dimension("x", 0, 100)),
        ("x=0:100:lower", Dimension("x", 0, 100, None, False)),
        ("x=-3:3:0.5:lower", Dimension("x", -3, 3, 0.5, False)),
    ],
)
def test_parse_dimension(text, wanted):
    assert parse_dimension(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "x", "x=", "x=1", "x=1:a", "x=5:1", "x=1:1", "x=0:inf", "x=1:5:0", "x=1:5:3", "x=1:5:-1", "=1:5", "a b=1:5",
        "x=1:5:1:1", "x=1:5:higher", "x=nan:5", "x=lower", "x=1:1_0", "x=1:5:0_1",
        "x=1:5:1e-320", "x=-1e308:1e308", "x=0:1e308",
    ],
)  # fmt: skip
def test_parse_dimension_refuses(text):
    with pytest.raises(DataError, match=r"expected|does not divide"):
        parse_dimension(text)


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ((1, 5, HUGE), r"step 10+\.\.\. does not divide 1 to 5$"),
        ((HUGE, HUGE + 4), r"scale 10+\.\.\. to 10+\.\.\.; expected low:high, at most 1e\+50 apart and from 0$"),
        ((-HUGE, 5), r"scale -10+\.\.\. to 5; expected low:high"),
    ],
)
def test_a_whole_number_that_no_float_can_hold_is_refused(scale, message):
    """JSON and YAML have such numbers."""
    with pytest.raises(DataError, match=message):
        Dimension("x", *scale)
