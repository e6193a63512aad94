"""The report as a browser shows it, made by the command: light, dark and printed, on a wide page and on a phone."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from PIL import Image
from prefleet_operator.cli.commands import app
from typer.testing import CliRunner

from tests.support.browser import Browser, Tab, find_chromium, run_browser

PROGRAM = find_chromium()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is on PATH: `apt-get install chromium` brings one")
WIDE, PHONE, A4_WIDTH = 1200, 420, 688
"""In CSS pixels; of A4 the 182 mm between its margins."""

POLICIES = ("fcfs", "short_request_first", "hrrn", "promote_shortest", "clairvoyant bound")

OUTSIDE = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const box = svg.viewBox.baseVal
  return [...svg.querySelectorAll('*')].filter(shape => {
    const b = shape.getBBox()
    return b.x < -1 || b.y < -1 || b.x + b.width > box.width + 1 || b.y + b.height > box.height + 1
  }).map(shape => svg.closest('figure').id + ': ' + (shape.textContent || shape.outerHTML))
})"""
SMALLEST_TEXT_PX = """Math.min(...[...document.querySelectorAll('svg text')].map(
  text => parseFloat(getComputedStyle(text).fontSize) * text.ownerSVGElement.getScreenCTM().a))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    arguments = ["bimodal:seed=3,requests=1500", "--load", "0.9", "--threshold", "1500", "--html", str(path)]
    result = CliRunner().invoke(app, ["replay", *arguments])
    assert result.exit_code == 0, result.output
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with run_browser(PROGRAM, tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
async def page(browser: Browser, report: Path) -> AsyncIterator[Tab]:
    async with browser.tab() as tab:
        await tab.show(WIDE)
        await tab.open(report.as_uri())
        yield tab


async def test_the_page_shows_the_comparison_and_asks_for_nothing(page: Tab, report: Path) -> None:
    text = await page.evaluate("document.body.innerText")
    for part in (*POLICIES, "threshold 1,500 tokens", "wait limit 5 s", "W_slo 8 s", "W_normal"):
        assert part in text, part
    assert await page.evaluate("document.querySelectorAll('figure svg').length") == 6
    assert await page.evaluate("document.querySelectorAll('table').length") == 3
    assert page.complaints() == []
    assert page.requests() == [report.as_uri()]


@pytest.mark.parametrize(("width", "media"), [(WIDE, "screen"), (PHONE, "screen"), (A4_WIDTH, "print")])
async def test_nothing_is_cut_off_and_no_text_is_small(page: Tab, width: int, media: str) -> None:
    await page.show(width, media=media)
    assert await page.evaluate(OUTSIDE) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width
    if media == "screen":
        assert await page.evaluate(SMALLEST_TEXT_PX) >= 12


@pytest.mark.parametrize("width", [WIDE, PHONE])
async def test_light_is_light_and_dark_is_dark(page: Tab, tmp_path: Path, width: int) -> None:
    grounds = {}
    for scheme in ("light", "dark"):
        await page.show(width, scheme)
        shot = opened(await page.screenshot(), tmp_path / f"{scheme}.png")
        assert shot.width == width
        assert_drawn(shot)
        grounds[scheme] = max(shot.getpixel((1, 1)))
    assert grounds["light"] > 240
    assert grounds["dark"] < 50


async def test_print_is_on_white_whatever_the_scheme(page: Tab, tmp_path: Path) -> None:
    await page.show(A4_WIDTH, "dark", "print")
    shot = opened(await page.screenshot(), tmp_path / "print.png")
    assert shot.getpixel((1, 1)) == (255, 255, 255)
    assert_drawn(shot)
    printed = await page.pdf()
    (tmp_path / "report.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 8


def opened(shot: bytes, path: Path) -> Image.Image:
    """The picture, kept for whoever looks into a failure."""
    path.write_bytes(shot)
    return Image.open(path).convert("RGB")


def assert_drawn(shot: Image.Image) -> None:
    """A blank page has one colour; this one has the tables' text all over, and the pictures' colours."""
    colours = shot.getcolors(maxcolors=2**24)
    assert colours is not None
    commonest = max(number for number, _ in colours)
    assert commonest < 0.97 * shot.width * shot.height
    vivid = sum(number for number, colour in colours if max(colour) - min(colour) > 60)
    assert vivid > 2000
