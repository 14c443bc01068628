"""Page Circuit as a person uses it: first view, own context, clamping, samples, tables, links."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlparse

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import open_settings

pytestmark = pytest.mark.browser
VIEW = "#circuit-view"
SLOW_MS = 300_000  # a model is loaded first
SOON_MS = 60_000  # the first question has torch imported
OWN = {"tab": "circuit", "model": "byte", "circuit": "cp", "window": "8", "context": "Hello there."}


def part(page: Page, name: str):  # type: ignore[no-untyped-def]
    return page.locator(f'{VIEW} [data-part="{name}"]')


def open_circuit(visit, query: str = "?tab=circuit") -> Page:  # type: ignore[no-untyped-def]
    visit.page.goto(visit.address + "/" + query)
    visit.page.wait_for_selector(f'{VIEW} [data-part="graph-plot"] .main-svg')
    return visit.page


def trace(page: Page, figure: str, name: str) -> dict:
    """What a figure's trace holds."""
    return page.evaluate(
        """([figure, name]) => {
        const area = document.querySelector(`#circuit-view [data-part="${figure}-plot"]`);
        const found = area.data.find((trace) => trace.name === name);
        return {x: [...(found.x ?? [])], data: found.customdata ?? []}; }""",
        [figure, name],
    )


def click_state(page: Page, latent: int, state: int) -> None:
    """Clicks a product of the graph with the mouse."""
    place = page.evaluate(
        """([latent, state]) => {
        const area = document.querySelector('#circuit-view [data-part="graph-plot"]');
        for (const trace of area.data) {
          const at = (trace.customdata ?? []).findIndex(
            (chosen) => chosen?.[0] === latent && chosen?.[1] === state);
          if (at < 0 || !['products', 'clamped', 'lit products'].includes(trace.name)) continue;
          const layout = area._fullLayout;
          const box = area.getBoundingClientRect();
          area.scrollIntoView({block: 'center'});
          const now = area.getBoundingClientRect();
          return [now.left + layout.xaxis.l2p(trace.x[at]) + layout.xaxis._offset,
                  now.top + layout.yaxis.l2p(trace.y[at]) + layout.yaxis._offset];
        }
        return null; }""",
        [latent, state],
    )
    assert place, f"state {state} of latent {latent} is not drawn"
    page.mouse.move(*place)
    page.mouse.click(*place)


def drawn_state(page: Page) -> tuple[int, int]:
    """A latent and a state that the graph draws: the first of the products."""
    latent, state = next(one for one in trace(page, "graph", "products")["data"] if one)
    return latent, state


def wait_for_said(page: Page, words: str) -> None:
    expect(part(page, "caption")).to_contain_text(words, timeout=SOON_MS)


def test_first_view_is_a_recorded_circuit(visit) -> None:
    page = open_circuit(visit)
    expect(part(page, "label")).to_have_text("recorded view")
    assert len(trace(page, "graph", "sums")["x"]) > 3
    assert page.locator(f"{VIEW} .ds-sample").count() == 40
    for name in ("marginals", "verdicts", "latents", "information"):
        assert page.locator(f'{VIEW} [data-part="{name}-plot"] .main-svg').count() > 0
    expect(part(page, "count-joint")).to_contain_text("unknown word: ")
    expect(part(page, "count-joint")).to_contain_text("below the 1st percentile: ")
    expect(part(page, "compared")).to_contain_text("nats")


def test_a_state_is_held_and_let_go_by_clicks(visit) -> None:
    page = open_circuit(visit)
    before = trace(page, "marginals", "now")["x"]
    latent, state = drawn_state(page)
    click_state(page, latent, state)
    wait_for_said(page, f"Latent {latent + 1} is held in state {state + 1}")
    assert trace(page, "graph", "clamped")["data"] == [[latent, state]]
    held = trace(page, "marginals", "now")["x"]
    assert held != before
    assert trace(page, "marginals", "before")["x"]
    expect(part(page, "latent")).to_have_value(str(latent))
    expect(part(page, "state")).to_have_value(str(state))
    click_state(page, latent, state)
    wait_for_said(page, "Nothing is held")
    assert trace(page, "marginals", "now")["x"] == before


def click_bar(page: Page, position: int) -> str:
    """Clicks the first token of a position in the marginals; returns the token."""
    place = page.evaluate(
        """(position) => {
        const area = document.querySelector('#circuit-view [data-part="marginals-plot"]');
        const bars = area.data.find((trace) => trace.name === 'now');
        const at = bars.customdata.findIndex((facts) => facts[3] === position);
        area.scrollIntoView({block: 'center'});
        const { xaxis, yaxis } = area._fullLayout;
        const box = area.getBoundingClientRect();
        return [box.left + xaxis._offset + xaxis.l2p(bars.base[at]) + 3,
                box.top + yaxis._offset + yaxis.l2p(bars.y[at]), bars.customdata[at][0]]; }""",
        position,
    )
    page.mouse.move(place[0], place[1])
    page.mouse.click(place[0], place[1])
    return place[2]


def test_tokens_are_taken_one_after_another_by_clicks(visit) -> None:
    page = open_circuit(visit)
    click_bar(page, 2)  # not before the first
    expect(page.locator("#ds-tip")).to_have_text(
        "Tokens are taken in order: the next free position is +1."
    )
    page.wait_for_timeout(600)  # two clicks in a row are a double click
    token = click_bar(page, 1)
    wait_for_said(page, "Given that the window begins with")
    taken = part(page, "taken").locator("button")
    expect(taken).to_have_text([token])
    page.wait_for_timeout(600)
    second = click_bar(page, 2)
    expect(taken).to_have_text([token, second])
    wait_for_said(page, "2 of its 8 tokens")
    part(page, "given").press_sequentially("xy")
    wait_for_said(page, f"{token} {second} x y, 4 of its 8 tokens")
    page.wait_for_timeout(600)
    third = click_bar(page, 5)  # what was typed is taken with it
    expect(taken).to_have_text([token, second, "x", "y", third])
    expect(part(page, "given")).to_have_value("")
    part(page, "given").press("Backspace")
    wait_for_said(page, "4 of its 8 tokens")
    taken.nth(1).click()
    expect(taken).to_have_text([token])
    wait_for_said(page, "1 of its 8 tokens")


def test_a_line_break_in_the_window_stays(visit) -> None:
    page = open_circuit(visit, "?tab=circuit&view=btree-8&given=d%0A")
    wait_for_said(page, "begins with d ↵, 2 of its 8 tokens")
    taken = part(page, "taken").locator("button")
    expect(taken).to_have_text(["d", "↵"])
    part(page, "given").press_sequentially("t")
    wait_for_said(page, "begins with d ↵ t, 3 of its 8 tokens")
    address = page.url
    assert "given=t" in address and "taken=" in address
    page.goto("about:blank")
    page.goto(address)
    wait_for_said(page, "begins with d ↵ t, 3 of its 8 tokens")
    expect(taken).to_have_text(["d", "↵"])


def test_a_cell_of_the_map_tells_its_pair(visit) -> None:
    page = open_circuit(visit)
    place = page.evaluate(
        """() => {
        const area = document.querySelector('#circuit-view [data-part="information-plot"]');
        area.scrollIntoView({block: 'center'});
        const { xaxis, yaxis } = area._fullLayout;
        const box = area.getBoundingClientRect();
        return [box.left + xaxis._offset + xaxis.l2p(3), box.top + yaxis._offset + yaxis.l2p(2)];
        }"""
    )
    page.mouse.move(*place)
    page.mouse.click(*place)
    expect(part(page, "pair")).to_contain_text("+3 and +4 share", timeout=SOON_MS)
    assert part(page, "pair").locator("tbody tr").count() == 5
    assert trace(page, "information", "chosen")["x"] == ["+4", "+3"]
    assert "pair=3.4" in page.url
    before = part(page, "pair").inner_text()
    part(page, "given").fill("x")
    expect(part(page, "informed")).to_contain_text("Given the window's beginning")
    expect(part(page, "pair")).not_to_have_text(before)
    part(page, "clear").click()
    expect(part(page, "pair")).to_be_hidden()


def test_a_decoders_sign_leads_to_its_row(visit) -> None:
    page = open_circuit(visit)
    found = page.evaluate(
        """() => {
        const area = document.querySelector('#circuit-view [data-part="acceptance-plot"]');
        area.scrollIntoView({block: 'center'});
        const { xaxis, yaxis } = area._fullLayout;
        const box = area.getBoundingClientRect();
        const one = area.data.find((trace) => trace.name === 'ar');
        return [box.left + xaxis._offset + xaxis.l2p(one.x[0]),
                box.top + yaxis._offset + yaxis.l2p(one.y[0])]; }"""
    )
    page.mouse.move(*found)
    page.mouse.click(*found)
    row = page.locator(f'{VIEW} [data-part="acceptance-table"] tr.ds-row-chosen')
    expect(row).to_have_count(1)
    expect(row.locator("td").first).to_have_text("ar")


def test_terms_are_told_on_focus(visit) -> None:
    page = open_circuit(visit)
    for name, words in (("log_q", "circuit's probability"), ("percall", "verifier's forwards")):
        page.locator(f'{VIEW} [data-term="circuit.{name}"] .ds-term').focus()
        expect(page.locator("#ds-tip")).to_contain_text(words)


def test_a_shown_view_fills_the_fields_that_make_it_again(visit) -> None:
    page = open_circuit(visit, "?tab=circuit&view=smollm2-btree-8")
    expect(part(page, "title")).to_contain_text("on smollm2")
    expect(page.locator("#circuit-rank input")).to_have_value("8")
    open_settings(page)
    expect(page.locator("#model input")).to_have_value("smollm2")
    page.locator("#circuit-recorded input").click()
    page.get_by_role("option", name="HMM").first.click()
    expect(part(page, "title")).to_contain_text("on byte")
    expect(page.locator("#model input")).to_have_value("byte")
    expect(page.locator("#circuit-rank input")).to_have_value("16")


def test_a_saved_view_opens_without_a_model(visit, tmp_path: Path) -> None:
    page = open_circuit(visit, "?tab=circuit&view=cp-8")
    title = part(page, "title").inner_text()
    with page.expect_download() as saved:
        part(page, "save").click()
    file = tmp_path / "view.json"
    plain = {**json.loads(Path(saved.value.path()).read_text()), "seed": 7, "lora": 1}
    file.write_text(json.dumps(plain))
    other = visit.again()
    other.goto(visit.address + "/?tab=circuit")
    other.wait_for_selector(f'{VIEW} [data-part="graph-plot"] .main-svg')
    expect(other.locator("#status")).to_contain_text("recorded view")
    with other.expect_file_chooser() as chooser:
        other.locator("#circuit-open").click()
    chooser.value.set_files(file)
    expect(other.locator("#status")).to_contain_text("A saved view is shown: CP, one mixture")
    expect(part(other, "label")).to_have_text("opened from a file")
    expect(part(other, "title")).to_have_text(title.replace(", on ", ", K = 1 adapted layers, on "))
    expect(other.get_by_label("CP, one mixture")).to_be_checked()
    expect(other.locator("#circuit-lora input")).to_have_value("1")
    open_settings(other)
    expect(other.locator("#seed input")).to_have_value("7")
    other.locator(f'{VIEW} .ds-sample[data-kind="joint"]').nth(2).click()
    wait_for_said(other, "The lit tree drew")
    file.write_text(json.dumps({**plain, "window": 3}))
    with other.expect_file_chooser() as chooser:
        other.locator("#circuit-open").click()
    chooser.value.set_files(file)
    expect(other.locator("#status")).to_contain_text("is not a circuit view, or it is broken")


def test_a_clicked_sample_lights_its_tree(visit) -> None:
    page = open_circuit(visit)
    assert trace(page, "graph", "lit")["x"] == []
    sample = page.locator(f'{VIEW} .ds-sample[data-kind="joint"]').nth(3)
    sample.click()
    wait_for_said(page, "The lit tree drew")
    expect(sample).to_have_attribute("aria-pressed", "true")
    assert sum(x is None for x in trace(page, "graph", "lit inputs")["x"]) == 8
    assert len(trace(page, "latents", "drawn")["x"]) == 7
    expect(part(page, "posterior")).to_have_text("Given every token of the chosen sample.")
    sample.click()
    wait_for_said(page, "Nothing is held")
    expect(sample).to_have_attribute("aria-pressed", "false")
    assert trace(page, "graph", "lit")["x"] == []
    page.locator(f'{VIEW} .ds-sample[data-kind="independent"]').nth(0).click()
    wait_for_said(page, "no tree drew it")


def test_new_samples_are_drawn(visit) -> None:
    page = open_circuit(visit)
    part(page, "draw").click()
    wait_for_said(page, "The lit tree drew")
    first = part(page, "caption").inner_text()
    part(page, "draw").click()
    expect(part(page, "caption")).not_to_have_text(first)
    part(page, "clear").click()
    wait_for_said(page, "Nothing is held")
    expect(part(page, "clear")).to_be_disabled()


def test_a_typed_window_moves_the_latents(visit) -> None:
    page = open_circuit(visit)
    part(page, "given").fill("the ")
    wait_for_said(page, "begins with t h e ␣")
    rows = trace(page, "marginals", "now")
    assert [row[:2] for row in rows["data"][:1]] == [["t", "1"]]
    expect(part(page, "posterior")).to_contain_text("Given the window's beginning")
    assert "given=the" in page.url


def test_states_are_held_by_keys(visit) -> None:
    page = open_circuit(visit)
    part(page, "graph-frame").focus()
    page.keyboard.press("ArrowDown")
    wait_for_said(page, "Latent 1 is held in state 1")
    page.keyboard.press("ArrowRight")
    wait_for_said(page, "Latent 2 is held in state 1")
    page.keyboard.press("ArrowDown")
    wait_for_said(page, "Latent 2 is held in state 2")
    page.keyboard.press("Escape")
    wait_for_said(page, "Nothing is held")


def test_tables_and_files_hold_what_the_pictures_show(visit) -> None:
    page = open_circuit(visit)
    part(page, "latents-data").click()
    cells = page.evaluate(
        """() => { const map = document.querySelector('#circuit-view [data-part="latents-plot"]');
        return map.data[0].z.length * map.data[0].z[0].length; }"""
    )
    assert page.locator(f'{VIEW} [data-part="latents-table"] tbody tr').count() == cells
    part(page, "verdicts-data").click()
    assert page.locator(f'{VIEW} [data-part="verdicts-table"] tbody tr').count() == 40
    with page.expect_download() as saved:
        part(page, "graph-json").click()
    assert json.loads(Path(saved.value.path()).read_text())["data"]
    with page.expect_download() as picture:
        part(page, "graph-png").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as whole:
        part(page, "save").click()
    assert json.loads(Path(whole.value.path()).read_text())["version"] == 1


def test_every_recorded_view_can_be_chosen(visit) -> None:
    page = open_circuit(visit, "?tab=circuit&view=ff-8")
    wait_for_said(page, "FF has no latents")
    expect(part(page, "clamp-box")).to_be_hidden()
    highest = page.evaluate(
        """() => {
        const map = document.querySelector('#circuit-view [data-part="information-plot"]');
        return Math.max(...map.data[0].z.flat().filter((cell) => cell !== null)); }"""
    )
    assert highest == 0
    page.locator("#circuit-recorded input").click()
    page.get_by_role("option", name="HMM").first.click()
    expect(part(page, "title")).to_contain_text("HMM")
    wait_for_said(page, "Nothing is held")


def test_a_link_asks_the_same_again(visit) -> None:
    page = open_circuit(visit, "?tab=circuit&view=hmm-8&clamp=2.3&sample=joint.5")
    wait_for_said(page, "Latent 2 is held in state 3")
    wait_for_said(page, "The lit tree drew")
    said = part(page, "caption").inner_text()
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(part(page, "caption")).to_have_text(said, timeout=SOON_MS)
    chosen = page.locator(f'{VIEW} .ds-sample[aria-pressed="true"]')
    expect(chosen).to_have_attribute("data-index", "4")


def test_questions_that_make_no_sense_get_a_sentence(visit) -> None:
    page = open_circuit(visit, "?tab=circuit&view=cp-8&clamp=9.1")
    expect(part(page, "fault")).to_contain_text("there is no latent 8", timeout=SOON_MS)
    page.locator("#circuit-window input").fill("-3")
    page.locator("#circuit-prompt textarea").fill("Hello")
    page.locator("#circuit-start").click()
    expect(page.locator("#status")).to_contain_text("it can be from 0 to 1024")
    page.locator("#circuit-prompt textarea").fill("   ")
    page.locator("#circuit-window input").fill("8")
    page.locator("#circuit-start").click()
    expect(page.locator("#status")).to_contain_text("The prompt is empty", timeout=SLOW_MS)
    expect(page.locator("#circuit-start")).to_be_enabled()


def test_a_phone_scrolls_the_frame_not_the_page(visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 800})
    page = open_circuit(visit, "?tab=circuit&view=btree-8")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    wide, room = page.evaluate(
        """() => { const frame = document.querySelector('#circuit-view [data-part="graph-frame"]');
        return [frame.scrollWidth, frame.clientWidth]; }"""
    )
    assert wide > room


def test_an_own_context_makes_its_own_circuit(visit) -> None:
    page = open_circuit(visit, "?tab=circuit&model=byte")
    page.locator("#circuit-prompt textarea").fill("Say <b>hi</b>.")
    page.locator("#circuit-answer textarea").fill("Hi th")
    page.get_by_label("CP, one mixture").check()
    page.locator("#circuit-start").click()
    expect(part(page, "label")).to_have_text("your view", timeout=SLOW_MS)
    expect(part(page, "title")).to_contain_text("CP, one mixture")
    expect(part(page, "context")).to_contain_text("Say <b>hi</b>.<|end|><|assistant|>Hi th")
    assert page.locator(f"{VIEW} .ds-sample").count() == 40
    page.wait_for_url("**circuit=cp**")
    assert parse_qs(urlparse(page.url).query)["answer"] == ["Hi th"]
    first = page.locator(f"{VIEW} .ds-sample-text").all_inner_texts()
    page.goto(page.url)
    expect(part(page, "label")).to_have_text("your view", timeout=SLOW_MS)
    assert page.locator(f"{VIEW} .ds-sample-text").all_inner_texts() == first


def test_k_is_chosen_and_stays_in_the_link(visit) -> None:
    page = open_circuit(visit, "?" + urlencode({**OWN, "circuit": "btree", "lora": "2"}))
    expect(part(page, "label")).to_have_text("your view", timeout=SLOW_MS)
    expect(part(page, "title")).to_contain_text("K = 2 adapted layers")
    expect(page.locator("#circuit-lora input")).to_have_value("2")
    page.locator(f"{VIEW} .ds-sample").first.click()
    page.wait_for_url("**lora=2**")


def test_a_circuit_that_is_not_there_gets_a_sentence(visit) -> None:
    page = open_circuit(visit, "?" + urlencode({**OWN, "window": "9"}))
    expect(page.locator("#status")).to_contain_text("no circuit head cp-9", timeout=SLOW_MS)
    expect(page.locator("#status")).to_contain_text("there are:")
