"""`score --dry-run`: what it counts, predicts and refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
import torch
from empathy_judge.audio.decode import probe
from empathy_judge.cli import main
from empathy_judge.models.work import CUDA_CONTEXT, GIB, weight_bytes
from empathy_judge.scoring.artifact import described
from empathy_judge.scoring.batch import dry_run
from empathy_judge.scoring.batch.manifest import rows_of_manifest
from empathy_judge.scoring.batches import bytes_per_token

from .conftest import BAD, row, rows_with_bad_ones


def said(capsys, *words) -> tuple[int, dict]:
    code = main(["score", *map(str, words), "--dry-run", "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_rows_that_scoring_would_leave_out_are_counted_and_the_exit_code_is_that_of_scoring(
    judge_folder, write, clips, scorer, make_tone, tmp_path, capsys
):
    import soundfile

    soundfile.write(clips / "long.wav", make_tone(40.0, 200, 0.3), 16_000)
    soundfile.write(clips / "short.wav", make_tone(0.04, 200, 0.3), 16_000)
    rows = [*rows_with_bad_ones(), row(20, response_audio="long.wav"), row(21, response_audio="short.wav")]
    words, out = [judge_folder, "--manifest", write(rows), "--device", "cpu", "--no-windows"], tmp_path / "scores.csv"
    code, found = said(capsys, *words, "--out", out)
    assert not list(tmp_path.glob("scores*"))
    assert main(["score", *map(str, words)]) == code == 1
    statuses = [one["status"] for one in csv.DictReader(capsys.readouterr().out.splitlines())]
    assert found["rows"] == len(statuses) == 22
    assert sum(found["failed"].values()) == sum(status != "ok" for status in statuses) == 7
    assert found["failed"] == {kind: 1 for _, kind in BAD.values()} | {"too long": 1, "too short": 1}
    assert "cut.wav: the file is cut off" in found["first_failure"]
    heard = sum(probe(clips / name).seconds for name in ("c.wav", "r0.wav", "r1.wav", "r2.wav", "r3.wav"))
    assert found["minutes"] == pytest.approx(heard / 60, abs=1e-3)
    assert (found["device"], found["batch_pairs"], found["batch_tokens"], found["gpu_bytes"]) == (
        "the CPU",
        16,
        None,
        None,
    )
    assert found["h200_pairs_per_second"] is None
    assert "nothing was measured on a CPU" in found["source"]


def test_passes_memory_and_rate_on_a_gpu(judge_folder, write, scorer, capsys, monkeypatch):
    rows = [row(number, context_audio="") for number in range(6)]
    words = [judge_folder, "--manifest", write(rows)]
    code, found = said(capsys, *words, "--gpu-gib", 1)
    weights = sum(weight.nbytes for weight in scorer.judge.parameters())
    assert code == 0
    assert found["weight_bytes"] == pytest.approx(weights, rel=0.01)
    free = GIB - CUDA_CONTEXT - found["weight_bytes"]
    expected = min(16_384, 0.5 * free / bytes_per_token(scorer.judge))
    assert (found["batch_pairs"], found["batch_tokens"], found["fits"]) == (128, int(expected), True)
    pairs = [one.pair for one in rows_of_manifest(words[2], None)]
    assert found["tokens"] == int(scorer.judge.build_inputs(pairs).attention_mask.sum())
    assert found["h200_pairs_per_second"] is None  # of a small judge nothing is known
    monkeypatch.setattr(dry_run, "_LARGE", 0)
    _, found = said(capsys, *words, "--gpu-gib", 1)
    assert found["h200_pairs_per_second"] == pytest.approx(770e12 * 0.13 * 6 / found["operations"])
    assert found["source"].startswith("13% of 770 TFLOP/s, which an H200 reached with the 7B shapes of Qwen2-Audio")
    assert main(["score", *map(str, words), "--dry-run", "--gpu-gib", "80"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "passes on a GPU: at most 128 pairs and 16,384 tokens"
    assert lines[-1].startswith("time: 0 s on one H200, ")


def test_weights_of_a_quantized_export_count_as_they_are_stored(judge_folder):
    loaded = described(judge_folder, None)
    quantized = {}
    for form in ("none", "int8", "nf4"):
        exported = replace(loaded, description={**loaded.description, "export": {"quantization": form}})
        quantized[form] = dry_run._weights(exported, None)
        assert quantized[form] == weight_bytes(loaded.judge.backbone, loaded.judge.own_modules(), form)
    # Rows of 416 values are no whole blocks of 64: a fifth of the matrices is not in 4 bits
    assert quantized["int8"] < quantized["nf4"] < 0.7 * quantized["none"]


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere", "-", "{clips}/r0.wav"],
        ["{judge}", "-", "{clips}/absent.wav"],
        ["{judge}", "{clips}/text.wav", "{clips}/r0.wav"],
        ["{judge}", "-", "{clips}/r0.wav", "--device", "cuda:7"],
        ["{judge}", "-", "{clips}/r0.wav", "--level", "0.9"],
        ["{judge}", "-", "{clips}/r0.wav", "--situation", "x" * 100_000],
        ["{judge}", "--manifest", "{clips}/absent.csv"],
        ["{judge}", "--manifest", "{clips}/text.wav"],
        ["{judge}", "--manifest", "{clips}/m.csv", "--out", "{clips}/scores.txt"],
        ["{judge}", "--manifest", "{clips}/m.csv", "--out", "{clips}/other.csv"],
        ["{judge}", "--manifest", "{clips}/m.csv", "--workers", "2"],
    ],
    ids=lambda words: " ".join(words)[:50],
)
def test_what_scoring_refuses_a_dry_run_refuses(words, judge_folder, write, clips, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    write([row(0)], "m.csv")
    (clips / "other.csv").write_text("of somebody else")
    words = [word.format(judge=judge_folder, clips=clips) for word in words]
    codes, lines = [], []
    for more in ([], ["--dry-run"]):
        codes.append(main(["score", *words, *more]))
        lines.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")])
    assert codes == [2, 2]
    assert lines[0] == lines[1] != []
