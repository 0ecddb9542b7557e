"""Forward passes per second against the naive way, in one run: `make bench`.

Naive: the generation model with its LM head and every clip padded to the full window. Ours: no LM head, clips at
their real
length, every distinct clip once; and the same with audio states computed beforehand. The three take turns, so that a
machine whose speed drifts is unfair to none; the ratio of each round is taken, and the median quoted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from empathy_judge.data_modules.audio import Clip
from empathy_judge.data_modules.ratings import Dimension
from empathy_judge.data_modules.schema import Pair, Turn
from empathy_judge.models.backbones import NANO_FOLDER
from empathy_judge.models.backbones.common.prompt import messages
from empathy_judge.models.judge import EmpathyJudge, JudgeSettings
from rich.console import Console
from rich.table import Table
from transformers import AutoProcessor, Qwen2AudioForConditionalGeneration

ROUNDS, PAIRS, CONTEXTS = 7, 16, 4


def main() -> None:
    """Print pairs per second and the ratio to the naive way."""
    rng = np.random.default_rng(0)
    contexts = [_clip(rng) for _ in range(CONTEXTS)]
    pairs = [Pair(f"{i}", _clip(rng), (Turn("user", contexts[i % CONTEXTS]),)) for i in range(PAIRS)]
    judge = EmpathyJudge(JudgeSettings(), (Dimension("empathy", 1, 5),)).eval()
    inputs = judge.build_inputs(pairs)
    clips = list(dict.fromkeys(source for pair in pairs for source in (pair.context[0].audio, pair.response)))
    states = dict(zip(clips, judge.encode_clips([judge.decode(clip) for clip in clips]), strict=True))
    cached = judge.build_inputs(pairs, states)
    naive = _naive(pairs)
    ways: dict[str, Callable[[], object]] = {
        "naive: LM head, clips padded to the window": naive,
        "ours: no LM head, real length, clips shared": lambda: judge(inputs),
        "ours, audio states computed beforehand": lambda: judge(cached),
    }
    seconds = {name: [] for name in ways}
    with torch.inference_mode():
        for way in ways.values():
            way()  # warm-up
        for _ in range(ROUNDS):
            for name, way in ways.items():
                start = time.perf_counter()
                way()
                seconds[name].append(time.perf_counter() - start)
    base = seconds[next(iter(ways))]
    table = Table("forward pass", "pairs/s (median)", "times the naive way (median, range)")
    for name, spent in seconds.items():
        ratios = [b / s for b, s in zip(base, spent, strict=True)]
        table.add_row(
            name,
            f"{PAIRS / statistics.median(spent):.0f}",
            f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
        )
    Console().print(
        f"nano backbone, {PAIRS} pairs, {CONTEXTS} contexts, clips of 1 to 3 s, {torch.get_num_threads()} threads"
    )
    Console().print(table)


def _clip(rng: np.random.Generator) -> Clip:
    return Clip(rng.standard_normal(int(rng.uniform(1, 3) * 16_000)).astype(np.float32) * 0.1, 16_000)


def _naive(pairs: list[Pair]) -> Callable[[], object]:
    processor = AutoProcessor.from_pretrained(NANO_FOLDER)
    model = Qwen2AudioForConditionalGeneration.from_pretrained(NANO_FOLDER).eval()
    texts = [processor.apply_chat_template(messages(p), tokenize=False, add_generation_prompt=True) for p in pairs]
    audio = [clip.samples for p in pairs for clip in (p.context[0].audio, p.response) if isinstance(clip, Clip)]
    inputs = processor(text=texts, audio=audio, sampling_rate=16_000, padding=True, return_tensors="pt")
    return lambda: model(**inputs)


if __name__ == "__main__":
    main()
