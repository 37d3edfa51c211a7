"""What the page asks for when people change something, and what it says when that fails."""

from __future__ import annotations

import json

from tests.console import answers
from tests.console.answers import GROUP, TOPIC
from tests.console.conftest import Api, OpenPage

OWN = f"/api/v1/clusters/{answers.CLUSTER}"
V3 = f"/v3/clusters/{answers.CLUSTER}"
DO = "dialog >> button[type=submit]"


def field(label: str) -> str:
    return f"dialog >> label:text-is('{label}') + input"


def test_topic_is_created_as_the_command_beside_it_says(open_page: OpenPage, api: Api):
    page = open_page("topics")
    page.click("text=Create topic")
    assert page.is_disabled(DO)
    page.fill(field("Name"), TOPIC)
    page.fill(field("Partitions"), "3")
    page.fill("dialog textarea", "retention.ms=1000\ncleanup.policy=compact")
    assert page.inner_text("dialog .command code") == (
        f"moldau topics create {TOPIC} --partitions 3"
        " --config retention.ms=1000 --config cleanup.policy=compact"
    )
    page.click(DO)
    page.wait_for_selector(f"h1:text-is('{TOPIC}')")
    [asked] = api.changes
    assert (asked.method, asked.path, asked.token) == ("POST", f"{V3}/topics", "a-token")
    assert asked.body == {
        "topic_name": TOPIC,
        "partitions_count": 3,
        "configs": [
            {"name": "retention.ms", "value": "1000"},
            {"name": "cleanup.policy", "value": "compact"},
        ],
    }


def test_bad_fields_are_refused_with_what_is_allowed(open_page: OpenPage, api: Api):
    page = open_page("topics")
    page.click("text=Create topic")
    page.fill(field("Name"), "no spaces")
    page.fill(field("Replication factor"), "9")
    page.wait_for_selector("dialog .wrong >> text=At most 3")
    wrong = page.locator("dialog .wrong").all_inner_texts()
    assert wrong == [
        "1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'.",
        "At most 3: so many brokers serve.",
    ]
    assert page.is_disabled(DO)
    assert api.changes == []


def test_refusal_stays_in_the_dialog_with_the_name_of_the_error(open_page: OpenPage, api: Api):
    api.problems["POST", "/topics"] = (409, "TOPIC_ALREADY_EXISTS", "The topic exists.")
    page = open_page("topics")
    page.click("text=Create topic")
    page.fill(field("Name"), TOPIC)
    page.click(DO)
    page.wait_for_selector("dialog .problem code:text-is('TOPIC_ALREADY_EXISTS')")
    assert "The topic exists." in page.inner_text("dialog .problem")
    assert page.input_value(field("Name")) == TOPIC


def test_topic_is_deleted_once_its_name_is_typed(open_page: OpenPage, api: Api):
    page = open_page(f"topics/{TOPIC}")
    page.click("summary:has-text('Change')")
    page.click("text=Delete the topic…")
    assert page.is_disabled(DO)
    page.fill("dialog >> label:has-text('Type') >> input", TOPIC)
    page.click(DO)
    page.wait_for_selector("h1:text-is('Topics')")
    [asked] = api.changes
    assert (asked.method, asked.path) == ("DELETE", f"{V3}/topics/{TOPIC}")


def test_config_is_reset_as_the_command_says(open_page: OpenPage, api: Api):
    page = open_page(f"topics/{TOPIC}/configs")
    page.click("[aria-label='Change retention.ms']")
    page.click("text=Reset to the default")
    assert page.inner_text("dialog .command code") == (
        f"moldau configs alter topics {TOPIC} --delete retention.ms"
    )
    page.click(DO)
    page.wait_for_selector("dialog", state="detached")
    [asked] = api.changes
    assert asked.path == f"{V3}/topics/{TOPIC}/configs:alter"
    assert asked.body == {"data": [{"name": "retention.ms", "operation": "DELETE"}]}


def test_record_is_produced_with_the_digits_that_were_typed(open_page: OpenPage, api: Api):
    page = open_page(f"topics/{TOPIC}/messages?produce=1")
    page.fill(field("Key"), "it's")
    page.click("dialog .cm-content")
    page.keyboard.press("Control+A")
    page.keyboard.type('{"large": 12345678901234567890, "text": "a b"}')
    page.click(DO)
    page.wait_for_selector(".toast >> text=at offset 20")
    [asked] = api.changes
    assert asked.path == f"{OWN}/topics/{TOPIC}/messages/produce"
    assert asked.body == {
        "key": {"encoding": "utf-8", "text": "it's"},
        "value": {
            "encoding": "utf-8",
            "text": '{"large":12345678901234567890,"text":"a b"}',
        },
        "headers": [],
    }


def test_filter_goes_to_the_server_and_into_the_address(open_page: OpenPage, api: Api):
    page = open_page(f"topics/{TOPIC}/messages")
    page.click(".query-where .cm-content")
    page.keyboard.type("value.number == 1")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=value.number+%3D%3D+1")
    page.wait_for_selector("main tbody .cell-link")
    assert "where=value.number+%3D%3D+1" in api.queries[f"topics/{TOPIC}/messages"]
    page.click("text=As a command")
    assert page.inner_text("dialog .command code") == (
        f"moldau consume {TOPIC} --offset -50 --where 'value.number == 1' -n 50 --until-end --json"
    )


def test_undo_takes_back_what_was_typed(open_page: OpenPage):
    page = open_page(f"topics/{TOPIC}/messages?where=offset+%3E+1")
    editor = page.locator(".query-where .cm-content")
    editor.click()
    page.keyboard.press("End")
    page.keyboard.type("00")
    assert editor.inner_text() == "offset > 100"
    page.keyboard.press("Control+z")
    assert editor.inner_text() == "offset > 1"
    page.keyboard.press("Control+y")
    assert editor.inner_text() == "offset > 100"


def test_filter_that_is_not_understood_says_where(open_page: OpenPage, api: Api):
    detail = "functions do not exist\n  length(value)\n  ^"
    api.problems["GET", "/messages"] = (422, None, detail)
    page = open_page(f"topics/{TOPIC}/messages?where=length(value)")
    page.wait_for_selector("main .problem")
    assert "  ^" in page.text_content("main .problem .problem-detail")
    assert page.locator(".editor.invalid").count() == 1


def test_live_tail_shows_what_comes_and_goes_on_where_it_was(open_page: OpenPage, api: Api):
    shown = answers.record(41, answers.text("comes while one looks on"))
    progress = {"read": answers.READ, "dropped": 12, "rate_s": 1}
    api.events = (
        f"event: record\nid: at-41\ndata: {json.dumps(shown)}\n\n"
        f"event: progress\ndata: {json.dumps(progress)}\n\n"
    )
    page = open_page(f"topics/{TOPIC}/messages")
    with page.expect_request(lambda asked: "last-event-id" in asked.headers) as again:
        page.click("button:has-text('Live')")
        page.wait_for_selector("main tbody >> text=comes while one looks on")
    assert again.value.headers["last-event-id"] == "at-41"
    assert "12 left out" in page.inner_text(".live-numbers")


def test_offsets_are_reset_after_a_dry_run(open_page: OpenPage, api: Api):
    page = open_page(f"groups/{GROUP}")
    page.click("button:has-text('Reset offsets')")
    page.wait_for_selector("dialog .plan tbody tr")
    assert "13 records are read again" in page.inner_text("dialog .says")
    assert page.inner_text("dialog .command code") == f"moldau groups seek {GROUP} --to start"
    page.click(DO)
    page.wait_for_selector(".toast >> text=have been reset")
    assert [asked.body["dry_run"] for asked in api.changes] == [True, False]
    assert api.changes[1].body["topics"] == [{"topic": TOPIC, "partitions": None}]


def test_offsets_of_a_group_with_members_are_not_reset(open_page: OpenPage, api: Api):
    member = {
        "member_id": "m",
        "instance_id": None,
        "client_id": "c",
        "client_host": "h",
        "rack_id": None,
        "member_epoch": 1,
        "subscribed_topics": [TOPIC],
        "assignment": [],
        "target": [],
    }
    api.own[f"groups/{GROUP}"] = {**answers.GROUP_WHOLE, "members": [member]}
    page = open_page(f"groups/{GROUP}")
    page.click("button:has-text('Reset offsets')")
    page.wait_for_selector("dialog .plan tbody tr")
    assert "Stop the consumers first" in page.inner_text("dialog .says")
    assert page.is_disabled(DO)


def test_who_is_logged_out_logs_in_and_out_again(open_page: OpenPage, api: Api):
    api.session = dict(answers.LOGGED_OUT)
    page = open_page("topics")
    assert page.inner_text("h1") == "Log in to the cluster"
    page.fill("label:text-is('User') + input", "alice")
    page.fill("label:text-is('Password') + input", "secret")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:text-is('Topics')")
    assert api.changes[0].body == {"username": "alice", "password": "secret"}
    page.click("[aria-label='Log out']")
    page.wait_for_selector("h1:text-is('Log in to the cluster')")


def test_wrong_password_is_said_in_its_place(open_page: OpenPage, api: Api):
    api.session = dict(answers.LOGGED_OUT)
    api.problems["POST", "/session"] = (401, "SASL_AUTHENTICATION_FAILED", "Refused.")
    page = open_page()
    page.fill("label:text-is('User') + input", "alice")
    page.fill("label:text-is('Password') + input", "wrong")
    page.keyboard.press("Enter")
    page.wait_for_selector(".problem >> text=SASL_AUTHENTICATION_FAILED")
    assert page.input_value("label:text-is('Password') + input") == ""


def test_read_only_console_offers_no_changes(open_page: OpenPage, api: Api):
    api.session["read_only"] = True
    page = open_page(f"topics/{TOPIC}")
    page.wait_for_selector("main tbody tr")
    assert page.locator(".heading-actions").count() == 0


def test_death_of_a_broker_is_a_banner_while_the_view_goes_on(open_page: OpenPage, api: Api):
    page = open_page("topics")
    page.wait_for_selector(f"main >> text={TOPIC}")
    api.own["overview"] = answers.overview(3)
    page.wait_for_selector(".banner >> text=Broker 3 does not answer")
    assert page.is_visible(f"main >> text={TOPIC}")
    api.own["overview"] = answers.overview()
    page.wait_for_selector(".banner", state="detached")


def test_death_of_the_serving_node_keeps_what_was_known(open_page: OpenPage, api: Api):
    other = {"broker_id": 2, "url": "http://other.test:8080/console/"}
    api.own["overview"] = {**answers.overview(), "consoles": [other]}
    page = open_page("topics")
    page.wait_for_selector(f"main >> text={TOPIC}")
    api.is_dead = True
    page.wait_for_selector(".banner >> text=does not answer")
    assert page.get_attribute(".banner a", "href") == "http://other.test:8080/console/topics"
    assert page.is_visible(f"main >> text={TOPIC}")
    api.is_dead = False
    page.wait_for_selector(".banner", state="detached")
