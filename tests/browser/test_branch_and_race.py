"""A rejected branch followed, a union's origins shown, a race to its finish."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import open_settings
from tests.browser.test_decode_page import LIVE, PROMPT, SLOW_MS, choose_model, part, wait_for_run

pytestmark = [pytest.mark.browser, pytest.mark.smollm2]
BRANCH = "#branch-player"


def choose(page: Page, wanted: str) -> dict:
    """Chooses the run's first node for which a JavaScript condition on (step, node) holds."""
    return page.evaluate(
        """(wanted) => {
        const holds = new Function('step', 'node', `return ${wanted}`);
        const find = (name) => document.querySelector(`#decode-player [data-part="${name}"]`);
        const answer = {};
        find('first').click();
        const steps = Number(find('scrub').max) + 1;
        for (let step = 0; step < steps; step += 1) {
          find('scrub').value = step;
          find('scrub').dispatchEvent(new Event('input'));
          const area = find('tree-plot');
          for (const trace of area.data) {
            for (const [place, node] of (trace.customdata ?? []).entries()) {
              const it = {status: trace.name, hover: trace.hovertext[place], node};
              if (holds(step, it)) {
                area.emit('plotly_click', {points: [{customdata: node}]});
                return {step, ...it};
              }
            }
          }
        }
        return answer; }""",
        wanted,
    )


def test_a_rejected_branch_is_followed_beside_the_run(visit) -> None:
    page = visit.open("?" + urlencode({**LIVE, "temperature": "0.7", "new": "32"}))
    wait_for_run(page)
    chosen = choose(page, "node.status === 'rejected'")
    assert chosen["status"] == "rejected"
    expect(page.locator(BRANCH)).to_be_hidden()
    node = chosen["step"]
    part(page, "last").click()
    main = part(page, "text").inner_text()
    assert choose(page, "node.status === 'rejected'")["step"] == node
    page.get_by_role("button", name="follow this branch").click()
    expect(part(page, "label", BRANCH)).to_have_text("your run", timeout=SLOW_MS)
    token = html.unescape(re.search(r"<b>(.*?)</b>", chosen["hover"])[1])
    expect(part(page, "title", BRANCH)).to_contain_text(token)
    forced = page.locator(f"{BRANCH} .ds-forced")
    assert forced.text_content().endswith(token.replace("␣", " ").replace("↵", "\n"))
    part(page, "last", BRANCH).click()
    assert int(part(page, "count-tokens", BRANCH).inner_text()) > 0
    part(page, "last").click()
    assert part(page, "text").inner_text() == main  # the run itself is untouched


def test_a_unions_nodes_say_who_drafted_them(visit) -> None:
    page = visit.open("?" + urlencode({**LIVE, "drafter": "esp+stand", "new": "48"}))
    wait_for_run(page)
    alone = choose(page, "/from esp$/.test(node.hover)")
    assert alone["hover"].endswith("from esp")
    expect(part(page, "node")).to_contain_text(re.compile(r"drafted by\s*esp"))
    both = choose(page, "/from (stand and esp|esp and stand)/.test(node.hover)")
    assert both
    expect(part(page, "node")).to_contain_text(re.compile(r"(esp, stand|stand, esp)"))


def test_a_race_of_three_to_its_finish(visit, tmp_path: Path) -> None:
    page = visit.open("?tab=race")
    label = part(page, "label", "#race-view")
    expect(label).to_have_text("recorded race")  # before any model is here
    expect(page.locator("#race-view .ds-lane-done")).to_have_count(4)
    open_settings(page)
    choose_model(page, "smollm2")
    page.locator("#max_new_tokens input").fill("12")
    page.locator("#temperature input").fill("0")
    page.locator("#race-prompt textarea").fill(PROMPT)
    page.locator("#race-repeats input").fill("1")
    page.locator("#race-decoders .token", has_text="esp+stand").locator(".token-remove").click()
    page.locator("#race-start").click()
    expect(label).to_have_text("", timeout=SLOW_MS)
    lanes = page.locator("#race-view .ds-lane")
    expect(lanes).to_have_count(3)
    expect(page.locator("#race-view .ds-lane-done")).to_have_count(3, timeout=SLOW_MS)
    expect(part(page, "caption", "#race-view")).to_contain_text("All have finished")
    texts = [lane.locator(".ds-lane-text").inner_text() for lane in lanes.all()]
    assert texts[0] and len(set(texts)) == 1  # greedy: generate writes the same
    said = part(page, "said", "#race-view").inner_text()
    assert "plain decoding, wrote" in said and "A call brought" in said
    assert page.locator('#race-view [data-part="speed-plot"] .main-svg').count() > 0
    place = lanes.nth(0).locator("[data-lane=place]").inner_text()
    assert re.search(r"\d\. by speed, done after [\d.]+ s", place)
    page.evaluate(
        """() => document.querySelector('#race-view [data-part="speed-plot"]')
        .emit('plotly_click', {points: [{y: 'stand'}]})"""
    )
    expect(page.locator("#race-view .ds-lane-chosen")).to_have_attribute("data-decoder", "stand")
    part(page, "speed-data", "#race-view").click()
    rows = page.locator('#race-view [data-part="speed-table"] tbody tr')
    expect(rows).to_have_count(3)
    assert "racers=hf%2Car%2Cstand" in page.url
    with page.expect_download() as saved:
        part(page, "save", "#race-view").click()
    saved.value.save_as(tmp_path / "race.json")

    other = visit.again()
    other.goto(page.url)  # the link measures the same race
    expect(other.locator("#race-view .ds-lane")).to_have_count(3, timeout=SLOW_MS)
    expect(other.locator("#race-view .ds-lane-done")).to_have_count(3, timeout=SLOW_MS)
    again = other.locator("#race-view .ds-lane-text").nth(1).inner_text()
    assert again == texts[1]
    expect(other.locator("#race-prompt textarea")).to_have_value(PROMPT)
    with other.expect_file_chooser() as chooser:
        other.locator("#race-open").click()
    chooser.value.set_files(tmp_path / "race.json")
    expect(other.locator("#status")).to_contain_text("A saved race is replayed")
    expect(part(other, "label", "#race-view")).to_have_text("opened from a file")
    expect(part(other, "again", "#race-view")).to_have_attribute("href", re.compile("racers=hf"))


def test_the_trees_nodes_are_reached_by_keys(visit) -> None:
    page = visit.open()
    part(page, "first").click()
    part(page, "moment-verified").click()
    part(page, "tree-frame").focus()
    page.keyboard.press("ArrowDown")
    expect(part(page, "node")).to_contain_text("The root: the newest token")
    page.keyboard.press("ArrowDown")
    expect(part(page, "node")).not_to_contain_text("The root: the newest token")
    rings = page.evaluate(
        """() => document.querySelector('#decode-player [data-part="tree-plot"]').layout.shapes
        .length"""
    )
    assert rings == 1
