"""A broker dies while each view is open: the page says so and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.testing import Cluster
from tests.console.conftest import CONSOLE, TOPIC, OpenPage, console_of, fill

VIEWS = (
    "",
    "topics",
    f"topics/{TOPIC}",
    f"topics/{TOPIC}/messages",
    "groups",
    "transactions",
    "quorum",
    "brokers",
    "security/acls",
)


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=CONSOLE) as cluster:
        fill(cluster)
        yield cluster


def test_death_of_another_broker_is_a_banner_over_every_view(three: Cluster, open_page: OpenPage):
    base = console_of(three)
    pages = [open_page(path, base=base) for path in VIEWS]
    three.kill(3)
    for page in pages:
        page.wait_for_selector(".banner >> text=Broker 3 does not answer")
        assert page.is_visible("h1")
    three.restart(3)
    for page in pages:
        page.wait_for_selector(".banner", state="detached")


def test_death_of_the_serving_node_keeps_what_was_known(three: Cluster, open_page: OpenPage):
    page = open_page("topics", base=console_of(three, 2))
    page.wait_for_selector(f"text={TOPIC}")
    three.kill(2)
    page.wait_for_selector(".banner >> text=does not answer")
    assert page.is_visible(f"text={TOPIC}")
    three.restart(2)
    page.wait_for_selector(".banner", state="detached")
