"""The classic ISR experiment (`make demo-isr`): which events come, in which order and state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from demo.isr_stage import follower_in, stage
from demo.isr_story import ALONE_COUNT, CONFIG, ENOUGH, Event, Story
from tests.system.quorum.hosts import why_not

REASON = why_not()

#: What happens, and who is in sync right then (None: any broker).
EXPECTED: list[tuple[str, set[int] | None]] = [
    ("created", {1, 2, 3}),
    ("writing", {1, 2, 3}),
    ("cut", {1, 2, 3}),
    ("stalled", {1, 2, 3}),
    ("shrunk", {1, 2}),
    ("goes-on", {1, 2}),
    ("mended", None),
    ("rejoined", {1, 2, 3}),
    ("balance", {1, 2, 3}),
    ("two-out", {1}),
    ("too-few", {1}),
    ("no-leader", set()),
    ("waited", {1, 2, 3}),
    ("two-out", {1}),
    ("too-few", {1}),
    ("no-leader-again", set()),
    ("allowed", None),
    ("unclean", None),
    ("cut-back", {1, 2, 3}),
    ("told", {1, 2, 3}),
]


RELAY_TOO = REASON != "" or "MOLDAU_ISR_BOTH_WAYS" in os.environ
RELAY_REASON = "done with network namespaces; MOLDAU_ISR_BOTH_WAYS=1 does it both ways"


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "relayed",
    [
        pytest.param(True, marks=pytest.mark.skipif(not RELAY_TOO, reason=RELAY_REASON)),
        pytest.param(False, marks=pytest.mark.skipif(REASON != "", reason=REASON)),
    ],
    ids=["relay", "namespaces"],
)
def test_events_come_in_order_and_states_follow(tmp_path: Path, relayed: bool):
    events: list[Event] = []
    with stage(tmp_path, CONFIG, relayed=relayed) as running:
        Story(running, events.append).tell()
    assert [event.name for event in events] == [name for name, _ in EXPECTED]
    for event, (name, members) in zip(events, EXPECTED, strict=True):
        assert members is None or set(event.isr) == members, f"{name}: {event}"
    first = {event.name: event for event in reversed(events)}
    last = {event.name: event for event in events}

    stalled = first["stalled"].facts
    assert stalled["waiting"] >= ENOUGH, "acks=all waits for the follower that is cut off"
    assert stalled["unaffected"] > 0, "acks=0 does not notice"
    assert stalled["going_on"] >= ENOUGH, "acks=1 goes on"
    assert "out of sync: 3 (" in first["shrunk"].text, "the cause names who has fallen behind"
    assert "1,2,3 instead of 1,2 " in first["rejoined"].text
    assert first["balance"].facts == {"refused": 0, "missing": 0}

    for event in (first["too-few"], last["too-few"]):
        assert event.facts["refused"] == 1, event.text
        assert event.facts["read"] > 0, "consumers read on"
        assert event.facts["visible"] == 0, "nothing is seen that only one replica has"
    assert first["waited"].facts["alone"] == ALONE_COUNT, "who waits for the leader loses nothing"

    lost = last["too-few"].facts
    assert str(lost["first"]) in first["unclean"].text, "the new leader tells where its log ends"
    assert str(lost["first"]) in first["cut-back"].text, "the old one tells what it gave up"
    assert first["told"].facts["lost"] == ALONE_COUNT


def test_a_relay_distinguishes_followers_by_their_client_id():
    client_id = b"broker-3-fetcher-0"
    head = (20).to_bytes(4, "big") + bytes(4) + bytes(4) + len(client_id).to_bytes(2, "big")
    assert follower_in(head + client_id) == 3
    for other in (b"", head + b"console-1-producer"[: len(client_id)]):
        with pytest.raises(ValueError, match=r"no request|console"):
            follower_in(other)
