"""What people do on the page happens in the cluster: topics, records, configs, offsets of groups."""

from __future__ import annotations

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from moldau.testing import Cluster
from tests.console.conftest import GROUP, TOPIC, OpenPage
from tests.kit.waiting import until


def admin(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap_server})


def test_topic_is_created_and_deleted_with_the_command_beside_it(
    open_page: OpenPage, shown: Cluster
):
    page = open_page("topics")
    page.click("text=Create topic")
    page.fill("dialog >> label:text-is('Name') + input", "made.here")
    page.fill("dialog >> label:text-is('Partitions') + input", "3")
    assert page.inner_text("dialog .command code") == (
        "moldau topics create made.here --partitions 3"
    )
    page.click("dialog >> button[type=submit]")
    page.wait_for_selector("h1:text-is('made.here')")
    found = admin(shown).list_topics("made.here", timeout=30).topics["made.here"]
    assert len(found.partitions) == 3

    page.click("summary:has-text('Change')")
    page.click("text=Delete the topic…")
    assert page.is_disabled("dialog >> button[type=submit]")
    page.fill("dialog >> label:has-text('Type') input", "made.here")
    page.click("dialog >> button[type=submit]")
    page.wait_for_selector("h1:text-is('Topics')")
    until(
        lambda: "made.here" not in admin(shown).list_topics(timeout=30).topics,
        what="the end of the topic",
    )


def test_refusal_stays_in_the_dialog_with_the_name_of_the_error(open_page: OpenPage):
    page = open_page("topics")
    page.click("text=Create topic")
    page.fill("dialog >> label:text-is('Name') + input", TOPIC)
    page.click("dialog >> button[type=submit]")
    page.wait_for_selector("dialog .problem")
    assert "TOPIC_ALREADY_EXISTS" in page.inner_text("dialog .problem")


def test_config_is_set_and_reset(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/configs")
    page.click("[aria-label='Change retention.ms']")
    page.fill("dialog input", "3600000")
    page.click("dialog >> button[type=submit]")
    row = page.locator("tr", has_text="retention.ms").filter(has_text="3600000")
    row.wait_for()
    assert "1 h" in row.inner_text()
    page.click("[aria-label='Change retention.ms']")
    page.click("text=Reset to the default")
    page.click("dialog >> button[type=submit]")
    row.wait_for(state="detached")


def test_record_is_produced_and_read_back_through_a_filter(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/messages?produce=1")
    page.fill("dialog >> label:text-is('Key') + input", "by-hand")
    page.click("dialog .cm-content")
    page.keyboard.press("Control+A")
    page.keyboard.type('{"made": "by hand"}')
    page.click("dialog >> button[type=submit]")
    page.wait_for_selector(".toast >> text=Written to partition")
    page.click(".query-where .cm-content")
    page.keyboard.type('value.made == "by hand"')
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelectorAll('main tbody tr').length === 1")
    assert "by-hand" in page.inner_text("main tbody")


def test_filter_that_is_not_understood_says_where(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/messages?where=length(value)")
    page.wait_for_selector("main .problem")
    assert "^" in page.inner_text("main .problem")


def test_live_tail_shows_what_comes(open_page: OpenPage, shown: Cluster):
    page = open_page(f"topics/{TOPIC}/messages?live=1")
    page.wait_for_selector(".live-bar >> text=Live")
    producer = Producer({"bootstrap.servers": shown.bootstrap_server})
    producer.produce(TOPIC, key="late", value="comes while one looks on")
    assert producer.flush(30) == 0
    page.wait_for_selector("main tbody >> text=comes while one looks on")


def test_columns_of_json_stand_beside_each_other(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/messages?from=earliest")
    page.click("summary:has-text('Columns')")
    page.click("label:has-text('user.name')")
    page.wait_for_selector("th:text-is('user.name')")
    assert "<img src=x onerror=alert(1)>" in page.inner_text("main tbody")


def test_offsets_are_reset_after_a_dry_run(open_page: OpenPage, shown: Cluster):
    page = open_page(f"groups/{GROUP}")
    page.click("button:has-text('Reset offsets')")
    page.wait_for_selector("dialog .plan tbody tr")
    assert "moldau groups" in page.inner_text("dialog .command code")
    page.click("dialog >> button[type=submit]")
    page.wait_for_selector(".toast >> text=have been reset")
    page.wait_for_function(
        "[...document.querySelectorAll('main tbody tr')].every(row => row.cells[2].innerText === '0')"
    )
