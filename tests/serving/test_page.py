"""The page: one document that loads nothing, allows only itself, and says what everything is."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest
from empathy_judge.serving.app import page_of
from empathy_judge.serving.settings import MAX_SITUATION

from ..eval.conftest import Page


@pytest.fixture(scope="module")
def page() -> str:
    """Of a service with a token."""
    return page_of(needs_token=True)[0]


def inside(html: str, tag: str) -> str:
    """The text of the only element of a kind."""
    (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
    return text


def test_nothing_is_loaded_from_anywhere(page):
    assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", page)
    elements = Page(page).elements
    assert not [tag for tag, _ in elements if tag in ("link", "img", "iframe", "object")]
    assert [own for tag, own in elements if tag == "script"] == [{}]


def test_its_policy_allows_its_own_script_and_style_and_nothing_else(page):
    policy = dict(part.split(" ", 1) for part in page_of(needs_token=True)[1]["Content-Security-Policy"].split("; "))
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(inside(page, tag).encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag, own in Page(page).elements:  # such a policy would stop these
        assert not [name for name in own if name == "style" or name.startswith("on")], tag


def test_every_element_that_the_script_uses_is_there(page):
    ids = [own["id"] for _, own in Page(page).elements if "id" in own]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'\$\("([a-z-]+)"\)', page))
    assert used
    assert used <= set(ids)


def test_every_control_has_a_name(page):
    elements = Page(page).elements
    labelled = {own.get("for") for tag, own in elements if tag == "label"}
    ids = {own.get("id") for _, own in elements}
    for tag, own in elements:
        if tag in ("input", "textarea", "select"):
            assert own["id"] in labelled
        if tag == "audio":
            assert own["aria-label"]
        for word in (own.get("aria-describedby") or "").split():
            assert word in ids
    assert {"alert", "status"} <= {own.get("role") for _, own in elements}
    assert ("html", {"lang": "en"}) in elements


def test_it_asks_for_a_token_only_where_there_is_one(page):
    assert 'id="token"' in page
    without = page_of(needs_token=False)[0]
    assert 'id="token"' not in without
    assert f'maxlength="{MAX_SITUATION}"' in without
