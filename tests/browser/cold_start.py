"""Measures cold starts: `python -m tests.browser.cold_start` on a machine with nothing else to do.

Each start is a new process and a new browser page; the run button is pressed as soon as it can be.
Seconds since the process was started, medians over the starts, each start's own behind them.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time

from playwright.sync_api import Browser, sync_playwright

from tests.browser.conftest import ARGUMENTS, CHROMIUM, ROOT

PLAYER = "#decode-player"
MOMENTS = ("server answers", "first view drawn", "first own step", "64 tokens written")


def cold_start(browser: Browser) -> list[float]:
    """The moments' times of one start."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", "app.py"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        address = next(
            found[0] for line in process.stdout if (found := re.search(r"http://[\d.]+:\d+", line))
        )
        times = [time.monotonic() - began]
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.wait_for_selector(f"{PLAYER} .ds-tree-frame .main-svg")
        times.append(time.monotonic() - began)
        page.locator("#run").click()
        label = f"""document.querySelector('{PLAYER} [data-part="label"]').textContent"""
        for words in (["decoding now", "your run"], ["your run"]):
            page.wait_for_function(f"() => {words}.includes({label})", timeout=120_000)
            times.append(time.monotonic() - began)
        page.close()
        return times
    finally:
        process.terminate()
        process.wait(10)


def main() -> None:
    """Prints a line for each moment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=5)
    starts = parser.parse_args().starts
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        times = [cold_start(browser) for _ in range(starts)]
        browser.close()
    for moment, column in zip(MOMENTS, zip(*times, strict=True), strict=True):
        each = " ".join(f"{value:.1f}" for value in column)
        print(f"{moment}: {statistics.median(column):.1f} s ({each})")


if __name__ == "__main__":
    main()
