"""Training from audio inside Parquet files: block after block, in workers, resumed; the same scores as from files."""

from __future__ import annotations

from pathlib import Path

import pytest
from empathy_judge.data_modules import pairs_file
from empathy_judge.data_modules.rows import hash_order, to_row
from empathy_judge.data_modules.schema import PairDataset, complete_dataset, write_splits
from empathy_judge.models.artifact import load_any
from empathy_judge.models.scoring import PairScorer
from empathy_judge.train.run import train


@pytest.fixture
def embedded_folder(dataset_folder, tmp_path, monkeypatch) -> Path:
    """The dataset of the other tests, embedded in 3 shards with row groups of 2."""
    monkeypatch.setattr(pairs_file, "ROW_GROUP_ROWS", 2)
    files, folder = PairDataset.load(dataset_folder), tmp_path / "embedded"
    rows = []
    for number, pair in enumerate(files.pairs):
        audio = {"response_audio": Path(pair.response).read_bytes()}
        audio["context_audio"] = [{"role": turn.role, "audio": turn.audio.read_bytes()} for turn in pair.context]
        names = ("pair_id", "group_id", "situation", "system_id")
        rows.append(to_row({name: getattr(pair, name) for name in names} | audio, folder, folder, number, {}))
    (folder / "pairs").mkdir(parents=True)
    for number in range(3):
        pairs_file.write_pairs(rows[8 * number : 8 * number + 8], folder / pairs_file.shard_name(number))
    rows.sort(key=lambda row: hash_order(row["pair_id"]))
    card = complete_dataset(folder, files.card, rows, files.ratings, None)
    assert card.content_hash == files.card.content_hash
    write_splits(folder, [pair.split for pair in files.pairs])
    (folder / "split.yaml").write_bytes((dataset_folder / "split.yaml").read_bytes())
    return folder


def test_scores_do_not_depend_on_how_audio_is_stored(embedded_folder, dataset_folder, judge_folder):
    judge = load_any(judge_folder).judge
    one, other = (
        {pair.pair_id: found.score for pair, found in PairScorer(judge, 5).predict(PairDataset.load(folder).pairs)}
        for folder in (dataset_folder, embedded_folder)
    )
    assert one.keys() == other.keys()
    assert max(float((one[name] - other[name]).abs().max()) for name in one) <= 1e-5


@pytest.mark.long
def test_a_resumed_run_reads_what_the_uninterrupted_one_does(embedded_folder, train_arguments, tmp_path, batches_read):
    """By blocks, and with two workers, which read ahead."""
    arguments = {"trainer__logger": "false", "data__path": embedded_folder, "data__num_workers": 2}
    train(train_arguments(tmp_path / "whole", trainer__max_epochs=2, **arguments))
    whole = batches_read.copy()
    train(train_arguments(tmp_path / "run", trainer__max_epochs=1, **arguments))
    batches_read.clear()
    train([*train_arguments(tmp_path / "run", trainer__max_epochs=2, **arguments), "--resume", "true"])
    first, second = ([items for epoch, _, items in whole if epoch == n] for n in (0, 1))
    assert [sorted(item for items in own for item in items) for own in (first, second)] == [[*range(12)]] * 2
    assert first != second
    assert batches_read == whole[3:]
