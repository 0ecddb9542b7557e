"""GRPO with the judge as reward: a tiny policy learns to speak in tones that the judge likes.

    python examples/grpo.py demo/judge demo/data --steps 30

The policy is a language model of some thousand weights whose tokens are notes: pitch and loudness of 80 ms each. What
it writes becomes a WAV file in memory, which the judge hears as the response to a context of the data set. With a real
speech model, `speak` is the decoder of its codec; nothing else changes. Needs `pip install 'trl>=1.6'`.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from datasets import Dataset
from empathy_judge import EmpathyReward, PairDataset, Scorer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

RATE = 16_000
PITCHES, LEVELS = 12, 3
WORDS = [*(f"n{number}" for number in range(PITCHES * LEVELS)), "answer"]
NOTES = 16
"""Notes in an answer."""
CONTEXTS = 64
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-2, "lr_scheduler_type": "constant", "beta": 0.0, "save_strategy": "no", "report_to": "none",
    "bf16": False, "use_cpu": True,
}  # fmt: skip
"""Settings of the trainer, for a tiny policy."""


def speak(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[bytes]:
    """WAV files of what the policy wrote."""
    return [_wav([token % (PITCHES * LEVELS) for token in answer]) for answer in completion_ids]


def _wav(notes: Sequence[int]) -> bytes:
    frames = int(0.08 * RATE)
    pitch = np.repeat([110 * 2 ** (note // LEVELS / 8) for note in notes], frames)
    level = np.repeat([0.02 * 3 ** (note % LEVELS) for note in notes], frames)
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    voice = sum(np.sin(harmonic * phase) / harmonic for harmonic in range(1, 9))
    smooth = np.convolve(level, np.ones(400) / 400, mode="same")
    file = io.BytesIO()
    soundfile.write(file, (smooth * voice).astype(np.float32), RATE, format="WAV")
    return file.getvalue()


def policy(words: Sequence[str]) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """A language model of these words, of random weights, and its tokenizer."""
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate([*words, "<pad>"])}, "<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    config = Qwen2Config(
        vocab_size=len(words) + 1, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64, eos_token_id=len(words), pad_token_id=len(words),
    )  # fmt: skip
    return Qwen2ForCausalLM(config), PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<pad>", padding_side="left"
    )


def train(judge: Path, data: Path, steps: int, out: Path, contexts: int = 8, answers: int = 8) -> tuple[float, float]:
    """Train the policy.

    Args:
        judge: Folder of a judge.
        data: Pair dataset, whose contexts are answered.
        steps: Steps of the optimizer.
        out: Where the trainer writes.
        contexts: Number of contexts that are answered in each step.
        answers: Number of answers to each of them.

    Returns:
        Mean reward of one answer to each context, before and after.
    """
    set_seed(0)
    model, tokenizer = policy(WORDS)
    reward = EmpathyReward(Scorer.from_pretrained(judge), speak)
    turns = [pair.context[-1].audio for pair in PairDataset.load(data).pairs if pair.context]
    distinct = [str(turn) for turn in dict.fromkeys(turns)][:CONTEXTS]
    before = mean_reward(model, reward, distinct)
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": ["answer"] * len(distinct), "context_audio": distinct}),
        args=GRPOConfig(
            str(out), max_steps=steps, per_device_train_batch_size=contexts * answers, num_generations=answers,
            max_completion_length=NOTES, logging_steps=1, **SETTINGS,
        ),
    )  # fmt: skip
    trainer.train()
    return before, mean_reward(model, reward, distinct)


@torch.no_grad()
def mean_reward(model: Qwen2ForCausalLM, reward: EmpathyReward, contexts: Sequence[str]) -> float:
    """Mean reward of one sampled answer to each context; answers without a reward are left out."""
    prompt = torch.full((len(contexts), 1), PITCHES * LEVELS)
    answers = model.generate(prompt, do_sample=True, max_new_tokens=NOTES)[:, 1:].tolist()  # pyright: ignore
    rewards = reward([""] * len(contexts), answers, completion_ids=answers, context_audio=contexts)
    heard = [value for value in rewards if value is not None]
    return sum(heard) / max(len(heard), 1)


def read_options(about: str | None, steps: int, out: Path) -> argparse.Namespace:
    """Judge, data, and with these defaults `--steps` and `--out`."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("judge", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--out", type=Path, default=out)
    return parser.parse_args()


def main() -> None:
    """Train, and print what became of the reward."""
    options = read_options(__doc__, 30, Path("runs/grpo"))
    before, after = train(options.judge, options.data, options.steps, options.out)
    print(f"mean reward on the same contexts, 0 to 1: {before:.3f} before, {after:.3f} after {options.steps} steps")


if __name__ == "__main__":
    main()
