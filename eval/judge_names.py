"""What judges are called on the command line, and whether those that are named can be had. Loads no torch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..data_modules.errors import UserError
from ..models.hub import is_judge, require_backbone, require_judge

PROVIDERS = ("openai", "gemini", "local")
"""Of prompted judges: ``PROVIDER:MODEL``, then settings, each after a comma."""
PROBE, SCORES, HUMAN = "probe:", "scores:", "human:"
"""Before what a probe hears with, a file, a rater."""
BASELINES = ("acoustic", "acoustic:egemaps", "text", "quality", "random", "constant")


def is_prompted(spec: str) -> bool:
    """Whether a spec names a prompted LLM judge."""
    return spec.partition(":")[0] in PROVIDERS


def require_judges(specs: Iterable[str], backbone: str | None = None) -> None:
    """Judges can be had, as far as their names say it. Commands ask before they load torch, which takes seconds.

    Args:
        specs: As for `eval.judges.opening.open_judges`.
        backbone: Where the backbone of judges lies now; None = where they found it.

    Raises:
        UserError: If there is no such judge, or no such backbone.
    """
    for spec in specs:
        if spec.startswith(PROBE):
            what = Path(spec.removeprefix(PROBE))
            if is_judge(what):
                require_judge(what, backbone)
            elif what.name:
                require_backbone(backbone or str(what))
        elif spec.startswith("local:"):
            if name := spec.removeprefix("local:").partition(",")[0]:
                require_backbone(name)
        elif not (is_prompted(spec) or spec in BASELINES or spec.startswith((SCORES, HUMAN))):
            if not Path(spec).exists():
                raise UserError(
                    f"judge {spec!r}: expected a judge folder, a run folder, openai:MODEL, gemini:MODEL, "
                    f"local:BACKBONE, probe:JUDGE_OR_BACKBONE, scores:FILE, human:RATER, {', '.join(BASELINES)}"
                )
            require_judge(Path(spec), backbone)
