"""Page Decode as a person uses it: first view, stepping, a live run, the check, files, links."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import open_settings
from viz import panel

pytestmark = pytest.mark.browser
PROMPT = "Say these words again, in order: red fox, blue whale, red fox, blue whale."
LIVE = {
    "model": "smollm2",
    "prompt": PROMPT,
    "new": "24",
    "drafter": "pld",
    "seed": "3",
    "temperature": "0",
}
LONG = {  # writes for long enough to be looked at on the way
    "prompt": "Write a very long story about a lighthouse keeper, the sea and the town.",
    "new": "2000",
    "model": "smollm2",
    "drafter": "ar",
    "seed": "3",
    "temperature": "0.7",
}
SLOW_MS = 300_000  # a live run may fetch and load the model first


def part(page: Page, name: str, player: str = "#decode-player"):  # type: ignore[no-untyped-def]
    return page.locator(f'{player} [data-part="{name}"]')


def caption(page: Page) -> str:
    return part(page, "caption").inner_text()


def tree_data(page: Page) -> list[dict]:
    return page.evaluate(
        """() => document.querySelector('#decode-player [data-part="tree-plot"]').data
        .map((trace) => ({name: trace.name, x: [...trace.x], ids: trace.customdata}))"""
    )


def open_file(page: Page, path: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("#open").click()
    chooser.value.set_files(path)


def choose_model(page: Page, name: str) -> None:
    page.locator("#model input").fill(name)
    page.locator("#model input").press("Enter")
    page.locator("#model input").press("Tab")


def wait_for_run(page: Page) -> None:
    page.wait_for_function(
        """() => ['your run', 'stopped'].includes(
        document.querySelector('#decode-player [data-part="label"]').textContent)""",
        timeout=SLOW_MS,
    )


def test_first_view_is_a_recorded_run(visit) -> None:
    page = visit.open()
    expect(part(page, "label")).to_have_text("recorded run")
    traces = {trace["name"]: trace for trace in tree_data(page) if trace["name"]}
    assert len(traces["root"]["x"]) == 1
    assert len(traces["accepted"]["x"]) > 0
    assert float(part(page, "count-tokens_per_call").inner_text()) > 1
    bars = page.evaluate(
        """() => document.querySelector('#decode-player [data-part="timeline-plot"]').data
        .map((trace) => [...trace.y])"""
    )
    steps = int(re.search(r"of (\d+)", part(page, "step").inner_text())[1])
    assert len(bars[0]) == len(bars[1]) == steps
    assert all(own <= 1 for own in bars[1])


@pytest.mark.parametrize("query", ["", "?tab=decode&__theme=dark"])
def test_the_fields_are_those_of_the_run_that_is_shown(visit, query: str) -> None:
    page = visit.open(query)
    expect(part(page, "title")).to_contain_text("mtpc-btree on byte")
    page.wait_for_timeout(1000)  # what the address asks for has been answered
    expect(page.locator("#drafter input")).to_have_value(re.compile("^mtpc-btree"))


def test_what_is_typed_before_the_address_is_answered_stays(visit) -> None:
    page, held, late = visit.page, [], [True]
    page.route("**/queue/join*", lambda one: held.append(one) if late[0] else one.continue_())
    page.goto(f"{visit.address}/?recorded=smollm2&__theme=light")
    page.locator("#prompt textarea").fill("Typed early.")
    page.wait_for_timeout(500)  # for the events of the page's start to be held as well
    late[0] = False
    for one in held:
        one.continue_()
    assert held
    expect(page.locator("#drafter input")).to_have_value(re.compile("^esp"))
    expect(page.locator("#recorded input")).to_have_value(re.compile("smollm2"))
    expect(page.locator("#prompt textarea")).to_have_value("Typed early.")


def test_steps_by_mouse_and_keys(visit) -> None:
    page = visit.open()
    part(page, "first").click()
    expect(part(page, "step")).to_contain_text("step 1 of")
    expect(part(page, "moment-drafted")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("ArrowRight")
    expect(part(page, "moment-verified")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(part(page, "step")).to_contain_text("step 2 of")
    page.keyboard.press("ArrowLeft")
    expect(part(page, "step")).to_contain_text("step 1 of")
    page.keyboard.press(" ")
    expect(part(page, "step")).not_to_contain_text("step 1 of")
    page.keyboard.press(" ")
    part(page, "last").click()
    tokens = int(part(page, "count-tokens").inner_text())
    page.locator('#decode-player [data-part="timeline-plot"] .nsewdrag').click(
        position={"x": 60, "y": 40}
    )
    expect(part(page, "count-tokens")).not_to_have_text(str(tokens))


def test_tokens_of_later_steps_stay_hidden(visit) -> None:
    page = visit.open()
    part(page, "first").click()
    assert page.locator("#decode-player .ds-chip[data-step]:visible").count() == 0
    part(page, "moment-committed").click()
    shown = page.locator("#decode-player .ds-chip[data-step]:visible")
    assert {chip.get_attribute("data-step") for chip in shown.all()} == {"0"}


def test_node_details_say_why(visit) -> None:
    page = visit.open()
    page.evaluate(
        """() => { const area = document.querySelector('#decode-player [data-part="tree-plot"]');
        const accepted = area.data.find((trace) => trace.name === 'accepted');
        area.emit('plotly_click', {points: [{customdata: accepted.customdata[0]}]}); }"""
    )
    words = part(page, "node").inner_text()
    assert "It stood: u fell into its interval" in words
    u = float(re.search(r"noise u\s+([\d.]+)", words)[1])
    low, high = map(float, re.search(r"([\d.]+) – ([\d.]+)", words).groups())
    assert low <= u < high


def click_first(page: Page, name: str) -> None:
    """Clicks the first node of a kind in the tree."""
    page.evaluate(
        """(name) => {
        const area = document.querySelector('#decode-player [data-part="tree-plot"]');
        const found = area.data.find((trace) => trace.name === name);
        area.emit('plotly_click', {points: [{customdata: found.customdata[0]}]}); }""",
        name,
    )


def test_a_node_tells_which_latent_proposed_it(visit) -> None:
    page = visit.open()
    expect(part(page, "title")).to_contain_text("mtpc-btree")
    click_first(page, "accepted")
    words = part(page, "node").inner_text()
    assert re.search(r"component\s+state \d+ of 16 of latent \d+, [\d.]+% of q", words)


def test_noise_rows_and_the_branch_of_the_drafts_are_told(visit) -> None:
    page = visit.open()
    open_file(page, panel.ASSETS / "traces" / "o-ptp.json")
    expect(part(page, "title")).to_contain_text("o-ptp")
    part(page, "scrub").fill("1")
    click_first(page, "accepted")
    expect(part(page, "node")).to_contain_text(re.compile(r"behind \d accepted drafts"))
    expect(part(page, "node")).to_contain_text(re.compile(r"byte-o-ptp-t0.7, [0-9a-f]{12}…"))
    click_first(page, "root")
    expect(part(page, "node")).to_contain_text(re.compile(r"behind \d drafts?\d rows, chance"))


def test_what_each_branch_proposed_is_told_once_the_forward_is_over(visit, tmp_path: Path) -> None:
    path = panel.ASSETS / "traces" / "o-ptp.json"
    steps = json.loads(path.read_text())["steps"]
    many = range(len(steps) - 1)
    chosen = next(n for n in many if sum(map(bool, steps[n]["insight"]["proposed"])) > 2)
    insight, goes_on = steps[chosen]["insight"], steps[chosen + 1]["insight"]["from"]
    page = visit.open()
    open_file(page, path)
    expect(part(page, "title")).to_contain_text("o-ptp")
    part(page, "scrub").fill(str(chosen))
    part(page, "moment-drafted").click()
    click_first(page, "root")
    node = part(page, "node")
    expect(node.locator("dd")).to_have_count(sum(rows > 0 for _, rows, _ in insight["branches"]))
    expect(node.locator("dd .ds-chip")).to_have_count(0)  # the forward is not over
    part(page, "moment-verified").click()
    lines = node.locator("dd")
    told = [one for one in insight["proposed"] if one is not None]
    expect(lines).to_have_count(len(told))
    for line, one in zip(lines.all(), told, strict=True):
        chips = line.locator(".ds-chip").all_inner_texts()
        shown = [words.replace(" ", "␣") for words in (one["own"]["text"], *one["texts"])]
        assert chips == shown
    kept = node.locator("dd:has(strong)")
    expect(kept).to_have_count(1)
    expect(kept).to_contain_text("the next step drafts these")
    words = insight["proposed"][goes_on]["texts"]
    assert kept.locator(".ds-unreached").all_inner_texts() == [w.replace(" ", "␣") for w in words]
    part(page, "last").click()  # no step goes on from the last one
    click_first(page, "root")
    expect(node.locator("strong")).to_have_count(0)

    older = json.loads(path.read_text())  # from before proposals and weights were recorded
    older["run"].pop("drafter_weights")
    older["run"]["prompt"] = "An older run."
    for step in older["steps"]:
        (step["insight"] or {}).pop("proposed", None)
    (tmp_path / "older.json").write_text(json.dumps(older))
    open_file(page, tmp_path / "older.json")
    expect(part(page, "title")).to_contain_text("An older run.")
    part(page, "scrub").fill(str(chosen))
    click_first(page, "root")
    expect(node.locator("dd:has(strong)")).to_have_count(1)
    expect(node.locator("dd .ds-chip")).to_have_count(0)


def test_clicking_a_node_in_the_picture(visit) -> None:
    page = visit.open()
    node = page.locator('#decode-player [data-part="tree-plot"] .trace .points path').first
    box = node.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(part(page, "node")).to_contain_text("The root: the newest token")


def test_a_depth_that_is_clicked_is_gone_to(visit) -> None:
    page = visit.open()
    page.wait_for_selector('#decode-player [data-part="depth-plot"] .main-svg')
    part(page, "first").click()
    page.evaluate(
        """() => document.querySelector('#decode-player [data-part="depth-plot"]')
        .emit('plotly_click', {points: [{x: 2}]})"""
    )
    expect(part(page, "moment-committed")).to_have_attribute("aria-pressed", "true")
    now = page.locator("#decode-player .ds-chip.ds-now.ds-accepted")
    assert now.count() >= 2


def test_tables_hold_what_the_pictures_show(visit) -> None:
    page = visit.open()
    drawn = sum(
        len(trace["ids"] or [])
        for trace in tree_data(page)
        if trace["name"] in ("accepted", "rejected", "unreached")
    )
    part(page, "tree-data").click()
    assert page.locator('#decode-player [data-part="tree-table"] tbody tr').count() == drawn
    with page.expect_download() as saved:
        part(page, "tree-json").click()
    assert json.loads(Path(saved.value.path()).read_text())["data"]
    part(page, "tree-data").click()
    with page.expect_download() as picture:
        part(page, "tree-png").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")


def test_recorded_trace_saved_and_opened(visit, tmp_path: Path) -> None:
    page = visit.open()
    with page.expect_download() as saved:
        part(page, "save").click()
    path = tmp_path / "run.json"
    saved.value.save_as(path)
    trace = json.loads(path.read_text())
    assert trace["version"] == 1 and trace["steps"]
    text = part(page, "text")
    part(page, "last").click()
    written = text.inner_text()
    open_file(page, path)
    expect(part(page, "label")).to_have_text("opened from a file")
    part(page, "last").click()
    assert text.inner_text() == written


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("not json", "not JSON"),
        ("{}", "not a trace"),
        ('{"version": 99, "steps": []}', "version 99"),
        ('{"version": 1, "steps": []}', "broken"),
    ],
)
def test_bad_files_get_a_sentence(visit, tmp_path: Path, content: str, sentence: str) -> None:
    page = visit.open()
    path = tmp_path / "bad.json"
    path.write_text(content)
    open_file(page, path)
    expect(page.locator("#status")).to_contain_text(sentence)
    expect(part(page, "label")).to_have_text("recorded run")
    page.locator("#status [data-dismiss]").click()
    expect(page.locator("#status .ds-failed")).to_have_count(0)


@pytest.mark.parametrize(
    ("prompt", "sentence"),
    [("", "The prompt is empty"), ("é🦊 שלום " * 25_000, "200,000 characters; at most")],
)
def test_prompts_that_cannot_be_run_get_a_sentence(visit, prompt: str, sentence: str) -> None:
    page = visit.open()
    page.locator("#prompt textarea").fill(prompt)
    page.locator("#run").click()
    expect(page.locator("#status")).to_contain_text(sentence, timeout=SLOW_MS)
    expect(part(page, "label")).to_have_text("recorded run")


def test_an_unknown_model_gets_a_sentence(visit) -> None:
    page = visit.open()
    open_settings(page)
    choose_model(page, "<b>nosuch</b>")
    page.locator("#run").click()
    expect(page.locator("#status")).to_contain_text("There is no model", timeout=SLOW_MS)
    assert page.locator("#status b").count() == 0


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("temperature", "-1", "The temperature is -1"),
        ("top_p", "0", "Top-p is 0"),
        ("top_k", "-5", "Top-k is -5"),
        ("max_new_tokens", "0", "New tokens is 0"),
        ("seed", "", "Seed is empty or not a number"),
    ],
)
def test_numbers_outside_what_is_allowed_get_a_sentence(
    visit, field: str, value: str, sentence: str
) -> None:
    page = visit.open()
    open_settings(page)
    page.locator(f"#{field} input").fill(value)
    page.locator("#run").click()
    expect(page.locator("#status")).to_contain_text(sentence, timeout=SLOW_MS)
    expect(part(page, "label")).to_have_text("recorded run")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("drafter=zzz", "There is no drafter"),
        ("temperature=-1", "The link says temperature=-1"),
    ],
)
def test_a_link_that_makes_no_sense_says_so_and_stays(visit, wrong: str, sentence: str) -> None:
    page = visit.open(f"?prompt=hello&{wrong}")
    expect(page.locator("#status")).to_contain_text(sentence)
    assert wrong in page.url
    expect(part(page, "label")).to_have_text("recorded run")


@pytest.mark.smollm2
def test_live_run_check_link_and_file(visit, browser: Browser, tmp_path: Path) -> None:
    page = visit.open("?recorded=smollm2")  # whose fields say model and drafter
    hostile = PROMPT + " <b>bold</b> <script>window.broken = 1</script>"
    page.locator("#prompt textarea").fill(hostile)
    open_settings(page)
    assert page.locator("#model input").input_value() == "smollm2"
    page.locator("#max_new_tokens input").fill("24")
    page.locator("#run").click()
    expect(page.locator("#stop")).to_be_enabled(timeout=SLOW_MS)
    wait_for_run(page)
    assert page.evaluate("window.broken") is None
    assert page.locator("#decode-player .ds-text b, #decode-player .ds-text script").count() == 0
    part(page, "last").click()
    written = part(page, "text").inner_text()
    assert int(part(page, "count-tokens").inner_text()) <= 24
    assert "drafter=esp" in page.url and "step=" in page.url
    link = page.url

    page.locator("#check").click()
    expect(page.locator("#findings")).to_contain_text("In float64, too", timeout=SLOW_MS)
    expect(page.locator("#findings")).to_contain_text("all equal")

    other = browser.new_page()
    other.goto(link)
    other.wait_for_selector("#decode-player .ds-tree-frame .main-svg", timeout=SLOW_MS)
    wait_for_run(other)
    part(other, "last").click()
    assert part(other, "text").inner_text() == written
    expect(other.locator("#prompt textarea")).to_have_value(hostile)
    with page.expect_download() as saved:
        part(page, "save").click()
    saved.value.save_as(tmp_path / "run.json")
    open_file(other, tmp_path / "run.json")
    expect(part(other, "label")).to_have_text("opened from a file")
    part(other, "last").click()
    assert part(other, "text").inner_text() == written
    other.close()


@pytest.mark.smollm2
def test_stop_ends_within_a_step_and_keeps_what_was_decoded(visit) -> None:
    page = visit.open("?" + urlencode(LONG))
    page.wait_for_function(
        """() => document.querySelector('#decode-player [data-part="label"]').textContent
        === 'decoding now'""",
        timeout=SLOW_MS,
    )
    page.locator("#stop").click()
    expect(page.locator("#status")).to_contain_text("Stopped after", timeout=SLOW_MS)
    wait_for_run(page)
    expect(page.locator("#run")).to_be_enabled()


@pytest.mark.smollm2
def test_a_phone_is_taken_to_what_the_run_writes(visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 800})
    page = visit.open()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#run").click()
    expect(page.locator("#status")).to_contain_text("Done", timeout=SLOW_MS)
    expect(part(page, "text")).to_be_in_viewport()


def test_two_browsers_keep_their_own_runs_and_a_closed_tab_frees_the_model(
    visit, browser: Browser
) -> None:
    first = browser.new_page()
    first.goto(visit.address + "/?" + urlencode(LONG))
    first.wait_for_function(
        """() => document.querySelector('#decode-player [data-part="label"]')?.textContent
        === 'decoding now'""",
        timeout=SLOW_MS,
    )
    page = visit.page
    page.goto(visit.address + "/?" + urlencode({**LIVE, "new": "8"}))
    expect(page.locator("#status")).to_contain_text("Waiting: 1 before you", timeout=SLOW_MS)
    first.close()
    begun = time.monotonic()
    wait_for_run(page)
    assert time.monotonic() - begun < 240  # 2,000 tokens would take far longer
    assert int(part(page, "count-tokens").inner_text()) <= 8


def test_the_address_names_the_tab(visit) -> None:
    page = visit.open("?tab=race")
    expect(page.locator("#race-start")).to_be_visible()
    page.get_by_role("tab", name="Decode").click()
    expect(page.locator("#run")).to_be_visible()
    page.wait_for_function("() => location.search.includes('tab=decode')")
