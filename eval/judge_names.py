"""Names of judges on the command line, and a check that those that are named exist. Does not load torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

from ..core.errors import UserError
from ..models.hub import is_judge, require_backbone, require_judge

PROVIDERS = ("openai", "gemini", "qwen", "gemini-decision", "systemone", "hume")
"""Providers of prompted judges, written ``PROVIDER:MODEL``; settings follow, each after a comma."""
PROBE, SCORES, HUMAN = "probe:", "scores:", "human:"
"""Prefixes of the judge or backbone behind a probe, of a file of scores, and of a rater."""
BASELINES = ("acoustic", "acoustic:egemaps", "text", "random", "constant")


def is_prompted(spec: str) -> bool:
    """Whether a spec names a prompted LLM judge."""
    return spec.partition(":")[0] in PROVIDERS


def require_judges(specs: Iterable[str], backbone: str | None = None) -> None:
    """Check that judges exist, as far as their names tell. Commands call it before they load torch, which is slow.

    Args:
        specs: As for `eval.judges.opening.open_judges`.
        backbone: Where the backbone of judges is now; None = where they found it.

    Raises:
        UserError: If there is no such judge, or no such backbone.
    """
    for spec in specs:
        if spec.startswith(PROBE):
            path = Path(spec.removeprefix(PROBE))
            if is_judge(path):
                require_judge(path, backbone)
            elif path.name:
                require_backbone(backbone or str(path))
        elif not (is_prompted(spec) or spec in BASELINES or spec.startswith((SCORES, HUMAN))):
            if not Path(spec).exists():
                raise UserError(
                    f"judge {spec!r}: expected a judge folder, a run folder, VENDOR:MODEL ({', '.join(PROVIDERS)}), "
                    f"probe:JUDGE_OR_BACKBONE, scores:FILE, human:RATER, {', '.join(BASELINES)}{_hint(spec)}"
                )
            require_judge(Path(spec), backbone)


def _hint(spec: str) -> str:
    """What may have been meant by the name of a vendor that is none here."""
    vendor, colon, model = spec.partition(":")
    if not (colon and re.fullmatch(r"[A-Za-z][\w.-]+", vendor)) or model.startswith(("/", "\\")):
        return ""
    alike = get_close_matches(vendor.lower(), PROVIDERS, n=1)
    if alike:
        return f"; or {alike[0]}:{model}?"
    return f"; a server with OpenAI's protocol is openai:{model},base_url=https://HOST/v1"
