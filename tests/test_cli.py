"""The command: quick help, exit codes, one-line errors. What the commands compute is tested beside their parts."""

from __future__ import annotations

import errno
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from empathy_judge.cli import COMMANDS, main
from safetensors import SafetensorError
from torch.distributed import DistNetworkError

# ---------------------------------------------------------------- help


@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["train", "--help"], ["recipes", "--help"], ["import", "table", "--help"]]
)
def test_help_does_not_load_torch(words):
    program = (
        "import sys\n"
        "from empathy_judge.cli import main\n"
        "try:\n"
        f"    main({words!r})\n"
        "except SystemExit as stop:\n"
        "    assert stop.code == 0\n"
        "heavy = {'torch', 'transformers', 'pandas', 'fsspec', 'numpy', 'scipy', 'lightning', 'matplotlib', 'rich'}\n"
        "heavy |= {'huggingface_hub.hf_api'}\n"
        f"print('LOADED', sorted(heavy.difference({['numpy'] if 'import' in words else []}) & sys.modules.keys()))\n"
        "import time\n"
        "print(time.process_time())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    *_, loaded, seconds = done.stdout.splitlines()
    assert loaded == "LOADED []"
    assert float(seconds) < (1 if "train" in words or "import" in words else 0.5)  # 0.1 where no other program runs
    names = "demo import inspect split train evaluate compare agreement score calibrate export"
    for name in names.split() if words == ["--help"] else ():
        assert re.search(rf"\n    {name}\s", done.stdout)


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"empathy-judge {importlib.metadata.version('empathy-judge')}\n"


def test_a_place_that_is_taken_is_refused_before_torch_is_loaded(tmp_path):
    (tmp_path / "file").touch()
    out = ["--out", str(tmp_path / "file")]
    calls = [
        ["evaluate", "judge", "--data", "data", *out],
        ["compare", "constant", "random", "--data", "data", *out],
        ["export", "run", *out],
        ["ensemble", "run", "run", *out],
    ]
    program = (
        "import sys\n"
        "from empathy_judge.cli import main\n"
        f"print([main(words) for words in {calls!r}], {{'torch', 'transformers'}} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    line = f"error: {tmp_path / 'file'}: is a file; expected a folder, or a place that is not taken"
    assert (done.stdout, done.stderr.splitlines()) == ("[2, 2, 2, 2] set()\n", [line] * 4)


def test_a_name_or_value_that_cannot_be_had_is_told_before_torch_is_loaded(
    judge_folder, trained_run, dataset_folder, tmp_path
):
    """Importing takes seconds, looking a name up a tenth of one."""
    lost = json.loads((judge_folder / "judge.json").read_text())
    lost["settings"] |= {"backbone": "no/such-backbone", "revision": "main"}
    (tmp_path / "judge").mkdir()
    (tmp_path / "judge" / "judge.json").write_text(json.dumps(lost))
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "config.yaml").write_text("judge: {backbone: no/such-backbone}")
    judge, run, data = str(tmp_path / "judge"), str(tmp_path / "run"), ["--data", "data"]
    elsewhere = ["--backbone", "/no/folder"]
    no_judge = "no/judge: no such folder, HF_HUB_OFFLINE is set, and no copy is in the cache"
    no_backbone = (
        "backbone 'no/such-backbone': expected 'nano', a hub id or a folder with config.json: no such folder, "
    )
    no_folder = "backbone '/no/folder': expected 'nano', a hub id or a folder with config.json: no such folder"
    nothing = f"{tmp_path}: expected a judge folder (with judge.json), a run folder or a checkpoint"
    trained_on = ["train", "--config", "nano", "--judge.backbone", "no/such-backbone", "--data.path"]
    calls = [
        ([*trained_on, str(dataset_folder)], no_backbone),
        (["train", "--config", "nano", "--data.bacth_size", "2"], "there is no setting data.bacth_size (did you mean"),
        (["train", "--confg", "nano"], "there is no setting confg (did you mean config?)"),
        (["score", "no/judge", "-", "r.wav"], no_judge),
        (["score", judge, "--manifest", "pairs.csv", "--out", "scores.csv"], no_backbone),
        (["score", run, "--manifest", "pairs.csv"], no_backbone),
        (["rank", "no/judge", "-", "r.wav"], no_judge),
        (["rank", str(trained_run), "-", "r.wav", *elsewhere], no_folder),
        (["serve", judge], no_backbone),
        (["serve", str(tmp_path)], nothing),
        (["score", str(tmp_path), "c.wav", "r.wav"], nothing),
        (["calibrate", judge, *data], no_backbone),
        (["export", run, "--out", str(tmp_path / "out")], no_backbone),
        (["export", "no/judge", "--out", str(tmp_path / "out")], "no/judge: expected a judge folder"),
        (["ensemble", str(judge_folder), judge, "--out", str(tmp_path / "out")], no_backbone),
        (["evaluate", judge, *data, "--out", str(tmp_path / "out")], no_backbone),
        (["evaluate", "no/judge", *data, "--out", str(tmp_path / "out")], "judge 'no/judge': expected a judge folder"),
        (["compare", "constant", "probe:no/such-backbone", *data], no_backbone),
        (["challenge", "echomind", str(judge_folder), *data, *elsewhere], no_folder),
        (["stress", str(judge_folder), *data, *elsewhere], no_folder),
        *(
            (["train", "--config", "nano", "--data.path", "d", "--run", "r", *words.split()], message)
            for words, message in (
                ("--trainer.max_epochs -5", "trainer.max_epochs -5; expected -1 to 1000000000"),
                ("--trainer.gradient_clip_val .nan", "trainer.gradient_clip_val nan; expected a finite number, 0 to "),
                ("--seed -1", "seed -1; expected"),
                ("--judge.depth 0", "judge.depth 0; expected"),
                ("--data.augmentation.gain_probability 2", "augmentation: gain_probability 2.0"),
                ("--trainer.callbacks []", "there is no setting trainer.callbacks"),
                ("--default_root_dir x", "there is no setting default_root_dir"),
            )
        ),
    ]
    program = (
        "import sys\n"
        "from empathy_judge.cli import main\n"
        f"print([main(words) for words in {[words for words, _ in calls]!r}])\n"
        "print({'torch', 'transformers', 'lightning'} & sys.modules.keys())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [str([2] * len(calls)), "set()"]
    for line, (words, message) in zip(done.stderr.splitlines(), calls, strict=True):
        assert line.startswith(f"error: {message}"), words


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "train"])
def test_every_command_has_help_with_an_example_and_prints_json(name, capsys):
    with pytest.raises(SystemExit) as found:
        main([name, "--help"])
    assert found.value.code == 0
    said = capsys.readouterr().out
    assert re.search(rf"example: empathy-judge\s+{name}\b", said)
    assert ("--json" in said) == (name not in ("import", "serve"))  # each source of `import` has options of its own


# ---------------------------------------------------------------- what the machine refuses


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "a/b"), 2, "a/b: No space left on device; free some room"),
        (PermissionError(errno.EACCES, "Permission denied", "a"), 2, "a: Permission denied; expected the right to"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator"), 2, "Cannot allocate memory"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), 2, "No space left on device; free some"),
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.12 "
                "GiB is free. Process 7 has 78.1 GiB memory in use. Of the allocated memory 77 GiB is allocated."
            ),
            2,
            "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.12 GiB "
            "is free; expected fewer pairs at once: --batch-size; in training --data.batch_tokens,",
        ),
        (MemoryError(), 2, "Cannot allocate memory; expected more memory, or a smaller --batch-size"),
        (RecursionError("maximum recursion depth exceeded"), 2, "what was read is nested too deeply"),
        ("\ud800".encode, 2, "text cannot be read or written ('utf-8' codec can't encode"),
        (OSError("a model\nthat is not there"), 2, "a model that is not there; check paths, disk and network"),
        (Path("gone.json").read_text, 2, "gone.json: No such file or directory; expected a file or folder that exists"),
        (KeyError("x"), 70, "KeyError: 'x': internal error; EMPATHY_JUDGE_DEBUG=1 shows where"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 1, "another process of this run ended"),
        (DistNetworkError("timed out"), 1, "another process of this run ended or does not answer (timed out); its"),
        (KeyboardInterrupt(), 130, None),
        (BrokenPipeError(), 141, None),
    ],
)  # fmt: skip
def test_what_no_part_expected_is_one_line_too(error, code, line, capfd, monkeypatch):
    def run(options):
        """Fail."""
        raise error if isinstance(error, BaseException) else error()

    monkeypatch.setattr(COMMANDS["doctor"], "run", run)
    monkeypatch.setattr("empathy_judge.cli._close_output", lambda: None)
    assert main(["doctor"]) == code
    said = capfd.readouterr().err
    assert said.startswith(f"error: {line}") if line else said == ("interrupted\n" if code == 130 else "")
    assert said.count("\n") == (code != 141)
    monkeypatch.setenv("EMPATHY_JUDGE_DEBUG", "1")
    assert main(["doctor"]) == code
    assert ("Traceback" in capfd.readouterr().err) == (line is not None)


@pytest.mark.parametrize("moment", ["typing", "shlex", "empathy_judge.commands", "empathy_judge.core.processes"])
def test_ctrl_c_while_the_program_itself_is_imported(moment):
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"sys.addaudithook(lambda event, of: (event, of[:1]) == ('import', ({moment!r},)) and signal.raise_signal(2))\n"
        "from empathy_judge.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("caught", ["except BaseException: pass", "except BaseException: raise ImportError"])
def test_ctrl_c_ends_also_in_an_import_that_catches_it(caught, tmp_path):
    (tmp_path / "heavy.py").write_text(f"import signal\ntry: signal.raise_signal(signal.SIGINT)\n{caught}\n")
    program = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # whatever a shell in the background says
        "from empathy_judge.cli import COMMANDS, main\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "def run(options):\n"
        "    'Import.'\n"
        "    import heavy\n"
        "    return 0\n"
        "COMMANDS['doctor'].run = run\n"
        "sys.exit(main(['doctor']))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("output", "encoding", "code", "said"),
    [
        (">/dev/full", "utf-8", 2, "error: standard output: No space left on device; free some room and start"),
        ("| true", "utf-8", 141, ""),
        (">FILE", "latin-1", 0, ""),
    ],
)
def test_scores_are_written_whatever_becomes_of_standard_output(output, encoding, code, said, tmp_path):
    table = tmp_path / "scores.csv"
    rows = [f"c{n},{who},wärme🙂,{(n * step) % 7}" for n in range(12) for who, step in (("ann", 1), ("ü", 3))]
    table.write_text("\n".join(["item,annotator,dimension,score", *rows]), encoding="utf-8")
    words = f"set -o pipefail; {sys.executable} -m empathy_judge.cli agreement {table} --resamples 20"
    words = f"{words} {output.replace('FILE', str(tmp_path / 'out'))}"
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run(["bash", "-c", words], env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr[: len(said)], done.stderr.count("\n")) == (code, said, bool(said))
    if "FILE" in output:
        printed = (tmp_path / "out").read_bytes().decode(encoding)
        assert "wärme\\U0001f642" in printed


def test_the_package_is_the_command():
    words = [sys.executable, "-m", "empathy_judge", "scor"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    expected = "error: scor: no such command (did you mean score?); see empathy-judge --help\n"
    assert (done.returncode, done.stderr) == (2, expected)
