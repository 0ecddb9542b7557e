"""What the confidence of an answer on five levels means, by who gives it."""

from __future__ import annotations

import ast
import importlib.util
import math
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from empathy_judge.serving.systemone import confidence

DISTRIBUTIONS = {
    "leaning": (0.05, 0.1, 0.2, 0.4, 0.25),
    "two camps at the ends": (0.5, 0.0, 0.0, 0.0, 0.5),
    "two neighbours": (0.0, 0.0, 0.0, 0.5, 0.5),
}
MASS = 0.8
"""What a language model gives to the names of the levels together, of all its next tokens."""


def sglang() -> tuple[Any, Any]:
    """SGLang's confidence of a score and of a choice, without importing SGLang."""
    (root,) = importlib.util.find_spec("sglang").submodule_search_locations  # pyright: ignore[reportOptionalMemberAccess, reportGeneralTypeIssues]
    tree = ast.parse(Path(root, "srt", "entrypoints", "systemone", "serving.py").read_text("utf-8"))
    wanted = ("_score_confidence", "_choice_confidence")
    functions: list[ast.stmt] = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]
    space: dict[str, Any] = {"math": math, "List": list}
    exec(compile(ast.Module(functions, []), "sglang", "exec"), space)
    return space[wanted[0]], space[wanted[1]]


def deviation(shares: Sequence[float]) -> float:
    """Standard deviation of the levels, in levels."""
    mean = sum(level * share for level, share in enumerate(shares))
    return math.sqrt(sum(share * (level - mean) ** 2 for level, share in enumerate(shares)))


def measure() -> dict[str, Any]:
    """The table."""
    of_score, of_choice = sglang()
    rows = [
        ["Gemini: the highest probability", *(f"{max(p):.2f}" for p in DISTRIBUTIONS.values())],
        [
            f"vLLM: that times the mass of the labels, here {MASS}",
            *(f"{max(p) * MASS:.2f}" for p in DISTRIBUTIONS.values()),
        ],
        ["SGLang, a question of type `score`", *(f"{of_score(list(p)):.2f}" for p in DISTRIBUTIONS.values())],
        ["SGLang, the same as a `choice`", *(f"{of_choice(list(p)):.2f}" for p in DISTRIBUTIONS.values())],
        ["this package's `/v1/systemone`", *(f"{confidence(p):.2f}" for p in DISTRIBUTIONS.values())],
        ["standard deviation (levels)", *(f"{deviation(p):.2f}" for p in DISTRIBUTIONS.values())],
    ]
    columns = ["who", *(f"{name}: {' '.join(f'{share:g}' for share in p)}" for name, p in DISTRIBUTIONS.items())]
    return {"versions": {"sglang": version("sglang")}, "columns": columns, "rows": rows}
