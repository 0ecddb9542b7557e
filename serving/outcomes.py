"""What was found of responses: nothing is heard twice for a reward, whoever asks and however often."""

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
    """Those of rewards, by the content of what was sent (`RewardForm.keys`), the last ones that were heard.

    What could not be heard is not kept: it may be the service that failed, and the client asks again.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Outcome] = OrderedDict()
        self._under_way: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def of(self, form: Form) -> AsyncGenerator[dict[str, Outcome], None]:
        """Those of a form by key: what is known; whoever opens this puts in the others.

        Who sends what another request is being heard for waits for its end, whether it succeeds or not.
        """
        if not isinstance(form, RewardForm):
            yield {}
            return
        keys = form.keys
        while others := {self._under_way[key] for key in keys if key in self._under_way}:
            await asyncio.wait(others)
        found = {key: self._known[key] for key in keys if key in self._known}
        own = asyncio.get_running_loop().create_future()
        claimed = dict.fromkeys((key for key in keys if key not in found), own)
        self._under_way |= claimed
        try:
            yield found
        finally:
            for key in claimed:
                del self._under_way[key]
                if key in found and isinstance(found[key].found, Assessment):
                    self._known[key] = found[key]
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
            own.set_result(None)
