"""Clips that a table refers to: what cannot be used is listed by its place; no path leaves the folder."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
import soundfile
from empathy_judge.cli import main
from empathy_judge.core.errors import shown

from ..builders import Source, reasons


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

    def test_an_absolute_path_says_which_folder_can_be_named(self, source):
        source.tone("../elsewhere/own.wav")
        source.pairs[1]["response_audio"] = str(source.folder.parent / "elsewhere" / "own.wav")
        folder = re.escape(str(source.folder.parent / "elsewhere"))
        source.refuses(rf"expected a path relative to it, or the folder named: --audio-root {folder};")
        for path in (f"{source.folder}/../elsewhere/own.wav", f"{source.folder.parent}/elsewhere/none.wav"):
            source.pairs[1]["response_audio"] = path
            source.refuses(r"leaves the folder \S+; expected a path relative to it(?!,)")

    def test_an_absolute_path_may_reach_the_folder_by_a_link_above_it(self, source):
        """As below /tmp, which is /private/tmp on some systems."""
        (source.folder.parent / "also").symlink_to(source.folder)
        expected = source.load().pairs[1].response.read_bytes()
        source.pairs[1]["response_audio"] = str(source.folder.parent / "also" / source.pairs[1]["response_audio"])
        assert source.load(overwrite=True).pairs[1].response.read_bytes() == expected

    @pytest.mark.parametrize("path", ["a\0b.wav", "x" * 5_000, "clips", "loop/a.wav", "."])
    def test_paths_that_are_no_files(self, source, path):
        os.symlink("loop", source.folder / "loop")
        pairs = source.table("pairs.jsonl", [*source.pairs[:1], {**source.pairs[1], "response_audio": path}])
        ratings = source.table("r.csv", source.ratings[:2])
        source.refuses(r"pairs\.jsonl, row 2 \(line 2\), column 'response_audio': ", pairs, ratings)


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
