"""Outcomes of responses: nothing is heard twice for a reward, whoever asks and however often."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple

from ..data_modules.errors import AudioError
from ..models.assessment import Assessment
from .forms import Form, RewardForm

_KEPT = 10_000


class Outcome(NamedTuple):
    """What the judge says of a response, or what is wrong with it; and whether its file is clipped."""

    found: Assessment | AudioError
    clipped: bool = False


class Outcomes:
    """The latest outcomes of reward requests, by the content of what was sent (`RewardForm.keys`).

    What could not be heard is not kept: it may be the service that failed, and the client asks again.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._under_way: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def of(self, form: Form) -> AsyncGenerator[dict[str, Outcome], None]:
        """The known outcomes of a form by key; the caller adds the others.

        A request for content that is being heard for another request waits for the end of that one, whether it succeeds
        or not.
        """
        if not isinstance(form, RewardForm):
            yield {}
            return
        keys = form.keys
        while others := {self._under_way[key] for key in keys if key in self._under_way}:
            await asyncio.wait(others)
        by_key = {key: self._known[key] for key in keys if key in self._known}
        future = asyncio.get_running_loop().create_future()
        claimed = dict.fromkeys((key for key in keys if key not in by_key), future)
        self._under_way |= claimed
        try:
            yield by_key
        finally:
            for key in claimed:
                del self._under_way[key]
                if key in by_key and isinstance(by_key[key].found, Assessment):
                    self._known[key] = by_key[key]
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            future.set_result(None)
