"""The judge as a reward: for TRL's GRPO and its relatives, and for verl.

A policy that is trained on a judge finds what the judge gets wrong. To limit this, rewards are clipped and may be taken
some standard errors below the score, and a response that the policy broke gets the lowest reward. What was not heard
gets no reward at all, so that an outage teaches nothing. That is no guarantee: listen to what the policy says, and
measure it with people.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor

from ..audio.decode import AudioSource, audio_hash, is_clipped, load_clip
from ..core.errors import AudioError, UserError, counted
from ..data_modules.schema import Pair
from .assessment import ENDED, OF_THE_POLICY, Assessment, Reward, reward_of
from .audio_inputs import Audio, clip, is_missing, make_pair
from .scorer import Scorer

Speak = Callable[..., Sequence[Audio | None]]
"""Turns completions, and all else that the trainer passes by name, into a clip for each; None = there is none."""
OnError = Literal["none", "raise", "lowest"]
_TRL = "1.6"  # the first whose baseline leaves missing rewards out
_KEPT = 100_000
_Key = tuple[str | None, str, str | None]
_LOGGER = logging.getLogger("empathy_judge.scoring.reward")


class EmpathyReward:
    """Rewards for spoken responses: from `limits[0]` to `limits[1]`, the higher the better, in the order of the calls.

    The reward of a response depends on nothing else in its batch. Pairs that were scored before are not scored again.
    Safe for several threads.

    Attributes:
        counts: How often a response was not scored, by the code of the reason (see `Reward`).
    """

    def __init__(
        self,
        scorer: Scorer,
        speak: Speak,
        *,
        context: str = "context_audio",
        situation: str = "situation",
        by: Sequence[str] | None = None,
        deviations: float = 0.0,
        limits: tuple[float, float] = (0.0, 1.0),
        on_error: OnError = "none",
    ) -> None:
        """Put a judge to use.

        Args:
            scorer: The judge.
            speak: Turns completions into clips: a codec's decoder, a vocoder, or what reads the files that a server
                wrote. Called by name with `completions` and with all else that the trainer passes.
            context: Name of the column with the clip that is answered; without such a column responses are judged
                alone.
            situation: Name of the column with the text about the situation.
            by: Dimensions that count, equally; None = all of the judge.
            deviations: Standard errors by which each score is taken to be worse, so that the policy does not go where
                the judge is unsure. Needs a calibrated judge.
            limits: Lowest and highest reward, within 0 (bad end of the scale) to 1 (good end).
            on_error: What becomes of a response that cannot be scored although the policy is not to blame: no reward
                (`none`; TRL then leaves the sample out), an error that ends the training (`raise`), or the lowest
                reward (`lowest`). What the policy broke gets the lowest, see `reward_of`; with `raise` an empty clip is
                an error, too. A context or a situation that cannot be used is an error in any case.

        Raises:
            UserError: If the judge has no such dimension, is not calibrated, or an argument is not one of its values.
        """
        if on_error not in ("none", "raise", "lowest"):
            raise UserError(f"on_error {on_error!r}; expected none, raise, lowest")
        if not (
            isinstance(limits, tuple | list)
            and len(limits) == 2
            and all(isinstance(value, Real) for value in limits)
            and 0 <= limits[0] < limits[1] <= 1
        ):
            raise UserError(f"limits {limits!r}; expected two rising numbers from 0 to 1")
        if not (isinstance(deviations, Real) and math.isfinite(deviations) and deviations >= 0):
            raise UserError(f"deviations {deviations!r}; expected a number from 0 on")
        if deviations:
            scorer.require_calibration()
        self.scorer = scorer
        self.dimensions = scorer.dimension_names(by)
        self.__name__ = "_".join(self.dimensions)  # trainers log under this name
        self._speak, self._context, self._situation = speak, context, situation
        self._deviations, self._limits, self._on_error = deviations, limits, on_error
        self.counts = Counter[str]()
        self._known: OrderedDict[_Key, Reward] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """A reward function of TRL (`GRPOTrainer(reward_funcs=...)`).

        Args:
            prompts: One for each completion.
            completions: What the policy wrote.
            columns: Of the data set, a value for each completion; `completion_ids` and what else TRL passes. Its
                `log_metric` gets the share of responses without a reward.

        Returns:
            A reward for each completion; None = TRL gives the sample no learning signal (1.6 and later).

        Raises:
            AudioError: If a context or a situation cannot be used; or a response, if `on_error` says so.
            UserError: If there is not one response, context and situation for each completion, or one is not of its
                kind; or a reward is missing and this TRL would take it for 0.
        """
        # By name, since trainers add columns from version to version
        responses = self._speak(completions=completions, prompts=prompts, **columns)
        contexts, situations = columns.get(self._context), columns.get(self._situation)
        rewards = [outcome.reward for outcome in self._of_all(len(completions), contexts, responses, situations)]
        if rewards and callable(log := columns.get("log_metric")):
            log(f"{self.__name__}/without_reward", rewards.count(None) / len(rewards))
        trl = getattr(sys.modules.get("trl"), "__version__", None)
        # An older TRL would teach the policy that an outage is its own fault
        if None in rewards and trl is not None and Version(trl) < Version(_TRL):
            raise UserError(f"trl {trl} takes a missing reward for 0, the lowest; expected trl >= {_TRL}")
        return rewards

    def verl(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Mapping[str, Any]],
        **others: Any,
    ) -> list[float]:
        """A batched `compute_score` of verl (`BatchRewardManager`); context and situation stand in `extra_info`.

        Args:
            data_sources: Not used.
            solution_strs: What the policy wrote.
            ground_truths: Not used.
            extra_infos: Extra information of each sample; `speak` gets it too.
            others: What else the trainer passes; `speak` gets it.

        Returns:
            A reward for each sample; NaN = none, and `valid_rows` leaves the sample out.

        Raises:
            AudioError: As for TRL.
            UserError: As for TRL.
        """
        responses = self._speak(completions=solution_strs, extra_infos=extra_infos, **others)
        infos = [info or {} for info in extra_infos]
        contexts, situations = ([info.get(name) for info in infos] for name in (self._context, self._situation))
        outcomes = self._of_all(len(solution_strs), contexts, responses, situations)
        return [math.nan if outcome.reward is None else outcome.reward for outcome in outcomes]

    def verl_sample(
        self, data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any], **others: Any
    ) -> float:
        """`verl` for one sample: the `compute_score` of the reward managers that verl runs during its rollouts."""
        return self.verl([data_source], [solution_str], [ground_truth], [extra_info], **others)[0]

    def _of_all(self, count: int, contexts: Any, responses: Any, situations: Any) -> list[Reward]:
        """Rewards of all responses. Every input is checked before any clip is scored."""
        clips_answered = [
            None if value is None else _named(f"completion {number}: {self._context}", clip, value)
            for number, value in enumerate(_listed(contexts, count, f"{self._context} holds", "value"))
        ]
        texts = _listed(situations, count, f"{self._situation} holds", "value")
        for number, text in enumerate(texts):
            _named(f"completion {number}", self.scorer.judge.backbone.check_situation, text)
        clips = _listed(() if responses is None else responses, count, "speak returned", "clip")
        # What is no clip gets its reward here: the judge is asked about clips alone
        spoken = [self._response(number, value) for number, value in enumerate(clips)]
        keys: dict[int, _Key] = {}
        pairs: dict[_Key, Pair] = {}
        for number, (context, response, text) in enumerate(zip(clips_answered, spoken, texts, strict=True)):
            if not isinstance(response, Reward):
                # By content: a policy that repeats itself is not scored again, and gets the same reward whatever its
                # batch
                keys[number] = (None if context is None else _hash(context), _hash(response), text)
                pairs[keys[number]] = make_pair(str(number), context, response, text)
        with self._lock:  # another thread may forget a key between the question and the answer
            rewards = {key: self._known[key] for key in pairs if key in self._known}
        new = {key: pair for key, pair in pairs.items() if key not in rewards}
        for pair in new.values():
            _named(f"completion {pair.pair_id}", self.scorer.check_text, pair)
        transient = set()
        for (key, pair), result in zip(new.items(), self.scorer.assess_pairs([*new.values()]), strict=True):
            where = f"completion {pair.pair_id}"
            if isinstance(result, AudioError):
                transient.add(key)  # a file may come back
                if pair.context:
                    # Not the policy's fault: a context that cannot be read would fail every response to it, and is
                    # told at once
                    _named(f"{where}: {self._context}", self.scorer.check_clip, pair.context[0].audio)
            rewards[key] = self._checked(f"{where}: its response", self._reward(pair.response, result))
        with self._lock:
            self._known |= {key: rewards[key] for key in new if key not in transient}
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        outcomes = [own if isinstance(own, Reward) else rewards[keys[number]] for number, own in enumerate(spoken)]
        self._count(outcomes)
        return outcomes

    def _response(self, number: int, value: Any) -> AudioSource | Reward:
        """A clip, or the reward of what `speak` returned in its place."""
        where = f"completion {number}: its response"
        if value is None:
            return self._checked(where, Reward(None, None, "not a clip", "speak returned nothing"))
        try:
            return clip(value)
        except UserError as error:
            kind = error.kind if isinstance(error, AudioError) else "not a clip"
            return self._checked(where, Reward(None, None, kind, str(error)), type(error))

    def _reward(self, response: AudioSource, found: Assessment | AudioError) -> Reward:
        clipped = False
        if isinstance(found, Assessment):
            try:
                clipped = is_clipped(load_clip(response))
            except AudioError as error:  # it was there a moment ago
                found = error
        worth = reward_of(found, self.dimensions, self._deviations, self._limits, clipped)
        # a clip without samples has a header and was written; a file without bytes was not
        return Reward(None, None, "not a clip", worth.text) if worth.code in ENDED and _is_nothing(response) else worth

    def _checked(self, where: str, own: Reward, error: type[UserError] = AudioError) -> Reward:
        """The reward, as `on_error` says where there is none."""
        if self._on_error == "raise" and (own.reward is None or own.code in ENDED):
            raise error(f"{where}: {own.text}")
        if self._on_error == "lowest" and own.reward is None:
            return Reward(self._limits[0], None, own.code, own.text)
        return own

    def _count(self, outcomes: Sequence[Reward]) -> None:
        """Count and log responses without a score; a reader of the log may have to end an outage."""
        without = [outcome for outcome in outcomes if outcome.code is not None]
        codes = Counter(outcome.code for outcome in without)
        with self._lock:
            self.counts += codes
        # What the policy broke is part of training, and would fill the log
        if external := [outcome for outcome in without if outcome.code not in OF_THE_POLICY]:
            reasons = ", ".join(f"{code} ({count})" for code, count in codes.most_common())
            text = "the judge has no word for %d of %d responses: %s; first: %s"
            _LOGGER.warning(text, len(without), len(outcomes), reasons, external[0].text)


def valid_rows(estimator: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
    """An outcome advantage estimator of verl (`compute_grpo_outcome_advantage`) that leaves out rows without a reward.

    Mean and deviation of a group are those of its rows with a reward. Rows without a reward, and a row whose group has
    no other row with one, get the advantage 0, as in TRL.

    Args:
        estimator: Called with the rows that are left.
    """

    def estimate(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray, **options: Any
    ) -> tuple[Tensor, Tensor]:
        # A reward stands at one token of its row, and NaN there makes the sum NaN
        valid = token_level_rewards.sum(-1).isfinite()
        if bool(valid.all()):
            return estimator(token_level_rewards, response_mask, index=index, **options)
        group = np.unique(index, return_inverse=True)[1]
        remaining = np.bincount(group, valid.cpu().numpy())
        # the only row of its group that is left has nothing to be compared with
        alone = (remaining == 1) & (np.bincount(group) > 1)
        rows = torch.from_numpy(np.flatnonzero(valid.cpu().numpy() & ~alone[group])).to(valid.device)
        # 0 teaches nothing, and NaN would spread to the loss of the whole batch
        advantages = torch.zeros_like(token_level_rewards)
        if len(rows):
            groups = np.asarray(index)[rows.cpu().numpy()]
            advantages[rows] = estimator(token_level_rewards[rows], response_mask[rows], index=groups, **options)[0]
        return advantages, advantages

    return estimate


def _named(where: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """The converted value; an error says where the value stands."""
    try:
        return convert(value)
    except UserError as error:
        raise error.at(where) from None


def _listed(values: Any, count: int, held: str, what: str) -> list[Any]:
    """A column as a list, whatever its type, with None where a value is missing; without a column all are missing."""
    if values is None:
        return [None] * count
    listed = [] if not isinstance(values, Iterable) or isinstance(values, str | bytes) else list(values)
    if len(listed) != count:
        found = f"{counted(len(listed), what)} for {counted(count, 'completion')}"
        raise UserError(f"{held} {found}; expected one for each")
    return [None if is_missing(value) else value for value in listed]


def _hash(source: AudioSource) -> str:
    """Identifies a clip by a hash of its content; a file that cannot be read by its name."""
    try:
        return audio_hash(source)
    except AudioError:
        return str(Path(str(source)))


def _is_nothing(source: AudioSource) -> bool:
    """Whether a file has no bytes."""
    if isinstance(source, bytes):
        return not source
    try:
        return isinstance(source, str | Path) and Path(source).stat().st_size == 0
    except (OSError, ValueError):
        return False
