"""The settings of a prompted LLM judge, which follow the model in its spec."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from ....core.errors import UserError, shown
from ....core.numerals import is_plain, parse_number
from .prices import Price

RubricName = Literal["vocal", "attunement", "support", "plain"]
AnswerMode = Literal["schema", "function", "text", "logprobs", "levels"]


def _price(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = [parse_number(part) if is_plain(part) else -1 for part in value.split(":")]
    if len(parts) != 3 or not all(0 <= part <= 1e6 for part in parts):
        raise ValueError("TEXT_IN:AUDIO_IN:OUT in dollars for a million tokens, such as 2.5:32:10")
    return Price(*parts)


def server_address(value: str) -> str:
    """An address without its last slash.

    Raises:
        ValueError: If it is no address, or contains what may be secret (a user name, a password, a query); the message
            says what is expected.
    """
    parts = urlsplit(value)
    secret = parts.username or parts.password or "?" in value or "#" in value
    if parts.scheme not in ("http", "https") or not parts.hostname or secret:
        raise ValueError("http://HOST/... or https://HOST/... without a user name or a password, without ? and #")
    return value.rstrip("/")


class PromptedSettings(BaseModel, frozen=True):
    """The settings in a spec such as ``openai:gpt-audio-1.5,rubric=attunement,samples=5``"""

    model_config = ConfigDict(allow_inf_nan=False)

    # score each pair, or compare every two responses to a context (in both orders)
    mode: Literal["pointwise", "pairwise"] = "pointwise"
    rubric: RubricName = "vocal"  # the construct
    # both clips; also their transcripts; or the transcripts alone, which shows what words give
    hears: Literal["audio", "both", "transcript"] = "audio"
    examples: int = Field(default=0, ge=0, le=64)  # rated pairs of the training split that are shown first
    samples: int = Field(default=3, ge=1, le=100)  # answers to each question, which are averaged
    # responses that each is compared with, neighbours on a circle, which come in twos; 0 = all of its group
    opponents: int = Field(default=4, ge=0, le=1000, multiple_of=2)
    # how the form of the answer is imposed; auto = as the model supports it
    answers: Literal["auto", "schema", "function", "text", "logprobs", "levels"] = "auto"
    # how a decision model gets the clips, where there are several ways: the field of System One that has them; for Hume
    # joined, or the response alone; auto = as most servers want it
    clips: Literal["auto", "audio", "files", "joined", "response"] = "auto"
    temperature: float | None = Field(default=None, ge=0, le=2)  # None = 0 for one sample, 1 for several
    rpm: float | None = Field(default=None, ge=0.1, le=1e6)  # requests a minute; None = adapt to what the server says
    concurrency: int = Field(default=8, ge=1, le=1000)  # most requests under way
    timeout: float = Field(default=120.0, ge=0.1, le=3600)  # seconds for one request
    price: Annotated[Price | None, BeforeValidator(_price)] = None  # of tokens; None = what is known of the model
    # of a server that speaks the same protocol
    base_url: Annotated[str | None, BeforeValidator(server_address)] = None

    @field_validator("examples", "samples", "opponents", "temperature", "rpm", "concurrency", "timeout", mode="before")
    @classmethod
    def _is_plain(cls, value: object) -> object:
        """pydantic would take 1_0 for 10, and 012 for 12."""
        if isinstance(value, str) and not is_plain(value):
            raise ValueError("decimal digits, without _ and without zeros before them")
        return value

    @property
    def sampling_temperature(self) -> float:
        """The temperature that is used."""
        return (0.0 if self.samples == 1 else 1.0) if self.temperature is None else self.temperature


def parse_settings(words: Sequence[str], spec: str) -> PromptedSettings:
    """Reads ``name=value`` settings.

    Args:
        words: The parts of a spec after the model.
        spec: The whole spec, for messages.

    Raises:
        UserError: If a setting is unknown, has a wrong value, or comes twice.
    """
    values: dict[str, Any] = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or name not in PromptedSettings.model_fields:
            names = ", ".join(PromptedSettings.model_fields)
            raise UserError(f"judge {shown(spec)}: setting {shown(word)}; expected NAME=VALUE of {names}")
        if name in values:
            raise UserError(f"judge {shown(spec)}: {name} comes twice; expected each setting once")
        values[name] = value
    try:
        return PromptedSettings(**values)
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0])
        expected = re.sub("^(Input should be|Value error,) ", "", wrong["msg"])
        raise UserError(f"judge {shown(spec)}: {name} {shown(values[name])}; expected {expected}") from None
