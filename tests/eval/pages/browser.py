"""Pages in a real browser, as wide as a phone and as a laptop."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDTHS = (390, 1280)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")


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
  const bottom = cell => { const inside = page.createRange(); inside.selectNodeContents(cell);
    return inside.getBoundingClientRect().bottom; };
  const lines = cell => { const inside = page.createRange(); inside.selectNodeContents(cell);
    return new Set([...inside.getClientRects()].map(line => Math.round(line.top))).size; };
  const torn = all('td, th').filter(cell => !cell.children.length && /^\\S{1,11}$/.test(cell.textContent.trim())
    && lines(cell) > 1).map(cell => cell.textContent);
  const blank = all('.scroll tr').map(row => { const edge = row.closest('.scroll').getBoundingClientRect().right;
    const seen = [...row.children].filter(cell => cell.getBoundingClientRect().left < edge - 20);
    return Math.round(row.getBoundingClientRect().bottom - Math.max(...seen.map(bottom))); });
  const wide = all('.scroll').filter(one => one.scrollWidth > one.clientWidth).map(one => {
    const name = one.querySelector('tbody th[scope=row]'), left = one.getBoundingClientRect().left;
    one.scrollLeft = 60;
    const shades = view.getComputedStyle(one).backgroundImage.match(/gradient/g).length;
    return [name ? Math.round(name.getBoundingClientRect().left - left) : 0, shades]; });
  return {page: page.documentElement.scrollWidth, window: view.innerWidth, plots, wide, torn, blank: Math.max(...blank),
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
            assert not facts["torn"], facts["torn"]  # short words that a narrow cell breaks
            # a row that is high for what is out of sight looks empty
            assert facts["blank"] < 60, facts["blank"]
            if width == 390:  # what does not fit has a shadow at its edge, and names stay where numbers move
                assert facts["wide"]
                assert facts["wide"] == [[0, 4]] * len(facts["wide"])
            assert len(facts["letters"]) >= 2
            assert "rgb(0, 0, 0)" not in facts["letters"]
            seen.add((scheme, facts["ground"], *facts["letters"]))
    assert len(seen) == 2
    return found[0]["players"]
