"""The page of the service: one document, nothing from elsewhere, its script and style allowed by their hashes alone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from ...eval.pages.page import STYLE, render
from ..settings import MAX_SITUATION

_FOLDER = Path(__file__).parent


class Page:
    """The page as it is sent.

    Args:
        needs_token: The service wants a token; the page asks for it and keeps it in memory.

    Attributes:
        html: The document.
        headers: What it may do: its own script and style, its own server, clips made in the browser.
    """

    def __init__(self, needs_token: bool) -> None:
        template, style, script = (_read(name) for name in ("page.html", "page.css", "page.js"))
        self.html: str = render(
            template,
            style,
            script=Markup(script),
            needs_token=needs_token,
            max_situation=MAX_SITUATION,
        )
        policy = {
            "default-src": "'none'",
            "script-src": _hash(script),
            "style-src": _hash(STYLE + style),
            "connect-src": "'self'",
            "media-src": "blob:",
            "img-src": "data:",
            "base-uri": "'none'",
            "form-action": "'none'",
            "frame-ancestors": "'none'",
        }
        self.headers: Mapping[str, str] = {
            "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
            "Permissions-Policy": "microphone=(self), camera=(), geolocation=()",
        }


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
