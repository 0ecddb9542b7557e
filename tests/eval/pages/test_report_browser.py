"""The pages in a real browser: nothing fails, players play, plots are drawn, nothing sticks out, light and dark."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from empathy_judge.eval.compare import compare
from empathy_judge.eval.evaluate import evaluate

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 1280)
CHECKS = ("response_only", "silent", "context_swapped", "low_pass", "gain")
LONG = "a/judge/with/a/rather/long/path/" + "x" * 120

pytestmark = [pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"), pytest.mark.slow]

# Measures the page in each of the frames and leaves what it finds as the only text of the document
_MEASURE = """
const loaded = player => new Promise(done => {
  player.addEventListener('loadedmetadata', () => done(player.duration));
  player.addEventListener('error', () => done(-1));
  player.preload = 'metadata'; player.load(); });
const measured = async frame => {
  const page = frame.contentDocument, view = frame.contentWindow, all = what => [...page.querySelectorAll(what)];
  const plots = all('svg').map(plot => {
    const box = plot.getBoundingClientRect(), parts = plot.querySelectorAll('path, circle, use, image, line');
    return [box.width, box.height, parts.length, box.right]; });
  return {page: page.documentElement.scrollWidth, window: view.innerWidth, plots,
    ground: view.getComputedStyle(page.body).backgroundColor,
    letters: [...new Set(all('.figure svg text').map(text => view.getComputedStyle(text).fill))].sort(),
    players: await Promise.all(all('audio').map(loaded))}; };
onload = async () => {
  const found = await Promise.all([...document.querySelectorAll('iframe')].map(measured));
  document.body.textContent = JSON.stringify(found); };
"""


def measured(page: Path, scheme: str, folder: Path) -> tuple[list[dict[str, Any]], list[str], bytes]:
    """What is found of a page in a frame of each width, what the browser complains about, and a picture of the page."""
    assert CHROMIUM is not None
    source = html.escape(page.read_text(encoding="utf-8"))
    frames = [f'<iframe width="{width}" height="844" style="border: 0" srcdoc="{source}"></iframe>' for width in WIDTHS]
    framed, picture = folder / "framed.html", folder / "picture.png"
    framed.write_text(f"<meta charset=utf-8><script>{_MEASURE}</script>{''.join(frames)}", encoding="utf-8")
    words = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}",
        "--enable-logging=stderr", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
    ]  # fmt: skip
    told = subprocess.run(
        [*words, "--virtual-time-budget=60000", "--dump-dom", framed.as_uri()],
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    subprocess.run([*words, f"--screenshot={picture}", page.as_uri()], capture_output=True, check=True, timeout=120)
    (text,) = re.findall(r"<body>(.*)</body>", told.stdout)
    return json.loads(html.unescape(text)), re.findall(".*CONSOLE.*", told.stderr), picture.read_bytes()


def check_page(page: Path, folder: Path) -> list[float]:
    """The page at every width, light and dark. Returns the seconds of its players; -1 = one does not load."""
    seen = set()
    for scheme in ("light", "dark"):
        found, complaints, picture = measured(page, scheme, folder)
        assert complaints == []
        assert len(picture) > 5_000
        for width, facts in zip(WIDTHS, found, strict=True):
            assert facts["page"] <= facts["window"] == width
            assert facts["plots"]
            for across, high, parts, right in facts["plots"]:
                assert across > 100
                assert high > 20
                assert parts >= 2
                assert right <= width
            assert len(facts["letters"]) >= 2
            assert "rgb(0, 0, 0)" not in facts["letters"]
            seen.add((scheme, facts["ground"], *facts["letters"]))
    assert len(seen) == 2
    return found[0]["players"]


def test_a_report_in_a_browser(make_dataset, make_tone_judge, tmp_path):
    dataset = make_dataset(noise=0.4, dimensions=("empathy", "warmth"))
    pairs = tuple(
        replace(pair, system_id=f"{pair.system_id}-{'y' * 60}", situation=f"{pair.situation} {'z' * 200}")
        for pair in dataset.pairs
    )
    judge = make_tone_judge(noise=0.4, dimensions=("empathy", "warmth"))
    judge.name = LONG
    found = evaluate(judge, replace(dataset, pairs=pairs), split="test", checks=CHECKS, resamples=20, command="w" * 300)
    found.save(tmp_path / "report")
    page = tmp_path / "report" / "index.html"
    durations = check_page(page, tmp_path)
    assert len(durations) == 2 * 2 * 10
    np.testing.assert_allclose(min(durations), 0.05, atol=0.02)
    assert min(durations) > 0.04
    text = page.read_text(encoding="utf-8")
    assert '<meta name="viewport" content="width=device-width' in text  # a phone would lay it out 980 wide
    start = text.index("base64,") + 7
    page.write_text(f"{text[:start]}AAAA{text[start + 4 :]}", encoding="utf-8")
    assert -1 in measured(page, "light", tmp_path)[0][0]["players"]  # the test sees a player that does not load


def test_a_comparison_in_a_browser(make_dataset, make_tone_judge, tmp_path):
    judges = [make_tone_judge(noise=noise) for noise in (0.1, 0.12, 1.0, 3.0)]
    for number, judge in enumerate(judges):
        judge.name = f"{number}-{LONG}"
    compare(judges, make_dataset(noise=0.4), split=None, resamples=50).save(tmp_path / "comparison")
    check_page(tmp_path / "comparison" / "index.html", tmp_path)
