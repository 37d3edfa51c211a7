"""A real browser, and a real cluster whose nodes serve the console.

Owns: what both are, and what every page is watched for: errors of its scripts, breaches of its
Content-Security-Policy, requests to other hosts. A missing browser skips visibly.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from confluent_kafka import Consumer, Producer

from moldau.testing import Cluster
from tests.kit.waiting import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SIZES = {"wide": (1440, 900), "narrow": (390, 844)}
CONSOLE = {"moldau.console.enable": "true"}
TIMEOUT_MS = 20_000
TOPIC, HOSTILE, GROUP = "orders.v1", "hostile", "billing"

OpenPage = Callable[..., "Page"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, driven by Playwright."""
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("chromium is not installed: the page is not looked at")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


def console_of(cluster: Cluster, node_id: int = 1) -> str:
    """Where a node serves the console."""
    announced = until(
        lambda: re.search(r"HTTP listener on (\S+)", cluster.node(node_id).log_path.read_text()),
        what="the HTTP listener",
    )
    assert isinstance(announced, re.Match)
    return f"http://{announced.group(1)}/console/"


@pytest.fixture(scope="session")
def shown() -> Iterator[Cluster]:
    """One node with two topics and a group of each protocol."""
    with Cluster(config=CONSOLE) as cluster:
        fill(cluster)
        yield cluster


@pytest.fixture(scope="session")
def console(shown: Cluster) -> str:
    return console_of(shown)


def fill(cluster: Cluster) -> None:
    """What the tests look at: HTML and control characters in every field that takes them."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap_server})
    for number in range(40):
        producer.produce(
            TOPIC,
            key=f"o-{number}",
            value=f'{{"number": {number}, "user": {{"name": "<img src=x onerror=alert(1)>"}}}}',
            headers=[("trace", b"<b>t</b>")],
        )
    producer.produce(HOSTILE, key=b"\x00\x07\xff", value="\u202e<script>alert(2)</script>\x07")
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_server,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])
    try:
        until(lambda: consumer.poll(1.0), what="a record for the group")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@pytest.fixture
def open_page(browser: Browser, console: str) -> Iterator[OpenPage]:
    """Opens the page at a path below /console/; at the end it must have behaved."""
    contexts = []
    wrong: list[str] = []

    def opened(path: str = "", size: str = "wide", base: str = console) -> Page:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(TIMEOUT_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"a dialog: {dialog.message}"))
        page.on(
            "console",
            lambda said: (
                wrong.append(said.text) if "Content Security Policy" in said.text else None
            ),
        )
        host = base.split("/")[2]
        page.on(
            "request",
            lambda asked: (
                None
                if asked.url.startswith(("data:", "blob:", f"http://{host}/"))
                else wrong.append(f"a request to {asked.url}")
            ),
        )
        page.goto(base + path)
        page.wait_for_selector("h1")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
