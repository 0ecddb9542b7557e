"""Paths that another system wrote: where no file is found, the one that is meant is named."""

from __future__ import annotations

import unicodedata

import pytest
from empathy_judge.audio.decode import load_clip
from empathy_judge.core.errors import AudioError
from empathy_judge.core.spellings import spelling_hint
from empathy_judge.data_modules.importers.clips import find_clip

NFC, NFD = (unicodedata.normalize(form, "clips/für.wav") for form in ("NFC", "NFD"))


def test_the_other_spelling_is_hinted_at():
    there = {"clips/a.wav", NFD, "clips/é\\b.wav"}
    assert spelling_hint("clips\\a.wav", there.__contains__) == "; did you mean 'clips/a.wav'?"
    same = "; a file is there whose name looks the same: write it in the Unicode form"
    assert spelling_hint(NFC, there.__contains__) == f"{same} NFD"
    assert spelling_hint(NFD, {NFC}.__contains__) == f"{same} NFC"
    both = spelling_hint(NFC.replace("/", "\\"), there.__contains__)
    assert both == f"; did you mean {NFD!r}? write it in the Unicode form NFD"
    assert spelling_hint("clips/b.wav", there.__contains__) == spelling_hint("a\0.wav") == spelling_hint("") == ""


def test_every_door_gives_the_hint(tmp_path, make_tone):
    import soundfile

    folder = tmp_path / "clips"
    folder.mkdir()
    for name in ("a.wav", NFD.removeprefix("clips/")):
        soundfile.write(folder / name, make_tone(0.6, 300, 0.3), 16_000)
    if (tmp_path / NFC).exists():
        pytest.skip("this file system takes both forms for one")
    for path, hint in ((f"{tmp_path}\\clips\\a.wav", "did you mean"), (tmp_path / NFC, "Unicode form NFD")):
        with pytest.raises(AudioError, match=f"no such file; .*{hint}") as error:
            load_clip(path)
        assert error.value.kind == "no such file"
    for path, hint in (("clips\\a.wav", "did you mean 'clips/a.wav'\\?"), (NFC, "write it in the Unicode form NFD")):
        with pytest.raises(AudioError, match=f"no such file in .*{hint}$"):
            raise find_clip(path, "table, row 1", tmp_path.resolve()).content
