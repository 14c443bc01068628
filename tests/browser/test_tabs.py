"""Every page builds when its tab is opened from another page, and the address remembers it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser
PAGES = {
    "Race": ("race", '#race-view [data-part="speed-plot"] .main-svg'),
    "Noise": ("noise", '#noise-view [data-part="strips-plot"] .main-svg'),
    "Circuit": ("circuit", '#circuit-view [data-part="graph-plot"] .main-svg'),
}


@pytest.mark.parametrize("tab", PAGES)
def test_a_tab_opened_later_is_whole(visit, tab: str) -> None:  # type: ignore[no-untyped-def]
    page: Page = visit.open()
    page.wait_for_function("document.querySelector('#status').innerText.length > 0")
    page.wait_for_timeout(1500)  # all that a fresh page asks for has been answered
    page.get_by_role("tab", name=tab).click()
    name, wanted = PAGES[tab]
    expect(page.locator(wanted).first).to_be_attached()
    page.wait_for_url(f"**tab={name}**")
    page.get_by_role("tab", name="Decode").click()
    page.wait_for_url("**tab=decode**")


@pytest.mark.parametrize("tab", ["race", "noise", "circuit"])
def test_an_address_opens_its_tab(visit, tab: str) -> None:  # type: ignore[no-untyped-def]
    page: Page = visit.page
    page.goto(f"{visit.address}/?tab={tab}")
    wanted = next(found for name, found in PAGES.values() if name == tab)
    expect(page.locator(wanted).first).to_be_visible()
    assert f"tab={tab}" in page.url
