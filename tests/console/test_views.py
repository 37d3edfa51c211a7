"""Every view in a real browser: it opens by its address, wide and narrow, light and dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.console.answers import GROUP, HOSTILE_GROUP, HTML, TOPIC
from tests.console.conftest import SIZES, OpenPage
from tests.tidy.sources import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Page

VIEWS = {
    "": "Overview",
    "topics": "Topics",
    f"topics/{TOPIC}": TOPIC,
    f"topics/{TOPIC}/messages": TOPIC,
    f"topics/{TOPIC}/messages?grep=a": TOPIC,
    f"topics/{TOPIC}/configs": TOPIC,
    f"topics/{TOPIC}/groups": TOPIC,
    f"topics/{TOPIC}/producers": TOPIC,
    "groups": "Groups",
    "groups?type=share": "Groups",
    f"groups/{GROUP}": GROUP,
    f"groups/{GROUP}/members": GROUP,
    "transactions": "Transactions",
    "quorum": "Quorum",
    "quorum/log": "Quorum",
    "brokers": "Brokers",
    "brokers/1": "Broker 1",
    "brokers/1/configs": "Broker 1",
    "brokers/1/loggers": "Broker 1",
    "security/acls": "Security",
    "security/explain?principal=User:a&resource=b": "Security",
    "security/users": "Security",
    "security/quotas": "Security",
    "schemas": "Schemas",
    "schemas/orders-value": "orders-value",
}
"""What the heading of each says."""

AXE = ROOT / "console" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def settle(page: Page) -> None:
    """Waits until nothing of the view is on its way. Not by a function that is asked again: that
    would be an `eval`, which the page's policy forbids.
    """
    for busy in ("main .bone", "main[aria-busy]"):
        page.wait_for_selector(busy, state="detached")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("path", VIEWS)
def test_view_opens_by_its_address_and_fits_the_screen(open_page: OpenPage, path: str, size: str):
    page = open_page(path, size)
    assert page.inner_text("h1") == VIEWS[path]
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("main .problem").all_inner_texts() == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", VIEWS)
def test_view_has_no_violation_that_axe_finds(open_page: OpenPage, path: str, scheme: str):
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: make setup-all")
    page = open_page(path, scheme=scheme)
    settle(page)
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate(
        "rules => axe.run(document, {runOnly: rules}).then(({violations}) =>"
        " violations.flatMap(({id, nodes}) => nodes.map(({html}) => `${id}: ${html}`)))",
        RULES,
    )
    assert found == []


def test_text_of_the_cluster_is_shown_as_text(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/messages")
    page.click("[aria-label='Open offset 4 of partition 0']")
    text = page.inner_text(".panel .text-view")
    assert text == "⟨U+202E⟩<script>alert(2)</script>␇"
    page.click(".panel >> text=Headers 1")
    assert HTML in page.inner_text(".panel")
    assert page.evaluate("document.querySelectorAll('main script, main img').length") == 0


def test_control_characters_of_names_are_seen(open_page: OpenPage):
    page = open_page("groups")
    page.wait_for_selector("main tbody a")
    shown = page.locator("main tbody a.strong").all_inner_texts()
    assert shown == [GROUP, HOSTILE_GROUP.replace("\x07", "␇")]


def test_keys_go_to_views_and_search(open_page: OpenPage):
    page = open_page()
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("h1:text-is('Topics')")
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.wait_for_url(re.compile("q=orders"))
    page.keyboard.press("Tab")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    assert page.inner_text("h1") == "Topics"


def test_first_tab_skips_to_the_content(open_page: OpenPage):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_arrow_keys_go_from_record_to_record(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/messages?from=earliest")
    page.click("[aria-label='Open offset 0 of partition 0']")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".panel h2:has-text('Offset 1')")
    assert "tombstone" in page.inner_text(".panel")
    page.keyboard.press("Escape")
    page.wait_for_selector(".panel", state="detached")


def test_theme_and_favourites_outlive_the_page(open_page: OpenPage):
    page = open_page("topics")
    page.click(f"[aria-label='Favourite: {TOPIC}']")
    page.click("[aria-label='Theme: as the system']")
    page.click("[aria-label='Theme: light']")
    page.reload()
    page.wait_for_selector(f"[aria-label='Favourite: {TOPIC}'][aria-pressed=true]")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_editor_and_charts_are_loaded_only_where_they_are_used(open_page: OpenPage):
    page = open_page("brokers")
    settle(page)
    loaded = "performance.getEntriesByType('resource').map(({name}) => name).join()"
    assert not re.search("codemirror|uplot", page.evaluate(loaded))
    page.click("nav >> text=Topics")
    page.click(f"main tbody >> text={TOPIC}")
    page.click("a.tab >> text=Messages")
    page.wait_for_selector("[data-editor] .cm-content")
    assert "codemirror" in page.evaluate(loaded)
    assert "uplot" not in page.evaluate(loaded)


def test_narrow_page_has_its_navigation_behind_a_button(open_page: OpenPage):
    page = open_page("topics", "narrow")
    assert not page.is_visible("nav[aria-label=Views]")
    page.click("[aria-label='Open the navigation']")
    page.click("nav[aria-label=Views] >> text=Groups")
    page.wait_for_selector("h1:text-is('Groups')")
    page.wait_for_selector("nav[aria-label=Views]", state="hidden")


def test_columns_of_json_stand_beside_each_other(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/messages")
    page.click("summary:has-text('Columns')")
    page.click("label:has-text('user.name')")
    page.wait_for_selector("th:text-is('user.name')")
    assert HTML in page.inner_text("main tbody")
