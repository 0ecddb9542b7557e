"""The pages in a real browser: nothing fails, players play, plots are drawn, nothing sticks out, light and dark."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from empathy_judge.eval.compare import compare
from empathy_judge.eval.evaluate import evaluate

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 1280)
PROBES = ("response_only", "silent", "context_swapped", "low_pass", "gain")
LONG = "a/judge/with/a/rather/long/path/" + "x" * 120

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"), pytest.mark.slow]

# Hands descriptors to a browser that expects its commands at 3 and writes its answers to 4
_START = """
import os, sys
inward, outward = (os.dup(os.dup(int(number))) for number in sys.argv[1:3])
os.dup2(inward, 3); os.dup2(outward, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""

PLAYERS = """Promise.all([...document.querySelectorAll('audio')].map(player => new Promise(done => {
  player.addEventListener('loadedmetadata', () => done(player.duration));
  player.addEventListener('error', () => done(-1));
  player.preload = 'metadata'; player.load(); })))"""
PLOTS = """[...document.querySelectorAll('svg')].map(plot => {
  const box = plot.getBoundingClientRect(), parts = plot.querySelectorAll('path, circle, use, image, line');
  return [box.width, box.height, parts.length, box.right]; })"""
FACTS = """({page: document.documentElement.scrollWidth, window: window.innerWidth,
  ground: getComputedStyle(document.body).backgroundColor,
  letters: [...new Set([...document.querySelectorAll('.figure svg text')].map(text => getComputedStyle(text).fill))]
})"""


class Browser:
    """Chromium under the DevTools protocol, over a pipe."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._out = os.pipe()
        ours, theirs_out = os.pipe()
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(theirs_in), str(theirs_out), CHROMIUM, *options],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._in = os.fdopen(ours, "rb")
        self._rest = b""
        self._sent = 0
        self.events: list[dict[str, Any]] = []
        self._session: str | None = None
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        self._sent += 1
        session = {} if self._session is None else {"sessionId": self._session}
        message = json.dumps({"id": self._sent, "method": method, "params": parameters} | session)
        os.write(self._out, message.encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self.events.append(answer)

    def open(self, page: Path, width: int, scheme: str) -> None:
        """Shows a file in a window of a width, light or dark, and waits until it is loaded."""
        mobile = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=mobile)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._read())

    def run(self, script: str) -> Any:
        """What a script comes to, awaited."""
        answer = self.ask("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"]["value"]

    def complaints(self) -> list[dict[str, Any]]:
        """Errors and warnings of the console since the page was opened."""
        methods = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event["method"] in methods]

    def picture(self) -> bytes:
        """The page as PNG, as far as the window shows it."""
        return base64.b64decode(self.ask("Page.captureScreenshot")["data"])

    def close(self) -> None:
        """Ends the browser."""
        self._session = None
        self.ask("Browser.close")
        self._process.wait(timeout=20)
        self._in.close()
        os.close(self._out)

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            chunk = os.read(self._in.fileno(), 1 << 16)
            assert chunk, "the browser has ended"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator[Browser]:
    own = Browser(tmp_path_factory.mktemp("profile"))
    yield own
    own.close()


def check_page(browser: Browser, page: Path) -> None:
    """The page at every width, light and dark."""
    seen = set()
    for width in WIDTHS:
        for scheme in ("light", "dark"):
            browser.open(page, width, scheme)
            plots, facts = browser.run(PLOTS), browser.run(FACTS)
            assert browser.complaints() == []
            assert facts["page"] <= facts["window"] == width
            assert plots
            for across, high, parts, right in plots:
                assert across > 100
                assert high > 20
                assert parts >= 2
                assert right <= width
            assert len(facts["letters"]) >= 2
            assert "rgb(0, 0, 0)" not in facts["letters"]
            seen.add((scheme, facts["ground"], *sorted(facts["letters"])))
            assert len(browser.picture()) > 5_000
    assert len(seen) == 2


def test_a_report_in_a_browser(browser, make_dataset, make_judge, tmp_path):
    dataset = make_dataset(noise=0.4, dimensions=("empathy", "warmth"))
    pairs = tuple(
        replace(pair, system_id=f"{pair.system_id}-{'y' * 60}", situation=f"{pair.situation} {'z' * 200}")
        for pair in dataset.pairs
    )
    dataset = replace(dataset, pairs=pairs)
    judge = make_judge(noise=0.4, dimensions=("empathy", "warmth"))
    judge.name = LONG
    found = evaluate(judge, dataset, split="test", probes=PROBES, resamples=20, command="w" * 300)
    found.save(tmp_path / "report")
    page = tmp_path / "report" / "index.html"
    check_page(browser, page)
    browser.open(page, 390, "light")
    durations = browser.run(PLAYERS)
    assert len(durations) == 2 * 2 * 10
    np.testing.assert_allclose(sorted(set(durations))[0], 0.05, atol=0.02)
    assert min(durations) > 0.04
    assert browser.complaints() == []
    assert sorted(path.name for path in page.parent.iterdir() if path.suffix not in (".json", ".csv", ".md")) == [
        page.name
    ]
    text = page.read_text(encoding="utf-8")
    start = text.index("base64,") + 7
    page.write_text(f"{text[:start]}AAAA{text[start + 4 :]}", encoding="utf-8")
    browser.open(page, 390, "light")
    assert -1 in browser.run(PLAYERS)  # the test sees a player that does not load


def test_a_comparison_in_a_browser(browser, make_dataset, make_judge, tmp_path):
    judges = []
    for number, noise in enumerate((0.1, 0.12, 1.0, 3.0)):
        judge = make_judge(noise=noise)
        judge.name = f"{number}-{LONG}"
        judges.append(judge)
    found = compare(judges, make_dataset(noise=0.4), split=None, resamples=50)
    found.save(tmp_path / "comparison")
    check_page(browser, tmp_path / "comparison" / "index.html")
