"""Measures the page: `python -m tests.browser.measure` on a machine with nothing else to do.

Cold starts: each is a new process and a new browser page, whose run button is pressed as soon as it
can be; seconds since the process was started. Sliders of page Noise: milliseconds from a slider's
move to the frame with the tokens that follow from it, behind the context that is shown first.
Medians, and what they are of.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.browser.conftest import ARGUMENTS, CHROMIUM, ROOT

DECODE, NOISE = "#decode-player", "#noise-view"
MOMENTS = ("server answers", "first view drawn", "first own step", "64 tokens written")
MOVE = """async ([place, u]) => {
    const slider = document.querySelectorAll('#noise-view .ds-slider')[place];
    const rows = document.querySelector('#noise-view [data-part="rows"]');
    const began = performance.now();
    const drawn = new Promise((done) => new MutationObserver((_, watcher) => {
        watcher.disconnect();
        requestAnimationFrame(() => setTimeout(() => done(performance.now() - began)));
    }).observe(rows, {childList: true}));
    slider.value = u;
    slider.dispatchEvent(new Event('input', {bubbles: true}));
    return await drawn;
}"""


@contextmanager
def app() -> Iterator[str]:
    """The address of an app in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-u", "app.py"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield next(
            found[0] for line in process.stdout if (found := re.search(r"http://[\d.]+:\d+", line))
        )
    finally:
        process.terminate()
        process.wait(10)


def opened(browser: Browser, address: str) -> Page:
    """A page of the app with its first view drawn."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    page.wait_for_selector(f"{DECODE} .ds-tree-frame .main-svg", state="attached")
    return page


def cold_start(browser: Browser) -> list[float]:
    """The moments' times of one start."""
    began = time.monotonic()
    with app() as address:
        times = [time.monotonic() - began]
        page = opened(browser, address)
        times.append(time.monotonic() - began)
        page.locator("#run").click()
        label = f"""document.querySelector('{DECODE} [data-part="label"]').textContent"""
        for words in (["decoding now", "your run"], ["your run"]):
            page.wait_for_function(f"() => {words}.includes({label})", timeout=120_000)
            times.append(time.monotonic() - began)
        page.close()
    return times


def moves(browser: Browser, count: int) -> list[float]:
    """Milliseconds of this many moves, of the first, fourth and last slider in turn."""
    with app() as address:
        page = opened(browser, f"{address}/?tab=noise")
        page.wait_for_selector(f"{NOISE} .ds-slider")
        last = page.locator(f"{NOISE} .ds-slider").count() - 1
        places = [(0, 3, last)[number % 3] for number in range(count + 3)]
        times = []
        for number, place in enumerate(places):
            times.append(page.evaluate(MOVE, [place, (number * 0.381966) % 1]))
            page.wait_for_timeout(1500)  # for the sweep that follows
        page.close()
    return times[3:]  # without those that load the model


def main() -> None:
    """Prints a line for each moment, and one for the sliders."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--moves", type=int, default=30)
    chosen = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        if chosen.starts:
            starts = [cold_start(browser) for _ in range(chosen.starts)]
            for moment, column in zip(MOMENTS, zip(*starts, strict=True), strict=True):
                each = " ".join(f"{value:.1f}" for value in column)
                print(f"{moment}: {statistics.median(column):.1f} s ({each})")
        if chosen.moves > 1:
            times = moves(browser, chosen.moves)
            low, middle, high = statistics.quantiles(times, n=4)
            print(
                f"a slider's move, drawn: {middle:.0f} ms "
                f"({low:.0f}-{high:.0f}, {len(times)} moves)"
            )
        browser.close()


if __name__ == "__main__":
    main()
