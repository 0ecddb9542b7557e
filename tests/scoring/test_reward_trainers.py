"""The judge as the reward of a policy: in TRL's trainer, in verl, and in the examples."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from empathy_judge import PairDataset, Scorer
from empathy_judge.audio.decode import load_clip
from empathy_judge.scoring.reward import EmpathyReward, valid_rows

from ..conftest import loaded
from .conftest import RATE, reward_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo.py"


def test_trl_takes_the_step_of_the_samples_that_have_a_reward(scorer, voices, tmp_path):
    """The gradient of TRL's own trainer is that of GRPO by hand (Shao et al., 2024; Liu et al., 2025: `dr_grpo`, whose
    normaliser is a constant) over the completions that were heard; the one that was not moves nothing."""
    trl = pytest.importorskip("trl", minversion="1.6")
    from datasets import Dataset

    example, taken, rewards = loaded(EXAMPLE), [], []
    model, tokenizer = example.policy(example.WORDS)
    before = [weight.detach().clone() for weight in model.parameters()]

    class Recorder(EmpathyReward):
        __name__ = "recorded"

        def __call__(self, *own, **columns):
            taken.append(columns["completion_ids"])
            rewards.append(super().__call__(*own, **columns))
            return rewards[-1]

    def speak(completion_ids, **_):
        return [None if n == 3 else voices[sum(own) % 4] for n, own in enumerate(completion_ids)]

    trainer = trl.GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=Recorder(scorer, speak),
        train_dataset=Dataset.from_dict({"prompt": ["answer"] * 2}),
        args=trl.GRPOConfig(
            str(tmp_path), max_steps=1, per_device_train_batch_size=8, num_generations=8, max_completion_length=6,
            learning_rate=1.0, lr_scheduler_type="constant", optim="sgd", max_grad_norm=1e9, beta=0.0,
            loss_type="dr_grpo", save_strategy="no", report_to="none", bf16=False, use_cpu=True, seed=3,
        ),
    )  # fmt: skip
    trainer.train()
    ((answers, heard),) = zip(taken, rewards, strict=True)
    assert [value is None for value in heard] == [n == 3 for n in range(8)]
    step = torch.cat([(old - new).flatten() for old, new in zip(before, model.parameters(), strict=True)])
    for parameter, old in zip(model.parameters(), before, strict=True):
        parameter.data.copy_(old)
    kept = torch.tensor([value for value in heard if value is not None])
    advantage = (kept - kept.mean()) / (kept.std() + 1e-4)
    assert advantage.abs().max() > 0.5
    loss = torch.zeros(())
    for own, worth_of in zip([own for n, own in enumerate(answers) if n != 3], advantage, strict=True):
        ids = torch.tensor([[example.PITCHES * example.LEVELS, *own]])
        logits = model(ids).logits[0, :-1].log_softmax(-1)
        loss = loss - worth_of * logits.gather(1, ids[0, 1:, None]).sum() / (8 * 6)
    by_hand = torch.cat([own.flatten() for own in torch.autograd.grad(loss, list(model.parameters()))])
    assert by_hand.norm() > 1e-3
    torch.testing.assert_close(step, by_hand, atol=1e-6, rtol=1e-3)


def test_verl_takes_the_advantages_of_the_samples_that_have_a_reward(scorer, voices):
    """verl's own reward managers, of a batch and beside rollouts, and its own GRPO, with one sample that nobody heard:
    the others have the advantages that they have without it."""
    pytest.importorskip("verl")
    import asyncio

    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage
    from verl.workers.reward_manager.batch import BatchRewardManager

    class Digits:
        def decode(self, ids, skip_special_tokens=True):
            return str(int(ids[0]))

    ids = torch.tensor([[0, 9], [1, 9], [2, 9], [3, 9], [0, 9], [1, 9]])
    clips = [*voices[:3], None]
    data = DataProto.from_dict(
        tensors={
            "prompts": torch.ones(6, 2, dtype=torch.long),
            "responses": ids,
            "attention_mask": torch.ones(6, 4, dtype=torch.long),
        },
        non_tensors={
            "data_source": np.array(["voices"] * 6, object),
            "reward_model": np.array([{"ground_truth": None}] * 6, object),
            "extra_info": np.array([{"context_audio": voices[3]} for _ in range(6)], object),
        },
    )
    reward, uid = reward_of(scorer, clips), np.array(["a", "a", "a", "a", "b", "b"], object)
    found = BatchRewardManager(Digits(), 0, reward.verl)(data)
    assert found.isnan().sum(-1).tolist() == [0, 0, 0, 1, 0, 0]
    config = OmegaConf.create({"reward": {"num_workers": 1}, "actor_rollout_ref": {}})
    beside = get_reward_manager_cls("naive")(config, Digits(), reward.verl_sample)

    async def each():
        beside.loop = asyncio.get_running_loop()
        return [(await beside.run_single(data[n : n + 1]))["reward_score"] for n in range(6)]

    assert torch.tensor(asyncio.run(each())).allclose(found.sum(-1), equal_nan=True)
    mask, kept = torch.ones(6, 2), torch.tensor([0, 1, 2, 4, 5])
    assert compute_grpo_outcome_advantage(found, mask, uid)[0][:4].isnan().all()  # as verl has it, a group is lost
    advantages = valid_rows(compute_grpo_outcome_advantage)(found, mask, uid)[0]
    expected = compute_grpo_outcome_advantage(found[kept], mask[kept], uid[kept.numpy()])[0]
    assert expected.abs().max() > 0.5
    torch.testing.assert_close(advantages[kept], expected)
    assert advantages[3].tolist() == [0.0, 0.0]


def test_a_row_that_has_lost_its_group_teaches_nothing():
    """In place of verl's estimator the centred rewards, which see the rows that are left."""
    rewards = torch.tensor([[0.0, 0.2], [0.0, math.nan], [0.0, 0.9], [0.0, 0.1], [0.0, 0.5], [0.0, 0.3]])
    groups = np.array(["a", "a", "b", "c", "c", "c"])
    seen = []

    def centred(token_level_rewards, response_mask, *, index, scale):
        seen.append(index.tolist())
        values = token_level_rewards.sum(-1, keepdim=True)
        means = torch.stack([values[torch.from_numpy(index == own)].mean(0) for own in index])
        return scale * (values - means) * response_mask, torch.empty(0)

    found, returns = valid_rows(centred)(rewards, torch.ones(6, 2), groups, scale=2.0)
    assert seen == [["b", "c", "c", "c"]]
    assert found is returns
    torch.testing.assert_close(found[:, 1], torch.tensor([0.0, 0.0, 0.0, -0.4, 0.4, 0.0]))
    nothing, _ = valid_rows(centred)(torch.full((2, 1), math.nan), torch.ones(2, 1), np.array(["a", "a"]), scale=1.0)
    assert nothing.tolist() == [[0.0], [0.0]]
    assert len(seen) == 1


@pytest.mark.long
def test_the_example_trains_a_policy_with_trl(judge_folder, dataset_folder, tmp_path):
    pytest.importorskip("trl")
    example = loaded(EXAMPLE)
    wav = example.speak([[0, 5, 35]])[0]
    samples, rate = soundfile.read(io.BytesIO(wav))
    assert (len(samples), rate) == (3 * int(0.08 * RATE), RATE)
    before, after = example.train(judge_folder, dataset_folder, 3, tmp_path / "grpo", contexts=2, answers=4)
    assert 0 < before < 1
    assert 0 < after < 1
    assert before != after


@pytest.mark.long
def test_the_study_of_a_gamed_judge_runs(judge_folder, tmp_path):
    pytest.importorskip("trl", minversion="1.6")
    from empathy_judge.data_modules.sample import make_sample
    from empathy_judge.data_modules.splits import split_dataset

    example = loaded(EXAMPLE.with_name("reward_hacking.py"))
    make_sample(tmp_path / "data", groups=6, seed=1, workers=1)
    split_dataset(tmp_path / "data")
    data = PairDataset.load(tmp_path / "data")
    (means,) = (data.mean_scores()[own.name] for own in data.card.dimensions)
    spoilt = example.spoilt_copy(data, tmp_path / "spoilt")
    plain = {pair.pair_id: load_clip(pair.response).samples for pair in data.pairs}
    for pair in spoilt.pairs:
        gain = 20 * np.log10(np.std(load_clip(pair.response).samples) / np.std(plain[pair.pair_id]))
        assert gain == pytest.approx(4 * (means[pair.pair_id] - 3) - 6.02, abs=0.1)
    answers = example.choices(data)
    assert {len(own) for own in answers} == {3}
    course = example.optimise(Scorer.from_pretrained(judge_folder, device="cpu"), answers, 2, tmp_path / "out", group=2)
    assert {len(own) for own in vars(course).values()} == {2}
    assert np.nanmin(course.reward + course.rating + course.louder) >= 0
    example.draw({"one": course, "two": course}, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
