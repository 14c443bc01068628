"""A running app and Chromium for the browser tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
# What Gradio's script says of answers that it no longer waits for, because its page was left.
BROKEN_OFF = ("AbortError", "aborted", "Connection errored out")
START_SECONDS = 120.0
WAIT_MS = 60_000  # a shared machine can be slow; what is waited for is a state, never a time
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of the app, served by its own process as a person starts it."""
    process = subprocess.Popen(
        [sys.executable, "-u", "app.py"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    found: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            match = re.search(r"http://[\d.]+:\d+", line)
            if match:
                found.append(match[0])
                ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    try:
        assert ready.wait(START_SECONDS) and found, "the app did not start"
        yield found[0]
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium without a window."""
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield chromium
        chromium.close()


def open_settings(page: Page) -> None:
    """Opens the header's settings; their fields take their first values a moment after they show,
    and what is typed before that is lost.
    """
    page.get_by_text("Model and sampling").click()
    expect(page.locator("#seed input")).to_be_visible()
    page.wait_for_timeout(500)


class Visit:
    """A page at the app, and whatever went wrong in it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.faults: list[str] = []
        self.outside: list[str] = []
        self._listen(page)

    def _listen(self, page: Page) -> None:
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", self._failed)
        page.on("console", self._heard)
        page.on("request", lambda request: self._asked(request.url))

    def _failed(self, error: Error) -> None:
        if not any(words in str(error) for words in BROKEN_OFF):
            self.faults.append(str(error))

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not any(words in message.text for words in BROKEN_OFF):
            self.faults.append(message.text)

    def _asked(self, url: str) -> None:
        if not url.startswith((self.address, "data:", "blob:", "about:")):
            self.outside.append(url)

    def open(self, query: str = "") -> Page:
        """Goes to the app and waits for a drawn tree."""
        self.page.goto(self.address + "/" + query)
        self.page.wait_for_selector("#decode-player .ds-tree-frame .main-svg", state="attached")
        return self.page

    def again(self) -> Page:
        """Another page of the same person; what goes wrong in it counts as well."""
        page = self.page.context.new_page()
        self._listen(page)
        return page


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    """A fresh browser context; fails the test on script errors or requests to elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=address)
    here = Visit(context.new_page(), address)
    yield here
    faults = list(here.faults)  # closing breaks off what is still asked for
    context.close()
    assert not faults
    assert not here.outside
