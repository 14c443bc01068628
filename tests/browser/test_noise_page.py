"""Page Noise as a person uses it: first view, sliders, sweep, own context, files, links."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import open_settings

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


def sweep_of(page: Page, place: int) -> None:
    """Waits for the sweep of a place, counted from 1."""
    expect(page.locator(f"{VIEW} [data-part=sweep-plot] .xtitle")).to_have_text(
        f"noise of place {place}", timeout=SLOW_MS
    )


def test_every_place_and_drafter_of_a_recorded_context_needs_no_model(visit) -> None:
    page = open_noise(visit)
    status = page.locator("#status").inner_text()
    marks = page.locator(f"{VIEW} [data-part=sweep-plot] .ytick text").all_text_contents
    sweep_of(page, 1)
    assert "◆ 1" in marks()  # the verifier's own pick
    page.locator(f"{VIEW} .ds-slider").nth(2).focus()
    sweep_of(page, 3)
    assert marks()[0] == "3"
    part(page, "drafter").select_option("independent")
    page.locator(f'{VIEW} [data-at="1,5"]').click()  # O-PTP's sixth token
    sweep_of(page, 6)
    expect(part(page, "drafter")).to_have_value("o-ptp")
    page.evaluate(
        """() => document.querySelector('#noise-view [data-part="branches-plot"]')
        .emit('plotly_click', {points: [{x: 3}]})"""
    )
    sweep_of(page, 4)
    assert page.locator("#status").inner_text() == status


def test_what_drafters_are_told_is_marked_as_the_verifiers(visit) -> None:
    page = open_noise(visit)
    for name in ("o-ptp", "independent"):
        first, second = page.locator(f'{VIEW} [data-row="{name}"] .ds-cell').all()[:2]
        assert "ds-cell-verifier" in (first.get_attribute("class") or "")
        assert "told to the drafter" in (first.get_attribute("data-about") or "")
        assert "ds-cell-verifier" not in (second.get_attribute("class") or "")
        assert row(page, name)[0] == row(page, "plain")[0]
    expect(part(page, "caption")).to_contain_text("of 7")
    expect(part(page, "caption")).to_contain_text("does not count")
    page.locator(f'{VIEW} [data-row="independent"] .ds-term').focus()
    expect(page.locator("#ds-tip")).to_contain_text("which the drafter is told")


def test_keys_reach_the_tokens_and_their_numbers(visit) -> None:
    page = open_noise(visit)
    page.locator(f'{VIEW} [data-row="plain"] .ds-cell').first.focus()
    expect(page.locator("#ds-tip")).to_contain_text("falls into this token's interval")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    expect(page.locator(f'{VIEW} [data-at="1,2"]')).to_be_focused()
    expect(page.locator("#ds-tip")).to_contain_text("the verifier gives it")
    assert page.locator(f'{VIEW} .ds-cell[tabindex="0"]').count() == 1
    page.keyboard.press("Enter")
    sweep_of(page, 3)


def test_the_tokens_are_in_the_table_and_in_the_files(visit) -> None:
    page = open_noise(visit)
    part(page, "strips-data").click()
    tables = part(page, "strips-table").locator("table")
    expect(tables).to_have_count(2)
    tokens = [cell.strip() for cell in tables.first.locator("td:nth-child(3)").all_inner_texts()]
    names = (
        part(page, "rows")
        .locator(".ds-noise-row")
        .evaluate_all("(rows) => rows.map((row) => row.dataset.row)")
    )
    assert tokens == [token for name in names for token in row(page, name)]
    part(page, "strips-data").click()
    for name in ("strips", "sweep", "branches"):
        with page.expect_download() as saved:
            part(page, f"{name}-json").click()
        figure = json.loads(Path(saved.value.path()).read_text())
        assert figure["data"]
        if name == "strips":
            assert [one["place"] for one in figure["tokens"]] == [*range(1, 9)] * len(names)
        with page.expect_download() as picture:
            part(page, f"{name}-png").click()
        content = Path(picture.value.path()).read_bytes()
        assert content[1:4] == b"PNG"
        if name == "strips":  # with a row above the columns for each drafter, at twice the size
            height = int.from_bytes(content[20:24])
            assert height > 2 * (figure["layout"]["height"] + 20 * len(names))


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
    for given, said in (("", "Tokens foreseen is empty"), ("9", "are 9; they can be from 2")):
        page.locator("#noise-places input").fill(given)
        page.locator("#noise-start").click()
        expect(page.locator("#status")).to_contain_text(said, timeout=SLOW_MS)
    page.locator("#noise-places input").fill("5")
    page.locator("#noise-start").click()
    expect(part(page, "label")).to_have_text("your context", timeout=SLOW_MS)
    expect(page.locator(f"{VIEW} .ds-slider")).to_have_count(5)
    expect(part(page, "context")).to_contain_text("Say <b>hi</b>.<|end|><|assistant|>Hi th")
    expect(part(page, "tally")).to_contain_text("independent")
    part(page, "budget").fill("5")
    part(page, "budget").blur()
    rows = "() => document.querySelector('#noise-view [data-part=branches-plot]').data[0].y"
    page.wait_for_function(f"({rows})().reduce((a, b) => a + b, 0) <= 5")
    page.wait_for_url("**behind=**")
    query = parse_qs(urlparse(page.url).query)
    assert query["behind"] == ["Say <b>hi</b>."] and query["answer"] == ["Hi th"]


def test_a_context_is_saved_as_it_is_set_and_opened_again(visit, tmp_path: Path) -> None:
    page = open_noise(visit)
    first = part(page, "values").inner_text()
    part(page, "again").click()
    expect(part(page, "values")).not_to_have_text(first)
    drawn = float(part(page, "values").locator("span").nth(1).inner_text().split()[-1])
    page.wait_for_function(  # the address follows the tokens
        """(drawn) => {
        const u = new URLSearchParams(location.search).get('u');
        return u !== null && Math.abs(Number(u.split(',')[0]) - drawn) < 0.001; }""",
        arg=drawn,
        timeout=SLOW_MS,
    )
    tokens = {name: row(page, name) for name in ("plain", "o-ptp", "independent")}
    noise = parse_qs(urlparse(page.url).query)["u"][0]
    page.locator(f"{VIEW} .ds-slider").nth(3).focus()
    sweep_of(page, 4)
    with page.expect_download(timeout=SLOW_MS) as saved:
        part(page, "save").click()
    file = tmp_path / "context.json"
    saved.value.save_as(file)

    other = visit.again()
    other.goto(visit.address + "/?tab=noise")
    other.wait_for_selector(f'{VIEW} [data-part="strips-plot"] .main-svg')
    with other.expect_file_chooser() as chooser:
        other.locator("#noise-open").click()
    chooser.value.set_files(file)
    expect(part(other, "label")).to_have_text("opened from a file")
    expect(part(other, "title")).to_contain_text("noise set by hand")
    expect(other.locator("#status")).to_contain_text("A saved context on byte is shown")
    expect(part(other, "values")).to_have_text(part(page, "values").inner_text().replace("\n", ""))
    for name, texts in tokens.items():
        assert row(other, name) == texts
    for place in (8, 2):  # swept in the file
        other.locator(f"{VIEW} .ds-slider").nth(place - 1).focus()
        sweep_of(other, place)
    expect(other.locator("#status")).to_contain_text("A saved context on byte is shown")
    part(other, "budget").fill("9")
    part(other, "budget").blur()
    other.wait_for_url("**rows=9**")
    assert parse_qs(urlparse(other.url).query)["u"] == [noise]  # no seed gives it


def test_a_shown_context_fills_the_fields_that_read_it_again(visit) -> None:
    page = open_noise(visit, "?tab=noise&noises=smollm2")
    expect(part(page, "title")).to_contain_text("on smollm2")
    open_settings(page)
    expect(page.locator("#model input")).to_have_value("smollm2")
    page.locator("#noise-recorded input").click()
    page.get_by_role("option", name="byte:").click()
    expect(part(page, "title")).to_contain_text("on byte")
    expect(page.locator("#model input")).to_have_value("byte")
    expect(page.locator("#seed input")).to_have_value("242")
    expect(page.locator("#noise-answer textarea")).to_have_value("The sea was ")
    expect(page.locator("#noise-places input")).to_have_value("8")


def test_files_that_are_none_get_a_sentence(visit, tmp_path: Path) -> None:
    page = open_noise(visit)
    for content, said in (("{}", "not a record of noise"), ("x" * 2**22 + "y", "over 4 MB")):
        file = tmp_path / "wrong.json"
        file.write_text(content)
        with page.expect_file_chooser() as chooser:
            page.locator("#noise-open").click()
        chooser.value.set_files(file)
        expect(page.locator("#status")).to_contain_text(said)
    expect(part(page, "label")).to_have_text("recorded")


def test_stop_ends_what_the_page_asks_and_says_so_until_dismissed(visit) -> None:
    page = open_noise(visit)
    slide(page, 7, 0.5)
    page.wait_for_url("**u=0.**", timeout=SLOW_MS)
    sweep_of(page, 8)
    part(page, "save").click()  # sweeps every place
    stop = page.locator("#noise-stop")
    expect(page.locator("#status")).to_contain_text("Sweeping every place")
    expect(stop).to_be_enabled()
    stop.click()
    expect(part(page, "fault")).to_contain_text("Stopped before the model answered")
    expect(page.locator("#status")).to_contain_text("Stopped: the picture")
    expect(stop).to_be_hidden()
    slide(page, 7, 0.6)
    sweep_of(page, 8)
    page.wait_for_url("**%2C0.6&**", timeout=SLOW_MS)  # another question was answered
    expect(part(page, "fault")).to_contain_text("Stopped before the model answered")
    part(page, "fault").get_by_text("Dismiss").click()
    expect(part(page, "fault")).to_be_hidden()


def test_a_link_keeps_every_number_as_it_is(visit) -> None:
    top = "0.9999999403953552"  # the last point of the grid that noise lies on
    noise = [top, "5.960464477539063e-8", *["0.08513563871383667"] * 6]
    page = open_noise(visit, "?" + urlencode({"tab": "noise", "u": ",".join(noise)}))
    expect(part(page, "values")).to_contain_text("1.000", timeout=SLOW_MS)
    expect(part(page, "caption")).to_contain_text("plain sampling writes", timeout=SLOW_MS)
    slide(page, 7, 0.25)
    page.wait_for_url("**0.25**", timeout=SLOW_MS)
    link = page.url
    kept = parse_qs(urlparse(link).query)["u"][0].split(",")
    assert [float(u) for u in kept] == [float(u) for u in [*noise[:7], "0.25"]]
    plain = row(page, "plain")
    page.goto(link)
    expect(part(page, "values")).to_contain_text("0.250", timeout=SLOW_MS)
    page.wait_for_url(link)
    page.wait_for_function(
        """(wanted) => [...document.querySelectorAll('#noise-view [data-row="plain"] .ds-cell')]
        .map((cell) => cell.textContent).join() === wanted""",
        arg=",".join(plain),
        timeout=SLOW_MS,
    )


def test_wrong_addresses_get_a_sentence(visit) -> None:
    page = open_noise(visit)
    for query, said in (
        ({"noises": "nosuch"}, "There is no recorded context nosuch"),
        ({"u": "0.5,0.5"}, "The noise is 8 numbers"),
        ({"u": "1"}, "The link says u=1"),
        ({"place": "9"}, "from 1 to 8"),
        ({"rows": "1"}, "from 2 to 256"),
        ({"drafts": "nosuch"}, "There is no drafter nosuch"),
        ({"behind": "Hi", "u": "0.5,0.5"}, "The link says u=0.5,0.5"),
        ({"behind": "Hi", "places": "x"}, "The link says places=x"),
        ({"behind": "Hi", "places": "40"}, "The tokens foreseen are 40; they can be from 2 to 8"),
    ):
        page.goto(visit.address + "/?" + urlencode({"tab": "noise", **query}))
        expect(page.locator("#status")).to_contain_text(said, timeout=SLOW_MS)


def test_a_link_holds_how_many_places(visit) -> None:
    page = visit.page
    asked = {"tab": "noise", "behind": "Say hi.", "places": "4", "u": "0.5,0.25,0.125,0.0625"}
    page.goto(visit.address + "/?" + urlencode(asked))
    expect(part(page, "label")).to_have_text("your context", timeout=SLOW_MS)
    expect(page.locator(f"{VIEW} .ds-slider")).to_have_count(4)
    page.wait_for_url("**places=4**", timeout=SLOW_MS)
    assert parse_qs(urlparse(page.url).query)["u"] == ["0.5,0.25,0.125,0.0625"]


def test_a_phone_scrolls_the_board_not_the_page(visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 800})
    page = open_noise(visit)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide, room = page.evaluate(
        """() => { const board = document.querySelector('#noise-view [data-part="board"]');
        return [board.scrollWidth, board.clientWidth]; }"""
    )
    assert wide > room


def test_a_server_that_gives_no_answer_is_told_of_and_can_be_asked_again(visit) -> None:
    page = open_noise(visit)
    sweep_of(page, 1)
    asked = "**/component_server**"
    page.route(asked, lambda route: route.abort())
    before = row(page, "plain")
    slide(page, 0, 0.95)
    expect(part(page, "fault")).to_contain_text("The server gave no answer")
    assert row(page, "plain") == before
    part(page, "save").click()
    expect(part(page, "fault")).to_contain_text("The server gave no answer")
    page.unroute(asked)
    page.locator(f"{VIEW} .ds-slider").nth(2).focus()  # a sweep that is recorded
    sweep_of(page, 3)
    visit.faults = [fault for fault in visit.faults if "ERR_FAILED" not in fault]
