"""README and pages as tests see them: their code blocks and their commands."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
_BLOCK = re.compile(r"^ *```(\w*)[^\n]*\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each code block of a page."""
    return [(found[1], found[2]) for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return _BLOCK.sub("", page.read_text(encoding="utf-8"))


def python_blocks(page: Path) -> list[str]:
    """The Python of a page, block by block."""
    return [text for language, text in blocks(page) if language == "python"]


def commands(page: Path, *languages: str) -> list[str]:
    """The commands of a page's shell blocks, in order; a backslash joins lines."""
    texts = [text.replace("\\\n", " ") for language, text in blocks(page) if language in languages]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]
