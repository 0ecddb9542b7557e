"""The judge as a reward: for TRL's GRPO and its relatives, and for trainers that call as verl does.

A policy that is trained on a judge finds what the judge gets wrong. What holds it back here: rewards are clipped, may
be taken some standard errors below the score, and a response without a voice gets the lowest. That is no guarantee:
listen to what the policy says, and measure it with people.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from .audio_inputs import Audio, clip, is_missing, make_pair
from .data_modules.audio import AudioSource, audio_hash
from .data_modules.errors import AudioError, UserError
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
        on_error: Literal["lowest", "raise"] = "lowest",
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
            on_error: What becomes of a response that is no clip or cannot be heard: the lowest reward, or an error that
                ends the training. A context or a situation that cannot be used is an error in any case: the policy is
                not to blame for it.

        Raises:
            UserError: If the judge has no such dimension, is not calibrated, or the limits are none.
        """
        if on_error not in ("lowest", "raise"):
            raise UserError(f"on_error {on_error!r}; expected lowest, raise")
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
        self._deviations, self._limits, self._on_error = deviations, limits, on_error
        self._known: OrderedDict[_Key, float] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
        """A reward function of TRL (`GRPOTrainer(reward_funcs=...)`).

        Args:
            prompts: One for each completion.
            completions: What the policy wrote.
            columns: Of the data set, a value for each completion; `completion_ids` and what else TRL passes.

        Raises:
            AudioError: If a context or a situation cannot be used; or a response, if `on_error` says so.
            UserError: If there is not one response, context and situation for each completion, or one is none.
        """
        responses = self._speak(completions=completions, prompts=prompts, **columns)
        contexts, situations = columns.get(self._context), columns.get(self._situation)
        return self._of_all(len(completions), contexts, responses, situations)

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
        infos = [info or {} for info in extra_infos]
        contexts, situations = ([info.get(name) for info in infos] for name in (self._context, self._situation))
        return self._of_all(len(solution_strs), contexts, responses, situations)

    def _of_all(self, count: int, contexts: Any, responses: Any, situations: Any) -> list[float]:
        """All that is listed is looked at before any of it is heard."""
        heard = [
            None if value is None else _named(f"completion {number}: {self._context}", clip, value)
            for number, value in enumerate(_listed(contexts, count, f"{self._context} holds {{}} values"))
        ]
        texts = _listed(situations, count, f"{self._situation} holds {{}} values")
        judge = self.scorer.pair_scorer.judge
        for number, text in enumerate(texts):
            _named(f"completion {number}", judge.backbone.check_situation, text)
        given = _listed(() if responses is None else responses, count, "speak returned {} clips")
        spoken = [self._response(number, value) for number, value in enumerate(given)]
        keys: list[_Key | None] = [
            None if response is None else (None if context is None else _hash(context), _hash(response), text)
            for context, response, text in zip(heard, spoken, texts, strict=True)
        ]
        with self._lock:  # another thread may forget a key between the question and the answer
            found = {key: self._known[key] for key in keys if key in self._known}
        new = {key: number for number, key in enumerate(keys) if key is not None and key not in found}
        pairs = [
            make_pair(str(n), heard[n], response, texts[n]) for n in new.values() if (response := spoken[n]) is not None
        ]
        for pair in pairs:
            _named(f"completion {pair.pair_id}", judge.check_text, pair)
        for key, pair, own in zip(new, pairs, self.scorer.assess_pairs(pairs), strict=True):
            if isinstance(own, AudioError) and pair.context:
                self.scorer.check_clip(pair.context[0].audio)  # the policy is not to blame for the context
            found[key] = self._reward(own)
        with self._lock:
            self._known |= {key: found[key] for key in new}
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return [self._limits[0] if key is None else found[key] for key in keys]

    def _response(self, number: int, value: Any) -> AudioSource | None:
        """A clip; None = what `speak` returned is none, and gets the lowest reward."""
        try:
            return _named(f"completion {number}: its response", clip, value)
        except UserError:
            if self._on_error == "raise":
                raise
            return None

    def _reward(self, found: Assessment | AudioError) -> float:
        low, high = self._limits
        if isinstance(found, AudioError):
            if self._on_error == "raise":
                raise found
            return low
        if any(caution.code == "no_speech" and caution.about == "response" for caution in found.warnings):
            return low
        return min(max(found.merit(self.dimensions, self._deviations), low), high)


def _named(where: str, convert: Callable[[Any], Any], value: Any) -> Any:
    """What becomes of a value; an error says where it stands."""
    try:
        return convert(value)
    except UserError as error:
        raise type(error)(f"{where}: {error}") from None


def _listed(values: Any, count: int, held: str) -> list[Any]:
    """A column as a list, whatever it is held in, with None where it is missing; no column is missing everywhere."""
    if values is None:
        return [None] * count
    found = [] if not isinstance(values, Iterable) or isinstance(values, str | bytes) else list(values)
    if len(found) != count:
        raise UserError(f"{held.format(len(found))} for {count} completions; expected one for each")
    return [None if is_missing(value) else value for value in found]


def _hash(source: AudioSource) -> str:
    """What a clip is known by; a file that cannot be read is known by its name."""
    try:
        return audio_hash(source)
    except AudioError:
        return str(Path(str(source)))
