"""Clips in Parquet files are read when they are needed, in any process and thread; loading looks at columns alone."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest
from empathy_judge.audio import stored_clips
from empathy_judge.audio.decode import audio_hash, decode, probe
from empathy_judge.audio.stored_clips import StoredClip
from empathy_judge.core.errors import AudioError
from empathy_judge.core.processes import map_threads
from empathy_judge.data_modules import clip_measures, writing
from empathy_judge.data_modules.overview import inspect_dataset
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.sampling import row_groups
from empathy_judge.data_modules.schema import DatasetCard, Pair, PairDataset
from empathy_judge.data_modules.writing import write_dataset

from ..data_modules.builders import set_cell

PAIRS, SHARD_ROWS = 60, 25


class TestClips:
    def test_every_clip_is_the_right_one(self, sharded):
        for row, pair in zip(sharded.pairs, PairDataset.load(sharded.out).pairs, strict=True):
            response, context = pair.response, pair.context[0].audio
            assert isinstance(response, StoredClip)
            assert isinstance(context, StoredClip)
            assert response.read() == (sharded.folder / row["response_audio"]).read_bytes()
            assert context.read() == (sharded.folder / row["context_audio"]).read_bytes()
            assert probe(context).seconds == pytest.approx(0.3)
            assert len(decode(response, 8_000)) == 2_400

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_other_processes(self, sharded, method):
        if method == "fork" and sys.platform == "win32":
            pytest.skip("no fork here")
        dataset = PairDataset.load(sharded.out)
        clips: Any = [pair.response for pair in dataset.pairs]
        wanted = [dataset.fingerprints[pair.pair_id][-1] for pair in dataset.pairs]
        assert audio_hash(clips[0]) == wanted[0]  # the parent has the file open
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(audio_hash, clips) == wanted
        assert len(pickle.dumps(dataset.pairs)) < 1_000 * PAIRS

    def test_threads(self, sharded):
        dataset = PairDataset.load(sharded.out)
        order = np.random.default_rng(0).integers(PAIRS, size=500).tolist()
        found = map_threads(lambda n: audio_hash(dataset.pairs[n].response), order, "", len(order))
        assert list(found) == [dataset.fingerprints[dataset.pairs[n].pair_id][-1] for n in order]

    def test_what_is_kept_is_limited(self, sharded, monkeypatch):
        columns = stored_clips._Columns()
        monkeypatch.setattr(stored_clips, "_columns", columns)
        monkeypatch.setattr(stored_clips, "_KEPT_BYTES", 100_000)
        for pair in PairDataset.load(sharded.out).pairs:
            assert isinstance(pair.response, StoredClip)
            pair.response.read()
        assert 50_000 < columns._bytes <= 100_000
        assert columns._bytes == sum(array.nbytes for array in columns._arrays.values())

    def test_a_new_file_in_the_same_place(self, sharded):
        before = PairDataset.load(sharded.out).pairs[0].response
        decode(before, 16_000)
        sharded.tone("clips/000-0.wav", seconds=0.5)
        sharded.load(embed_audio=True, shard_rows=SHARD_ROWS, overwrite=True)
        assert len(decode(PairDataset.load(sharded.out).pairs[0].response, 16_000)) == 8_000

    def test_changed_and_lost_content(self, sharded):
        dataset = PairDataset.load(sharded.out)
        path = sharded.out / "pairs/part-00000.parquet"
        other = {"path": None, "bytes": b"not audio", "sha256": dataset.fingerprints["000-2"][-1]}
        set_cell(path, "response_audio", 2, other, row_group_size=4)
        changed = PairDataset.load(sharded.out)
        with pytest.raises(AudioError, match=r"part-00000\.parquet, row 3, column 'response_audio': .* not what was"):
            decode(changed.pairs[2].response, 16_000)
        found = inspect_dataset(PairDataset.load(sharded.out))
        assert [(problem.kind, problem.pair_id, problem.clip) for problem in found.problems] == [
            ("unreadable", "000-2", "response")
        ]
        path.unlink()
        stored_clips._forget()
        with pytest.raises(AudioError, match=r"part-00000\.parquet, row 3.*: no such file"):
            decode(changed.pairs[2].response, 16_000)


def test_inspect_goes_on_and_decodes_nothing_a_second_time(sharded, monkeypatch):
    first = inspect_dataset(PairDataset.load(sharded.out))
    path = sharded.out / clip_measures.MEASURED_FILE
    assert sum(map(bool, path.read_text().splitlines())) == 72
    path.write_bytes(path.read_bytes()[:1_000] + b"\xff")  # as after a kill, and a fault of the disk
    known = path.read_bytes().count(b"}")
    assert 0 < known < 20
    decoded = Mock(wraps=clip_measures.load_clip)
    monkeypatch.setattr(clip_measures, "load_clip", decoded)
    for _ in range(2):
        assert inspect_dataset(PairDataset.load(sharded.out)) == first
        assert len(decoded.call_args_list) == 72 - known
    loud = inspect_dataset(PairDataset.load(sharded.out), max_seconds=0.1)
    assert len(loud.problems) == 2 * PAIRS  # thresholds are applied anew
    assert len(decoded.call_args_list) == 72 - known


def test_where_audio_is_not_embedded_the_order_is_as_ever(sharded):
    embedded = PairDataset.load(sharded.out).pairs
    groups = row_groups(embedded)
    assert groups is not None
    assert np.bincount(groups).tolist() == [*[4] * 6, 1, *[4] * 6, 1, 4, 4, 2]
    files = sharded.load(overwrite=True).pairs
    assert row_groups(files) is None
    assert row_groups((*embedded, Pair("x", b"some bytes"))) is None


@pytest.mark.parametrize("embed", [False, True])
def test_loading_looks_at_columns(source, embed):
    """No function of ours is called once for each pair."""
    package = str(Path(writing.__file__).parents[1])
    card = DatasetCard("tones", (Dimension("empathy", 1, 5, 1),), "test", "none")
    counts = []
    for n_pairs in (2, 120):
        clip: Any = (source.folder / "clips/000-0.wav").read_bytes() if embed else "clips/000-0.wav"
        pairs = pd.DataFrame({"pair_id": [f"p{number}" for number in range(n_pairs)]})
        pairs = pairs.assign(group_id=pairs["pair_id"], response_audio=[clip] * n_pairs, context_audio=[clip] * n_pairs)
        ratings = pairs[["pair_id"]].assign(rater_id="r", dimension="empathy", score=[1, 5] * (n_pairs // 2))
        write_dataset(source.folder, card, pairs.assign(tags=[{"number": name} for name in pairs["pair_id"]]), ratings)
        calls: Counter[str] = Counter()

        def count(frame: FrameType, event: str, _: Any, calls: Counter[str] = calls) -> None:
            code = frame.f_code
            ours = code.co_filename.startswith(package) and "site-packages" not in code.co_filename
            if event == "call" and ours and not code.co_name.startswith("<"):
                calls[code.co_qualname] += 1

        sys.setprofile(count)
        PairDataset.load(source.folder)
        sys.setprofile(None)
        counts.append(calls)
    assert counts[0] == counts[1]
    assert counts[0].total() < 100
