"""Which server is asked, and with which key: keys come from the environment and go to that server alone."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ....data_modules.errors import UserError, shown
from .asking import server_address

# What keys of the vendors look like: servers repeat parts of a wrong key in their messages
_KEY = re.compile(r"\b(?:sk-|AIza|Bearer\s+)[\w*.-]{4,}")


def keys_of(*variables: str) -> list[str]:
    """The values of those variables that are set."""
    return [value for variable in variables if (value := os.environ.get(variable, "").strip())]


@dataclass(frozen=True)
class Server:
    """Who is asked.

    Attributes:
        url: Its address.
        elsewhere: Whether it is another than the vendor's: then the vendor's prices say nothing about it.
        keys: To ask with; none where a server wants none.
        told: For the disclosure: what chose it and which key it gets.
    """

    url: str
    elsewhere: bool
    keys: list[str]
    told: str

    @property
    def place(self) -> str:
        """Host and path."""
        return self.url.split("://")[-1].removesuffix("/v1")


def server_for(spec: str, base_url: str | None, official: str, url_variable: str, *key_variables: str) -> Server:
    """The server of a judge: `base_url` of its settings, else that of the SDK's own variable, else the vendor's.

    A server in the settings gets no key of the vendor's but the one in ``EMPATHY_JUDGE_API_KEY``, if there is one. A
    server in the SDK's variable gets the key in the SDK's variable, as everywhere else where the SDK is used.

    Args:
        spec: For messages.
        base_url: Of the settings.
        official: Address of the vendor.
        url_variable: Where the SDK looks for another one.
        key_variables: Where the SDK looks for the key, the first that is set first.

    Raises:
        UserError: If the variable holds no address, or the vendor is asked and there is no key.
    """
    url = base_url or os.environ.get(url_variable, "").strip() or official
    try:
        url = server_address(url)
    except ValueError as error:
        raise UserError(f"{spec}: the variable {url_variable} is {shown(url)}; accepted: {error}") from None
    elsewhere = url != official
    variables = ("EMPATHY_JUDGE_API_KEY",) if elsewhere and base_url is not None else key_variables
    keys = keys_of(*variables)
    if not keys and not elsewhere:
        raise UserError(f"{spec}: the variable {variables[0]} is not set; accepted: your key, in it")
    named = next((name for name in variables if keys_of(name)), None)
    chosen = f", as {url_variable} says" if elsewhere and base_url is None else ""
    return Server(url, elsewhere, keys, f"{chosen}, with {f'the key in {named}' if named else 'no key'}")


def redact(text: str, keys: Sequence[str]) -> str:
    """The text without keys, whole or as vendors shorten them."""
    for key in keys:
        text = text.replace(key, "[key]")
    return _KEY.sub("[key]", text)
