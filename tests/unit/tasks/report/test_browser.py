"""The page about a run in a real browser: it shows everything, complains of nothing, and fits a telephone."""

import pytest

from retune.tasks.report.facts import facts_of, find_run
from retune.tasks.report.page import SECTIONS, page
from tests.support.browser import opened
from tests.support.stored_runs import finished_run


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    home = tmp_path_factory.mktemp("state")
    path = home / "page.html"
    path.write_text(page(facts_of(home, find_run(home, finished_run(home)))), encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_the_page_fits_and_nothing_complains(address: str, width: int, scheme: str) -> None:
    with opened(address, width, scheme=scheme) as (shown, complaints):
        assert complaints == []
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        sections = shown.evaluate("[...document.querySelectorAll('section')].map(s => [s.id, s.offsetHeight])")
        assert {name for name, height in sections if height > 40} == set(SECTIONS)
        charts = shown.evaluate("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
        assert len(charts) == 3 + 9
        assert all(200 <= chart <= width for chart in charts)
        ink, paper = shown.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")
        assert ink != paper
        assert (sum(map(int, paper[4:-1].split(","))) > 384) == (scheme == "light")
        smallest = shown.evaluate(
            "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"
        )
        assert smallest > 8


def test_paper_is_white_and_leaves_nothing_out(address: str) -> None:
    with opened(address, 800, scheme="dark") as (shown, _):
        shown.emulate_media(media="print", color_scheme="dark")
        assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert shown.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
        assert len(shown.pdf()) > 20_000
