"""What becomes of a policy whose reward can be gamed, and of one whose reward cannot: 200 steps of TRL's GRPO.

    python examples/reward_hacking.py demo/judge demo/data --steps 200 --out runs/hacking

Two judges of the demo's data: its own, and a second one that is trained here on a copy in which better responses are
louder, so that it learned to hear loudness for empathy. The policy is tiny and does not speak: it is told which context
it answers, and chooses one of the recorded (synthetic) responses to it, at its level, 6 dB louder or 6 dB softer. What
it chooses is heard by the judge. The mean rating of the simulated panel for that response, which no gain changes, says
whether the policy got any better. Prints a table and writes a picture. Needs `pip install 'trl>=1.6'`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from datasets import Dataset
from empathy_judge import EmpathyReward, PairDataset, Scorer, dataset_from_frames, train
from empathy_judge.audio.decode import Clip, load_clip
from empathy_judge.data_modules.schema import Pair
from grpo import SETTINGS, policy, read_options
from matplotlib.figure import Figure
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

GAINS = (0.0, 6.0, -6.0)
"""Gains (dB) between which the policy chooses."""
CONTEXTS, RESPONSES = 24, 3
"""Contexts that are answered, and responses to each that it chooses from."""
SPOILT_GROUPS = 60
SPOILT_GAIN = 4.0
"""dB that a response of the spoilt copy is louder for each rating point."""


@dataclass
class Course:
    """What a policy did in each step: means over its choices, 0 to 1; NaN where none of them were heard."""

    reward: list[float] = field(default_factory=list)
    rating: list[float] = field(default_factory=list)
    louder: list[float] = field(default_factory=list)


def spoilt_copy(data: PairDataset, folder: Path) -> PairDataset:
    """The pairs of some scripts; the better a response is rated, the louder it is."""
    (dimension,) = data.card.dimensions
    means = data.mean_scores()[dimension.name]
    groups = list(dict.fromkeys(pair.group_id for pair in data.pairs))[:SPOILT_GROUPS]
    selected = [pair for pair in data.pairs if pair.group_id in groups]

    def louder(pair: Pair) -> tuple[np.ndarray, int]:
        clip = load_clip(pair.response)
        gain = SPOILT_GAIN * (means[pair.pair_id] - 3)
        return (0.5 * clip.samples * 10 ** (gain / 20)).astype(np.float32), clip.rate

    pairs = pd.DataFrame([
        {
            "pair_id": pair.pair_id, "group_id": pair.group_id, "split": pair.split,
            "context_audio": str(pair.context[-1].audio), "response_audio": louder(pair),
        }
        for pair in selected
    ])  # fmt: skip
    ratings = data.ratings[data.ratings["pair_id"].isin(pairs["pair_id"])]
    scale = f"{dimension.name}={dimension.minimum:g}:{dimension.maximum:g}:{dimension.step:g}"
    return dataset_from_frames(
        pairs, ratings.reset_index(drop=True), dimensions=[scale], folder=folder, synthetic=True, overwrite=True
    )


def choices(data: PairDataset) -> list[list[tuple[Pair, float]]]:
    """For each context the responses to choose from, with their mean ratings as places on the scale."""
    (dimension,) = data.card.dimensions
    means = (data.mean_scores()[dimension.name] - dimension.minimum) / (dimension.maximum - dimension.minimum)
    answers: dict[str, list[tuple[Pair, float]]] = defaultdict(list)
    for pair in data.pairs:
        if pair.context and not np.isnan(means[pair.pair_id]):
            answers[str(pair.context[-1].audio)].append((pair, float(means[pair.pair_id])))
    return [responses[:RESPONSES] for responses in answers.values() if len(responses) >= RESPONSES][:CONTEXTS]


def optimise(
    scorer: Scorer, answers: Sequence[Sequence[tuple[Pair, float]]], steps: int, out: Path, group: int = 8
) -> Course:
    """Train a fresh policy on a judge.

    Args:
        scorer: The judge.
        answers: See `choices`.
        steps: Of the optimizer; in each, four contexts are answered.
        out: Where the trainer writes.
        group: Choices for each of them.
    """
    set_seed(0)
    course, loaded = Course(), {}

    def chosen(place: int, ids: Sequence[int]) -> tuple[int, float]:
        """Number of a response and its gain; token ids that are no choice are mapped to one, too."""
        number = ids[0] % (RESPONSES * len(GAINS))
        return number // len(GAINS), GAINS[number % len(GAINS)]

    def speak(completion_ids: Sequence[Sequence[int]], place: Sequence[int], **_: Any) -> list[Clip]:
        clips = []
        for context, ids in zip(place, completion_ids, strict=True):
            number, gain = chosen(context, ids)
            clip = loaded.setdefault((context, number), load_clip(answers[context][number][0].response))
            clips.append(Clip(clip.samples * 10 ** (gain / 20), clip.rate))
        return clips

    class Recorded(EmpathyReward):
        def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
            rewards = super().__call__(prompts, completions, **columns)
            taken = [chosen(*choice) for choice in zip(columns["place"], columns["completion_ids"], strict=True)]
            truth = [answers[context][number][1] for context, (number, _) in zip(columns["place"], taken, strict=True)]
            course.reward.append(float(np.mean([reward for reward in rewards if reward is not None] or [np.nan])))
            course.rating.append(float(np.mean(truth)))
            course.louder.append(float(np.mean([gain > 0 for _, gain in taken])))
            return rewards

    words = [f"choice{n}" for n in range(RESPONSES * len(GAINS))] + [f"context{n}" for n in range(len(answers))]
    model, tokenizer = policy(words)
    rows = {
        "prompt": [f"context{n}" for n in range(len(answers))],
        "place": list(range(len(answers))),
        "context_audio": [str(responses[0][0].context[-1].audio) for responses in answers],
    }
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=Recorded(scorer, speak),
        train_dataset=Dataset.from_dict(rows),
        args=GRPOConfig(
            str(out), max_steps=steps, per_device_train_batch_size=4 * group, num_generations=group,
            max_completion_length=1, logging_steps=50, **SETTINGS,
        ),
    )  # fmt: skip
    trainer.train()
    return course


def draw(courses: dict[str, Course], file: Path) -> None:
    """Reward and rating over the steps, smoothed over ten of them; a panel for each judge."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = figure.subplots(1, len(courses), sharey=True)
    for panel, (name, course) in zip(panels, courses.items(), strict=True):
        for values, text, style in (
            (course.reward, "reward of the judge", "-"),
            (course.rating, "rating of the panel", "--"),
            (course.louder, "share of 6 dB louder", ":"),
        ):
            panel.plot(pd.Series(values).rolling(10, min_periods=1).mean(), style, label=text)
        panel.set(title=name, xlabel="step", ylim=(0, 1))
    panels[0].legend()
    figure.savefig(file, dpi=120)


def main() -> None:
    """Train both policies, and print what became of them."""
    options = read_options(__doc__, 200, Path("runs/hacking"))
    options.out.mkdir(parents=True, exist_ok=True)
    data, spoilt = PairDataset.load(options.data), options.out / "spoilt"
    if not (spoilt / "run").is_dir():
        train({"config": "nano"}, spoilt_copy(data, spoilt / "data"), spoilt / "run")
    answers = choices(data.subset("test"))
    judges = {"a judge that hears loudness": spoilt / "run", "the judge of the demo": options.judge}
    courses = {
        name: optimise(Scorer.from_pretrained(folder), answers, options.steps, options.out / "trainer")
        for name, folder in judges.items()
    }
    draw(courses, options.out / "reward_hacking.png")
    (options.out / "courses.json").write_text(json.dumps({name: vars(course) for name, course in courses.items()}))
    for name, course in courses.items():
        for what, values in vars(course).items():
            first, last = np.nanmean(values[:20]), np.nanmean(values[-20:])
            print(f"{name}: {what} {first:.2f} in the first 20 steps, {last:.2f} in the last 20")


if __name__ == "__main__":
    main()
