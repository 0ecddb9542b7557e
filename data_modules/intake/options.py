"""Values of the import command line."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import UserError


def parse_mapping(items: Sequence[str], option: str) -> dict[str, str]:
    """``["response_speaker=speaker_id"]`` as our name -> theirs.

    Raises:
        UserError: If an item has another form.
    """
    pairs = [item.partition("=") for item in items]
    for item, (ours, sign, theirs) in zip(items, pairs, strict=True):
        if not (ours and sign and theirs):
            raise UserError(f"{option} {item!r}: accepted: OURS=THEIRS, such as response_speaker=speaker_id")
    return {ours: theirs for ours, _, theirs in pairs}
