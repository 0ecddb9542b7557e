"""Importing tables: every layout gives the same dataset; every mistake is named, and nothing is written."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import soundfile
from empathy_judge.cli import main
from empathy_judge.data_modules import importers
from empathy_judge.data_modules.errors import UserError, shown
from empathy_judge.data_modules.ratings import Dimension

from ..builders import EMPATHY, Source, reasons, scores

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

    def test_an_absolute_path_into_the_folder_and_an_address_say_what_they_are(self, source):
        folder, relative = source.folder.resolve(), source.pairs[1]["response_audio"]
        source.pairs[1]["response_audio"] = str(folder / relative)
        source.refuses(rf"is absolute; expected a path relative to {folder}, such as '{relative}'")
        source.pairs[1]["response_audio"] = "https://example.org/a.wav"
        source.refuses("value 'https://example.org/a.wav' is an address; expected a file: download it first")

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
        source.refuses(r"header \('pair_id', 'a', 'b'\) fits no layout .*expected pair_id", pairs, ratings)
        empathy = {key: score for key, score in WANTED.items() if key[2] == "empathy"}
        assert scores(source.load(pairs, ratings, wide=True)) == empathy
        for row in source.pairs:
            for rater in "ab":
                row[rater] = empathy.get((row["pair_id"], rater, "empathy"))
        pairs = source.table("pairs.csv", source.pairs)
        assert scores(source.load(pairs, None, wide=True, overwrite=True)) == empathy

    def test_ambiguous_header(self, source):
        for row in source.ratings:
            row["empathy:x"] = 3
        source.refuses(r"fits long \(a column score\) and wide \(columns DIMENSION:RATER\)")
        assert len(source.load(wide=False).ratings) == 8


class TestBadAudio:
    def test_every_kind_of_bad_clip_is_skipped_and_listed(self, tmp_path):
        source = Source(tmp_path / "source", groups=10)
        soundfile.write(tmp_path / "secret.wav", 0.1 * np.ones(4_000), 16_000)
        (source.folder / "clips/004-0.wav").write_text("not audio at all, but text")
        header = bytearray((source.folder / "clips/005-0.wav").read_bytes())
        header[24:28] = (1).to_bytes(4, "little")
        (source.folder / "clips/005-0.wav").write_bytes(header)
        for row, (column, value) in {
            0: ("response_audio", "clips/gone.wav"),
            2: ("response_audio", "../secret.wav"),
            4: ("context_audio", "I lost my keys."),
            6: ("response_audio", ""),
        }.items():
            source.pairs[row][column] = value
        dataset = source.load(max_skipped=0.3)
        assert (len(dataset.pairs), len(dataset.ratings)) == (14, 28)
        folder = source.folder.resolve()
        assert reasons(dataset) == [
            ("pairs.csv, row 1 (line 2), column 'response_audio'", f"value 'clips/gone.wav': no such file in {folder}"),
            ("pairs.csv, row 3 (line 4), column 'response_audio'",
             f"value '../secret.wav' leaves the folder {folder}; expected a path relative to it"),
            ("pairs.csv, row 5 (line 6), column 'context_audio'", f"value 'I lost my keys.': no such file in {folder}"),
            ("pairs.csv, row 7 (line 8), column 'response_audio'", "value None; expected the path of an audio file"),
            ("pairs.csv, row 9 (line 10), column 'response_audio'",
             "004-0.wav: not a sound file; expected wav, flac, ogg, mp3, aiff, au"),
            ("pairs.csv, row 11 (line 12), column 'response_audio'",
             "005-0.wav: sample rate 1 Hz; expected 4000 to 384000 Hz"),
        ]  # fmt: skip
        assert dataset.card.description == "6 pairs skipped, see skipped.csv."
        message = r"row 1 \(line 2\), .*'clips/gone\.wav': no such file .*\(5 more .* 29% may"
        source.refuses(message, max_skipped=0.29, overwrite=True)

    @pytest.mark.parametrize(
        "path",
        [
            "../secret.wav", "clips/../../secret.wav", "{root}/secret.wav", "link.wav", "folder/secret.wav",
            "..\\secret.wav", "C:\\secret.wav", "\\\\host\\secret.wav",
        ],
    )  # fmt: skip
    def test_paths_that_leave_the_folder(self, source, path):
        secret = source.folder / "../elsewhere/secret.wav"
        source.tone("../elsewhere/secret.wav")
        source.tone("../secret.wav")
        os.symlink(secret.resolve(), source.folder / "link.wav")
        os.symlink(secret.resolve().parent, source.folder / "folder")
        path = path.format(root=source.folder.parent)
        source.pairs[1]["response_audio"] = path
        source.refuses(rf"row 2 \(line 3\), column 'response_audio': value {re.escape(shown(path))} leaves the folder")

    @pytest.mark.parametrize("path", ["a\0b.wav", "x" * 5_000, "clips", "loop/a.wav", "."])
    def test_paths_that_are_no_files(self, source, path):
        os.symlink("loop", source.folder / "loop")
        pairs = source.table("pairs.jsonl", [*source.pairs[:1], {**source.pairs[1], "response_audio": path}])
        ratings = source.table("r.csv", source.ratings[:2])
        source.refuses(r"pairs\.jsonl, row 2 \(line 2\), column 'response_audio': ", pairs, ratings)


def test_every_source_has_an_example():
    for name in importers.SOURCES:
        assert importers.load(name).EXAMPLE.startswith(f"{name} ")
        assert (importers.load(name).__doc__ or "").startswith("Imports ")
    with pytest.raises(UserError, match=r"import 'nothing': expected one of echomind, empathy-eval"):
        importers.load("nothing")


class TestAudioRoot:
    """A folder of audio that is a symbolic link to another disk."""

    @pytest.fixture
    def linked(self, source, tmp_path) -> Any:
        (source.folder / "clips").rename(tmp_path / "disk")
        (source.folder / "clips").symlink_to(tmp_path / "disk")
        source.table("pairs.csv", source.pairs)
        source.table("ratings.csv", source.ratings)
        return source

    def run(self, source: Source, *words: str) -> int:
        tables = [str(source.folder / "pairs.csv"), "--ratings", str(source.folder / "ratings.csv")]
        return main(["import", "table", *tables, "--dimension", "empathy=1:5:1", "--out", str(source.out), *words])

    def test_it_is_named_or_refused(self, linked, tmp_path, capsys):
        assert self.run(linked) == 2
        assert "clips/context0.wav' leaves the folder" in capsys.readouterr().err
        assert self.run(linked, "--audio-root", str(tmp_path / "disk")) == 0
        said = capsys.readouterr().out
        assert f"{linked.out}: 4 pairs in 2 groups, 8 ratings by 2 raters, 0 preferences; 0 pairs have no" in said
        assert "{" not in said

    def test_a_link_in_it_is_followed_and_one_beside_it_is_not(self, linked, tmp_path, capsys):
        clip = tmp_path / "disk" / "000-1.wav"
        clip.rename(tmp_path / "other.wav")
        clip.symlink_to(tmp_path / "other.wav")
        (tmp_path / "elsewhere").mkdir()
        assert self.run(linked, "--audio-root", str(tmp_path / "elsewhere")) == 2
        assert "clips/context0.wav' leaves the folder" in capsys.readouterr().err
        assert self.run(linked, "--audio-root", str(tmp_path / "disk")) == 0
        assert self.run(linked, "--audio-root", str(tmp_path / "none"), "--overwrite") == 2
        assert f"argument --audio-root: '{tmp_path / 'none'}': expected a folder" in capsys.readouterr().err

    def test_paths_count_from_it_where_the_table_has_no_such_file(self, linked, tmp_path):
        (linked.folder / "clips").unlink()
        (tmp_path / "root").mkdir()
        (tmp_path / "disk").rename(tmp_path / "root" / "clips")
        assert self.run(linked, "--audio-root", str(tmp_path / "root")) == 0
