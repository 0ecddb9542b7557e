"""The judge as a reward: for TRL's GRPO and its relatives, and for trainers that call as verl does.

A policy that is trained on a judge finds what the judge gets wrong. What holds it back here: rewards are clipped, may
be taken some standard errors below the score, and a response without a voice gets the lowest. That is no guarantee:
listen to what the policy says, and measure it with people.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .audio_inputs import Audio, clip, make_pair
from .data_modules.audio import AudioSource, audio_hash
from .data_modules.errors import AudioError, TextError, UserError
from .models.assessment import Assessment
from .scorer import Scorer

Speak = Callable[..., Sequence[Audio]]
"""From completions, and all else that the trainer passes by name, to what is heard of each."""
_KEPT = 100_000
_Key = tuple[str | None, str, str | None]


class EmpathyReward:
    """Rewards for spoken responses: from `limits[0]` to `limits[1]`, the higher the better, in the order of the calls.

    The reward of a response depends on nothing else in its batch. Pairs that were heard before are not heard again.
    Safe for several threads.
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
    ) -> None:
        """Put a judge to use.

        Args:
            scorer: The judge.
            speak: Turns completions into clips: a codec's decoder, a vocoder, or what reads the files that a server
                wrote. Called by name with `completions` and with all that the trainer passes beside them.
            context: Name of the column with the clip that is answered; without such a column responses are judged
                alone.
            situation: Name of the column with the text about the situation.
            by: Dimensions that count, equally; None = all of the judge.
            deviations: Standard errors by which each score is taken to be worse, so that the policy does not go where
                the judge is unsure. Needs a calibrated judge.
            limits: Lowest and highest reward, within 0 (bad end of the scale) to 1 (good end).

        Raises:
            UserError: If the judge has no such dimension, is not calibrated, or the limits are none.
        """
        if not 0 <= limits[0] < limits[1] <= 1:
            raise UserError(f"limits {limits}; expected two rising numbers from 0 to 1")
        if not (math.isfinite(deviations) and deviations >= 0):
            raise UserError(f"deviations {deviations}; expected a number from 0 on")
        if deviations:
            scorer.require_calibration()
        self.scorer = scorer
        self.dimensions = scorer.dimension_names(by)
        self.__name__ = "_".join(self.dimensions)  # trainers log under this name
        self._speak, self._context, self._situation = speak, context, situation
        self._deviations, self._limits = deviations, limits
        self._known: OrderedDict[_Key, float] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """A reward function of TRL (`GRPOTrainer(reward_funcs=...)`).

        Args:
            prompts: One for each completion.
            completions: What the policy wrote.
            columns: Of the data set, a value for each completion; `completion_ids` and what else TRL passes.

        Raises:
            AudioError: If a context or a situation cannot be used. A response that cannot gets the lowest reward.
            UserError: If `speak` does not return a clip for each completion.
        """
        count = len(completions)
        responses = self._speak(completions=completions, prompts=prompts, **columns)
        contexts = columns.get(self._context) or [None] * count
        situations = columns.get(self._situation) or [None] * count
        return self._of_all(count, contexts, responses, situations)

    def verl(
        self,
        data_sources: Sequence[str],
        solution_strs: Sequence[str],
        ground_truths: Sequence[Any],
        extra_infos: Sequence[Mapping[str, Any]],
        **others: Any,
    ) -> list[float]:
        """A batched `compute_score` of verl (`reward_manager: batch`); context and situation stand in `extra_info`.

        Args:
            data_sources: Not used.
            solution_strs: What the policy wrote.
            ground_truths: Not used.
            extra_infos: Of each sample; `speak` gets them too.
            others: What else the trainer passes.

        Raises:
            AudioError: As for TRL.
            UserError: As for TRL.
        """
        responses = self._speak(completions=solution_strs, extra_infos=extra_infos, **others)
        contexts = [info.get(self._context) for info in extra_infos]
        situations = [info.get(self._situation) for info in extra_infos]
        return self._of_all(len(solution_strs), contexts, responses, situations)

    def _of_all(
        self,
        count: int,
        contexts: Sequence[Audio | None],
        responses: Sequence[Audio],
        situations: Sequence[str | None],
    ) -> list[float]:
        if len(responses) != count:
            raise UserError(f"speak returned {len(responses)} clips for {count} completions; expected one for each")
        heard = [None if context is None else clip(context) for context in contexts]
        spoken = [clip(response) for response in responses]
        keys = [
            (None if context is None else _hash(context), _hash(response), situation)
            for context, response, situation in zip(heard, spoken, situations, strict=True)
        ]
        with self._lock:  # another thread may forget a key between the question and the answer
            found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: number for number, key in enumerate(keys) if key not in found}
        pairs = [make_pair(str(n), heard[n], spoken[n], situations[n]) for n in new.values()]
        for key, pair, own in zip(new, pairs, self.scorer.assess_pairs(pairs), strict=True):
            if isinstance(own, TextError):
                self.scorer.pair_scorer.judge.check_text(pair)  # the policy is not to blame for the situation
            elif isinstance(own, AudioError) and pair.context:
                self.scorer.check_clip(pair.context[0].audio)  # nor for the context
            found[key] = self._reward(own)
        with self._lock:
            self._known |= {key: found[key] for key in new}
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return [found[key] for key in keys]

    def _reward(self, found: Assessment | AudioError) -> float:
        low, high = self._limits
        if isinstance(found, AudioError):
            return low
        if any(caution.code == "no_speech" and caution.about == "response" for caution in found.warnings):
            return low
        return min(max(found.merit(self.dimensions, self._deviations), low), high)


def _hash(source: AudioSource) -> str:
    """What a clip is known by; a file that cannot be read is known by its name."""
    try:
        return audio_hash(source)
    except AudioError:
        return str(Path(str(source)))
