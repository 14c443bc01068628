"""Page Noise as a person uses it: first view, sliders, sweep, own context, links."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
VIEW = "#noise-view"
SLOW_MS = 300_000  # a model is loaded first


def part(page: Page, name: str):  # type: ignore[no-untyped-def]
    return page.locator(f'{VIEW} [data-part="{name}"]')


def open_noise(visit, query: str = "?tab=noise") -> Page:  # type: ignore[no-untyped-def]
    visit.page.goto(visit.address + "/" + query)
    visit.page.wait_for_selector(f'{VIEW} [data-part="strips-plot"] .main-svg')
    return visit.page


def row(page: Page, name: str) -> list[str]:
    return page.locator(f'{VIEW} [data-row="{name}"] .ds-cell').all_inner_texts()


def slide(page: Page, place: int, u: float) -> None:
    """Moves a slider as a drag does."""
    page.locator(f"{VIEW} .ds-slider").nth(place).evaluate(
        "(slider, u) => { slider.value = u; slider.dispatchEvent(new Event('input')); }", u
    )


def test_the_first_view_needs_no_model(visit) -> None:
    page = open_noise(visit)
    expect(part(page, "label")).to_have_text("recorded")
    assert page.locator(f"{VIEW} .ds-slider").count() == len(row(page, "plain")) == 8
    for name in ("o-ptp", "independent"):
        assert len(row(page, name)) == 8
    page.wait_for_selector(f'{VIEW} [data-part="sweep-plot"] .main-svg')
    page.wait_for_selector(f'{VIEW} [data-part="branches-plot"] .main-svg')
    expect(page.locator(f"{VIEW} [data-part=sweep-plot] .xtitle")).to_have_text("noise of place 1")
    expect(page.locator("#status")).to_contain_text("recorded context")


def test_a_slider_is_drawn_where_its_noise_is(visit) -> None:
    page = open_noise(visit)
    boxes = page.evaluate(
        """() => {
        const sliders = document.querySelector('#noise-view [data-part=sliders]');
        const area = sliders.getBoundingClientRect();
        return [...document.querySelectorAll('#noise-view .ds-slider')].map((slider) => {
            const box = slider.getBoundingClientRect();
            return [box.top - area.top, box.bottom - area.bottom, box.left >= area.left]; }); }"""
    )
    assert boxes == [[-6, 6, True]] * 8  # the thumb's half, above and below


def test_a_slider_changes_what_is_picked_from_there_on(visit) -> None:
    page = open_noise(visit)
    before = row(page, "plain")
    intervals = """() => document.querySelector('#noise-view [data-part=strips-plot]').data[1]
        .customdata.filter((one) => one[0] === 1)"""
    others = [one for one in page.evaluate(intervals) if one[1] != before[0]]
    other = max(others, key=lambda one: float(one[3]) - float(one[2]))
    slide(page, 0, (float(other[2]) + float(other[3])) / 2)
    plain = page.locator(f'{VIEW} [data-row="plain"] .ds-cell').first
    expect(plain).to_have_text(other[1], timeout=SLOW_MS)
    assert row(page, "plain") != before
    page.wait_for_url("**u=0.**")
    link, after = page.url, row(page, "plain")
    part(page, "reset").click()
    expect(plain).to_have_text(before[0])
    assert row(page, "plain") == before
    page.goto(link)
    expect(plain).to_have_text(other[1], timeout=SLOW_MS)
    assert row(page, "plain") == after


def test_keys_move_a_slider_and_choose_its_place(visit) -> None:
    page = open_noise(visit)
    slider = page.locator(f"{VIEW} .ds-slider").nth(2)
    was = float(slider.input_value())
    slider.focus()
    page.keyboard.press("ArrowUp")
    expect(slider).to_have_attribute("aria-valuetext", f"{was + 0.001:.3f}")
    expect(page.locator(f"{VIEW} .ds-value-chosen")).to_contain_text(f"u₃ {was + 0.001:.3f}")
    page.wait_for_url("**place=3**", timeout=SLOW_MS)
    expect(page.locator(f"{VIEW} [data-part=sweep-plot] .xtitle")).to_have_text(
        "noise of place 3", timeout=SLOW_MS
    )


def test_an_own_context_with_markup(visit) -> None:
    page = open_noise(visit)
    page.locator("#noise-prompt textarea").fill("Say <b>hi</b>.")
    page.locator("#noise-answer textarea").fill("Hi th")
    page.locator("#noise-start").click()
    expect(part(page, "label")).to_have_text("your context", timeout=SLOW_MS)
    expect(part(page, "context")).to_contain_text("Say <b>hi</b>.<|end|><|assistant|>Hi th")
    expect(part(page, "tally")).to_contain_text("independent")
    part(page, "budget").fill("5")
    part(page, "budget").blur()
    rows = "() => document.querySelector('#noise-view [data-part=branches-plot]').data[0].y"
    page.wait_for_function(f"({rows})().reduce((a, b) => a + b, 0) <= 5")
    page.wait_for_url("**behind=**")
    query = parse_qs(urlparse(page.url).query)
    assert query["behind"] == ["Say <b>hi</b>."] and query["answer"] == ["Hi th"]


def test_wrong_addresses_get_a_sentence(visit) -> None:
    page = open_noise(visit)
    page.goto(visit.address + "/?" + urlencode({"tab": "noise", "noises": "nosuch"}))
    expect(page.locator("#status")).to_contain_text("There is no recorded context nosuch")


def test_a_phone_scrolls_the_board_not_the_page(visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 800})
    page = open_noise(visit)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide, room = page.evaluate(
        """() => { const board = document.querySelector('#noise-view [data-part="board"]');
        return [board.scrollWidth, board.clientWidth]; }"""
    )
    assert wide > room
