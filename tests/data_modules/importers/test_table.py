"""Importing tables: every layout gives the same dataset; every mistake is named, and nothing is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from empathy_judge.core.errors import UserError
from empathy_judge.data_modules import importers
from empathy_judge.data_modules.ratings import Dimension

from ..builders import EMPATHY, scores

WARMTH = Dimension("warmth", 0, 100)


class TestWhatIsImported:
    def test_times(self, source):
        for number, row in enumerate(source.ratings):
            row["seconds"] = "" if number == 1 else number / 4
        long = source.load()
        known = [0, None, 0.5, 0.75, 1, 1.25, 1.5, 1.75]
        assert long.ratings["seconds"].tolist() == [pytest.approx(value, nan_ok=True) for value in pd.Series(known)]
        assert long.card.description == ""
        for row in source.ratings:
            row["took"] = row.pop("seconds")
        mapped = source.load(rating_columns={"seconds": "took"}, overwrite=True)
        assert mapped.card.content_hash == long.card.content_hash
        unmapped = source.load(overwrite=True)
        assert "seconds" not in unmapped.ratings
        assert unmapped.card.description == "Columns not imported: took."
        source.ratings[4]["took"] = "3 s"
        message = r"ratings\.csv, row 5 \(line 6\), column 'took': value '3 s'; expected a finite number of seconds"
        source.refuses(message, rating_columns={"seconds": "took"}, overwrite=True)

    def test_the_time_of_a_row_is_that_of_all_its_ratings(self, source):
        source.ratings = [
            {"pair_id": "000-0", "rater_id": "a", "empathy": 1, "warmth": 20, "seconds": 7.5},
            {"pair_id": "000-0", "rater_id": "b", "empathy": 2, "warmth": "", "seconds": 3},
        ]
        dataset = source.load(dimensions=[EMPATHY, WARMTH])
        rows = list(dataset.ratings[["rater_id", "dimension", "seconds"]].itertuples(index=False, name=None))
        assert rows == [("a", "empathy", 7.5), ("a", "warmth", 7.5), ("b", "empathy", 3.0)]

    def test_times_of_nobody(self, source):
        """Beside the pairs a column of that name may be the length of the clip; a row of several raters has no time."""
        for row in source.pairs:
            row |= {"rater_id": "a", "score": 3, "seconds": 0.3}
        table = source.table("pairs.csv", source.pairs)
        dataset = source.load(table, None)
        assert "seconds" not in dataset.ratings
        assert dataset.card.description == "Columns not imported: seconds."
        mapped = source.load(table, None, rating_columns={"seconds": "seconds"}, overwrite=True)
        assert mapped.ratings["seconds"].tolist() == [0.3] * 4
        source.ratings = [{"pair_id": "000-0", "empathy:a": 1, "empathy:b": 2, "seconds": 3}]
        wide = source.load(overwrite=True)
        assert wide.card.description.endswith("rater_id, score, seconds, seconds.")
        message = "column 'seconds' cannot be seconds, because a row holds the ratings of several raters"
        source.refuses(message, rating_columns={"seconds": "seconds"}, overwrite=True)

    def test_published_means(self, source):
        """Of each pair a mean, the standard deviation and the number of its ratings; nobody is named."""
        figures = [(3.25, 0.5, 4), (2.0, 1.0, 3), (4.5, 0.71, 2), (1.0, 0.0, 12)]
        for row, (mean, sd, n) in zip(source.pairs, figures, strict=True):
            row |= {"mean": mean, "sd": sd, "n": n, "price": 7}
        scale = Dimension("empathy", 1, 5)
        beside = source.load(source.table("pairs.csv", source.pairs), None, dimensions=[scale])
        found = beside.ratings[["rater_id", "score", "sd", "n"]]
        assert list(found.itertuples(index=False, name=None)) == [("panel", *row) for row in figures]
        assert beside.card.description == "Columns not imported: price."
        source.ratings = [
            {"pair_id": row["pair_id"], "dimension": "empathy", "MOS": row["mean"], "Std": row["sd"], "votes": row["n"]}
            for row in source.pairs
        ]
        names = {"mean": "MOS", "sd": "Std", "n": "votes"}
        apart = source.load(dimensions=[scale, WARMTH], rating_columns=names, overwrite=True)
        assert apart.ratings[["score", "sd", "n"]].equals(beside.ratings[["score", "sd", "n"]])
        message = r"no column .*; or, of published means, --rating-column mean=COLUMN sd=COLUMN n=COLUMN$"
        source.refuses(message, dimensions=[scale], overwrite=True)
        before = apart.card.content_hash
        source.ratings[0]["Std"] = 0.6
        changed = source.load(dimensions=[scale, WARMTH], rating_columns=names, overwrite=True)
        assert changed.card.content_hash != before

    @pytest.mark.parametrize(
        ("column", "value", "message"),
        [
            ("sd", "", r"row 2 \(line 3\), column 'sd': value .*; expected sd and n of every mean"),
            ("sd", 2.5, r"column 'sd': value 2\.5; expected less: no ratings from 1 to 5 differ so much"),
            ("n", 1, r"column 'n': value 1; expected the number of ratings, at least 2"),
            ("n", 2.5, r"column 'n': value 2\.5; expected a whole number of ratings"),
            ("pair_id", "000-0", r"column 'pair_id': value '000-0'; expected one mean of empathy for each pair"),
            (None, EMPATHY, r"empathy is 1 to 5 in steps of 1; expected empathy=1:5, since means lie between steps"),
        ],
    )
    def test_means_that_cannot_be(self, source, column, value, message):
        source.ratings = [{"pair_id": row["pair_id"], "mean": 3, "sd": 1, "n": 5} for row in source.pairs]
        if column is not None:
            source.ratings[1][column] = value
        source.refuses(message, dimensions=[value if column is None else Dimension("empathy", 1, 5)])

    def test_ratings_go_before_means_beside_them(self, source):
        """A summary beside the ratings of each rater, whose number of ratings may be anything."""
        source.ratings = [
            {"pair_id": "000-0", "empathy:a": 1, "empathy:b": 2, "mean": 1.5, "sd": 0.7, "n": 2},
            {"pair_id": "000-1", "empathy:a": 1, "empathy:b": "", "mean": 1, "sd": "", "n": 1},
        ]
        dataset = source.load()
        assert dataset.ratings["rater_id"].tolist() == ["a", "b", "a"]
        assert not {"sd", "n"} & {*dataset.ratings.columns}

    def test_leading_zeros_and_the_text_na_stay(self, source):
        source.pairs[0]["pair_id"] = "001"
        source.pairs[1]["pair_id"] = "1"
        source.pairs[2]["pair_id"] = "NA"
        source.pairs = source.pairs[:3]
        source.ratings = [
            {"pair_id": p, "rater_id": r, "score": 3} for p in ("001", "1", "NA") for r in ("007", "7", "null")
        ]
        dataset = source.load()
        assert [pair.pair_id for pair in dataset.pairs] == ["001", "1", "NA"]
        assert set(dataset.ratings["rater_id"]) == {"007", "7", "null"}
        assert len(dataset.ratings) == 9

    def test_tags(self, source):
        ratings, emotions = source.table("r.csv", source.ratings), ["sad", "glad", "", "sad"]

        def imported(name: str, rows: list[dict[str, Any]], **columns: Any) -> Any:
            embed = name.endswith("jsonl")
            return source.load(source.table(name, rows), ratings, overwrite=True, embed_audio=embed, **columns)

        rows = [row | {"tag:age": str(20 + n), "emotion": emotions[n]} for n, row in enumerate(source.pairs)]
        dataset = imported("pairs.csv", rows, columns={"tag:cue": "emotion"})
        assert [pair.tags for pair in dataset.pairs][1:3] == [(("age", "21"), ("cue", "glad")), (("age", "22"),)]
        assert dataset.card.description == ""
        rows = [row | {"tags": {"age": str(20 + n), "cue": emotions[n] or None}} for n, row in enumerate(source.pairs)]
        assert imported("pairs.jsonl", rows).card.content_hash == dataset.card.content_hash
        own = [row | {"tags": [{"name": "cue", "value": "sad"}], "tag:cue": "glad"} for row in source.pairs]
        assert {pair.tags for pair in imported("own.jsonl", own).pairs} == {(("cue", "glad"),)}

    @pytest.mark.parametrize("value", ["sad", ["sad"], 3, {"cue": 1.5}, {"cue": "two\nlines"}, [{"value": "sad"}]])
    def test_tags_that_are_none(self, source, value):
        pairs = source.table("pairs.jsonl", [row | {"tags": value} for row in source.pairs])
        message = r"pairs.jsonl, row 1 \(line 1\), column 'tags': value .*; expected text"
        source.refuses(message, pairs, source.table("r.csv", source.ratings))

    def test_stored_names_tell_nothing(self, source):
        source.tone("clips/angry_score_5.wav", hertz=500)
        source.pairs[0]["response_audio"] = "clips/angry_score_5.wav"
        dataset = source.load()
        for pair in dataset.pairs:
            assert isinstance(pair.response, Path)
            assert re.fullmatch(r"[0-9a-f]{32}\.wav", pair.response.name)
            assert pair.response.parent == (source.out / "audio").resolve()
        assert len(list((source.out / "audio").iterdir())) == 6  # 4 responses, 2 contexts that are shared

    def test_groups_from_context_and_situation(self, source):
        for row in source.pairs:
            del row["group_id"]
        # The same content under another name is the same context.
        copy = source.folder / "clips/copy.wav"
        copy.write_bytes((source.folder / "clips/context0.wav").read_bytes())
        source.pairs[1]["context_audio"] = "clips/copy.wav"
        first, second, third, fourth = (pair.group_id for pair in source.load().pairs)
        assert first == second != third == fourth
        for row, situation in zip(source.pairs, ["lost keys", "new job", "new job", "new job"], strict=True):
            row["situation"] = situation
        embedded = source.load(overwrite=True, embed_audio=True)
        first, second, third, fourth = (pair.group_id for pair in embedded.pairs)
        assert len({first, second, third}) == 3
        assert third == fourth

    def test_groups_without_context_follow_the_response(self, source):
        for row in source.pairs:
            del row["group_id"], row["context_audio"]
        source.pairs[3]["response_audio"] = source.pairs[0]["response_audio"]
        first, second, third, fourth = (pair.group_id for pair in source.load().pairs)
        assert first == fourth
        assert len({first, second, third}) == 3

    def test_an_absolute_path_into_the_folder_is_taken_and_an_address_says_what_it_is(self, source):
        folder, relative = source.folder.resolve(), source.pairs[1]["response_audio"]
        source.pairs[1]["response_audio"] = str(folder / relative)
        absolute = source.load()
        source.pairs[1]["response_audio"] = relative
        assert source.load(overwrite=True).card.content_hash == absolute.card.content_hash
        source.pairs[1]["response_audio"] = "https://example.org/a.wav"
        message = "value 'https://example.org/a.wav' is an address; expected a file: download it first"
        source.refuses(message, overwrite=True)

    def test_without_a_usable_pair_the_first_reason_is_named(self, source):
        for row in source.pairs:
            row["response_audio"] = f"no-{row['response_audio']}"
        message = r"value 'no-.*no such file in .* \(3 more unusable of 4 pairs\); no pair is left$"
        source.refuses(message, max_skipped=1)

    def test_a_folder_of_something_else_is_never_replaced(self, source):
        source.out.mkdir()
        (source.out / "thesis.tex").write_text("years of work")
        source.refuses("exists and is not a pair dataset", overwrite=True)
        assert (source.out / "thesis.tex").read_text() == "years of work"
        source.out = Path("/")
        source.refuses("^/: exists and is not a pair dataset")


WANTED = {
    ("000-0", "a", "empathy"): 1, ("000-0", "a", "warmth"): 10.5, ("000-0", "b", "empathy"): 2,
    ("000-1", "a", "warmth"): 30, ("001-0", "b", "empathy"): 5,
}  # fmt: skip


class TestLayouts:
    """The same ratings in every layout."""

    def long(self) -> list[dict[str, Any]]:
        return [{"pair_id": p, "rater_id": r, "dimension": d, "score": s} for (p, r, d), s in WANTED.items()]

    @pytest.mark.parametrize("suffix", ["csv", "CSV", "tsv", "jsonl", "parquet"])
    def test_long(self, source, suffix):
        files = []
        for name, rows in (("pairs", source.pairs), ("r", self.long())):
            files.append(source.folder / f"{name}.{suffix}")
            if suffix == "parquet":
                pd.DataFrame(rows).to_parquet(files[-1])
            else:
                source.table(f"{name}.{suffix.lower()}", rows).rename(files[-1])
        assert scores(source.load(*files, dimensions=[EMPATHY, WARMTH])) == WANTED

    def test_column_per_dimension(self, source):
        rows = [
            {"item": "000-0", "who": "a", "empathy": 1, "warmth": 10.5},
            {"item": "000-0", "who": "b", "empathy": 2, "warmth": None},
            {"item": "000-1", "who": "a", "empathy": None, "warmth": 30},
            {"item": "001-0", "who": "b", "empathy": 5, "warmth": None},
        ]
        columns, pairs = {"pair_id": "item", "rater_id": "who"}, source.table("pairs.csv", source.pairs)
        for ratings in (source.table("r.csv", rows), source.table("r.jsonl", rows)):
            how: dict[str, Any] = {"rating_columns": columns, "dimensions": [EMPATHY, WARMTH], "overwrite": True}
            assert scores(source.load(pairs, ratings, **how)) == WANTED

    def test_column_per_dimension_and_rater_in_the_table_of_pairs(self, source):
        for row in source.pairs:
            for rater in "ab":
                for dimension in ("empathy", "warmth"):
                    row[f"{dimension}:{rater}"] = WANTED.get((row["pair_id"], rater, dimension))
        dataset = source.load(source.table("pairs.csv", source.pairs), None, dimensions=[EMPATHY, WARMTH])
        assert scores(dataset) == WANTED
        assert dataset.card.description == ""

    def test_column_per_rater_only_on_demand(self, source):
        rows = [{"pair_id": "000-0", "a": 1, "b": 2}, {"pair_id": "001-0", "a": "", "b": 5}]
        pairs, ratings = source.table("pairs.csv", source.pairs), source.table("ratings.csv", rows)
        message = r"no column 'rater_id', 'score'; .* --rating-column rater_id=COLUMN score=COLUMN, or --scores 'a' 'b'"
        source.refuses(message, pairs, ratings)
        empathy = {key: score for key, score in WANTED.items() if key[2] == "empathy"}
        assert scores(source.load(pairs, ratings, scores=["a", "b"])) == empathy
        for row in source.pairs:
            for rater in "ab":
                row[rater] = empathy.get((row["pair_id"], rater, "empathy"))
        pairs = source.table("pairs.csv", source.pairs)
        assert scores(source.load(pairs, None, scores=["a", "b"], overwrite=True)) == empathy

    def test_ambiguous_header(self, source):
        for row in source.ratings:
            row["empathy:x"] = 3
        source.refuses(r"fits long \(a column score\) and wide \(columns DIMENSION:RATER\)")
        assert len(source.load(scores=["score"]).ratings) == 8


def test_every_source_has_an_example():
    for name in importers.SOURCES:
        assert importers.load(name).EXAMPLE.startswith(f"{name} ")
        assert (importers.load(name).__doc__ or "").startswith("Imports ")
    with pytest.raises(UserError, match=r"import 'nothing': expected one of echomind, empathy-eval"):
        importers.load("nothing")


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
             r"no column 'rater_id'; it has 'pair_id', 'dimension'.*; expected --rating-column rater_id=COLUMN$"),
            (lambda s: renamed(s.pairs, "pair_id", "id"),
             r"no column 'pair_id'; .*expected --column pair_id=COLUMN"),
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
            ("1e999", "value inf; expected a finite number"),
            ("good", "value 'good'; expected a finite number, .*--choice 'good=NUMBER'"),
            ("1_0", "value '1_0'; expected"),
            ("3,5", r"value '3,5'; expected a finite number, such as 3\.5"),
            ("\u0664", "value '\u0664'; expected a finite number"),
        ],
    )
    def test_scores(self, source, score, message):
        source.ratings[4]["score"] = score
        source.refuses(rf"ratings\.csv, row 5 \(line 6\), column 'score': {message}")

    @pytest.mark.parametrize("score", [10**400, True, [3], {"a": 1}])
    def test_scores_in_json(self, source, score):
        source.ratings[1]["score"] = score
        pairs, ratings = source.table("pairs.csv", source.pairs), source.table("r.jsonl", source.ratings)
        source.refuses(r"r\.jsonl, row 2 \(line 2\), column 'score': value .*finite number", pairs, ratings)

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
