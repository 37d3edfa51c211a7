"""Lines about decisions and failed authentications: what they say, and how many there are."""

from __future__ import annotations

import io
import json
import logging
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.metadata.image.security import AccessControlEntry
from moldau.protocol.access_control import Operation, PatternType, PermissionType, ResourceType
from moldau.protocol.api_keys import ApiKey
from moldau.runtime.telemetry.brake import MAX_SENDERS_COUNTED
from moldau.runtime.telemetry.logs import MAX_LINES, JsonFormatter, configure_logging
from moldau.server.audit_log import (
    AUTHORIZER,
    INTERVAL_MS,
    MAX_SENDERS,
    AuthenticationLog,
    DecisionLog,
    SharesLog,
)
from moldau.server.authorizer import Authorizer
from moldau.server.memory_shares import MemoryShares, PeerKind, Share
from moldau.server.request import Sender
from moldau.server.standard_authorizer import StandardAuthorizer
from tests.kit.manual_clock import ManualClock

ALLOW = AccessControlEntry(
    ResourceType.TOPIC, "pay", PatternType.PREFIXED, "User:bob", "*", Operation.READ,
    PermissionType.ALLOW,
)  # fmt: skip
DENY = ALLOW._replace(operation=Operation.ALL, permission_type=PermissionType.DENY, host="10.0.0.9")
OWNER: Any = SimpleNamespace(listener_name="OUTSIDE")
UNPRINTABLE = "a\nb\x1b[31m\u202e\u2028\u0085\u200b\ud800 is Allowed operation = READ"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def authorizer(clock: ManualClock) -> StandardAuthorizer:
    made = StandardAuthorizer(("User:root",), allows_unmentioned=False, log=DecisionLog(clock, 20))
    made.change({uuid.uuid4(): each for each in (ALLOW, DENY)})
    return made


@pytest.fixture(params=["console", "json"])
def stream(request: pytest.FixtureRequest) -> Iterator[io.StringIO]:
    logger = logging.getLogger("moldau")
    before = logger.handlers[:], logger.level, logger.propagate
    written = io.StringIO()
    configure_logging(request.param, "INFO", stream=written)
    yield written
    logger.handlers[:], logger.level, logger.propagate = before


def sender(authorizer: Authorizer, principal: str = "User:bob", host: str = "10.0.0.1") -> Sender:
    return Sender(
        principal, authorizer, client_host=host, listener_name="OUTSIDE", api_key=ApiKey.FETCH
    )


def test_a_denied_action_is_one_line_at_info_with_all_that_decided(
    authorizer: StandardAuthorizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert not sender(authorizer).authorized_topic(Operation.WRITE, "payments")
        assert not sender(authorizer, host="10.0.0.9").authorized_topic(Operation.READ, "payments")
        assert sender(authorizer).authorized_topic(Operation.READ, "payments")
    assert [(each.name, each.levelname, each.getMessage()) for each in caplog.records] == [
        (
            "moldau.authorizer",
            "INFO",
            "Principal = User:bob is Denied operation = WRITE from host = 10.0.0.1 on resource = "
            "Topic:LITERAL:payments for request = Fetch on listener = OUTSIDE based on rule "
            "DefaultDeny",
        ),
        (
            "moldau.authorizer",
            "INFO",
            "Principal = User:bob is Denied operation = READ from host = 10.0.0.9 on resource = "
            "Topic:LITERAL:payments for request = Fetch on listener = OUTSIDE based on rule "
            "MatchingAcl(DENY ALL of User:bob from host 10.0.0.9 on Topic:PREFIXED:pay)",
        ),
    ]
    written = json.loads(JsonFormatter().format(caplog.records[1]))
    del written["timestamp"]
    assert written == {
        "level": "info",
        "logger": "moldau.authorizer",
        "event": "action denied",
        "principal": "User:bob",
        "allowed": False,
        "operation": "READ",
        "host": "10.0.0.9",
        "resource_type": "TOPIC",
        "pattern_type": "LITERAL",
        "resource_name": "payments",
        "request": "Fetch",
        "listener": "OUTSIDE",
        "rule": "MatchingAcl",
        "acl": {
            "permission": "DENY",
            "operation": "ALL",
            "principal": "User:bob",
            "host": "10.0.0.9",
            "resource_type": "TOPIC",
            "pattern_type": "PREFIXED",
            "resource_name": "pay",
        },
    }


def test_allowed_actions_are_lines_at_debug(
    authorizer: StandardAuthorizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert sender(authorizer).authorized_topic(Operation.DESCRIBE, "payments")
        assert sender(authorizer, "User:root").authorized_cluster(Operation.ALTER)
    assert [each.levelname for each in caplog.records] == ["DEBUG", "DEBUG"]
    implied, by_name = (each.getMessage() for each in caplog.records)
    assert "MatchingAcl(ALLOW READ of User:bob from host * on Topic:PREFIXED:pay)" in implied
    assert by_name.endswith("rule SuperUser")


def test_what_is_allowed_is_counted_as_well(
    authorizer: StandardAuthorizer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        for _ in range(3):
            assert sender(authorizer).authorized_topic(Operation.READ, "payments")
        assert authorizer.log is not None
        authorizer.log.close()
    assert len(caplog.records) == 2
    assert caplog.records[1].getMessage().endswith(": 2 more times within 10 s")
    assert clock.timer_count == 0


def test_what_refuses_nothing_is_not_logged(
    authorizer: StandardAuthorizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        asked = sender(authorizer, "User:nobody")
        assert not asked.authorized_cluster(Operation.CREATE, logs_denied=False)
        assert not asked.authorized_topic_operations("payments")
        assert not asked.authorized_by_resource_type(Operation.WRITE, ResourceType.TOPIC)
        assert sender(Authorizer()).authorized_cluster(Operation.ALTER)
    assert not caplog.records


@pytest.mark.parametrize(
    "principal",
    [f"User:{UNPRINTABLE}", 'User:"; a="b', "User:" + "x" * 9999],
    ids=["unprintable", "quotes", "long"],
)
def test_no_name_forges_a_line_or_a_part_of_one(
    authorizer: StandardAuthorizer,
    stream: io.StringIO,
    principal: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # pytest's own handlers keep lone surrogates for a report, which its workers cannot send.
    logger = logging.getLogger("moldau")
    [own] = (each for each in logger.handlers if getattr(each, "stream", None) is stream)
    monkeypatch.setattr(logger, "handlers", [own])
    sender(authorizer, principal).authorized_topic(Operation.READ, UNPRINTABLE)
    AuthenticationLog(ManualClock()).failed("OUTSIDE", "10.0.0.1", f"{principal!r} {UNPRINTABLE}")
    text = stream.getvalue()
    lines = text.split("\n")
    assert len(lines) == 3
    assert not lines[2]
    assert all(each.isprintable() and len(each) < 2_500 for each in lines)
    if lines[0].startswith("{"):
        fields = json.loads(lines[0])
        assert fields["principal"][:250] == principal[:250]
        assert fields["resource_name"] == UNPRINTABLE
        assert json.loads(lines[1])["reason"].startswith(repr(principal)[:250])
    else:
        told = json.JSONDecoder().raw_decode(lines[0].partition("Principal = ")[2])
        assert told[0][:250] == principal[:250]
        assert lines[0].partition("Principal = ")[2][told[1] :].startswith(" is Denied operation =")


def test_the_handler_of_all_logs_leaves_out_none_of_these_lines(
    authorizer: StandardAuthorizer, stream: io.StringIO
) -> None:
    """It would write a few of each kind; the areas have seen to it that there are not too many."""
    clock, peers = ManualClock(), [f"peer-{number}" for number in range(MAX_LINES + 1)]
    authentication, shares = AuthenticationLog(clock), SharesLog(clock)
    budgets = MemoryShares()
    for _ in range(2):
        for peer in peers:
            sender(authorizer, f"User:{peer}").authorized_topic(Operation.WRITE, "t")
            authentication.failed("OUTSIDE", peer, "guessed")
            share = Share(budgets, OWNER, PeerKind.CLIENTS, f"User:{peer}", "10.0.0.1")
            shares.took_too_much(share, "it waits")
    first = len(stream.getvalue().splitlines())
    assert first == 3 * len(peers)
    for log in (authorizer.log, authentication, shares):
        assert log is not None
        log.close()
    lines = stream.getvalue().splitlines()[first:]
    assert len(lines) == 3 * len(peers), "and a count of each"
    assert all("1 more times" in each or '"repeated": 1' in each for each in lines)


def test_the_handler_of_all_logs_leaves_out_no_count_of_what_is_left_out(
    stream: io.StringIO,
) -> None:
    log = AuthenticationLog(ManualClock(), 1)
    peers = [f"10.0.0.{number}" for number in range(MAX_LINES + 2)]
    for peer in peers:
        for reason in ("a", "b", "c"):
            log.failed("OUTSIDE", peer, reason)
    stream.truncate(0)
    log.close()
    lines = stream.getvalue().strip("\0").splitlines()
    assert len(lines) == len(peers)
    assert all("left out" in each or '"left_out"' in each for each in lines)


def test_a_log_that_was_closed_counts_what_comes_afterwards(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuthenticationLog(clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            for _ in range(2):
                log.failed("OUTSIDE", "10.0.0.1", "guessed")
            log.close()
            assert clock.timer_count == 0
        caplog.clear()
        for _ in range(2):
            log.failed("OUTSIDE", "10.0.0.1", "guessed")
        clock.advance(INTERVAL_MS)
    counts = [each.getMessage().rpartition(": ")[2] for each in caplog.records]
    assert counts == ["2 more times within 10 s"]


def test_a_hundred_thousand_denials_are_one_line_and_a_count(
    authorizer: StandardAuthorizer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    asked = sender(authorizer)
    with caplog.at_level(logging.INFO):
        for _ in range(100_000):
            asked.authorized_topic(Operation.WRITE, "t")
        assert len(caplog.records) == 1
        clock.advance(INTERVAL_MS)
        assert len(caplog.records) == 2
        assert caplog.records[1].getMessage().endswith("DefaultDeny: 99999 more times within 10 s")
        assert json.loads(JsonFormatter().format(caplog.records[1]))["repeated"] == 99_999
        clock.advance(INTERVAL_MS)
        assert len(caplog.records) == 2
        asked.authorized_topic(Operation.WRITE, "t")
        assert len(caplog.records) == 3
    assert clock.timer_count == 1


def test_lines_of_one_client_leave_room_for_all_others(
    authorizer: StandardAuthorizer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for number in range(5_000):
            sender(authorizer).authorized_topic(Operation.WRITE, f"t-{number}")
        assert len(caplog.records) == 11, "half of the room, and one of its own"
        caplog.clear()
        for _ in range(2):  # the second time each is counted
            for number in range(200):
                sender(authorizer, f"User:u{number}").authorized_topic(Operation.WRITE, "t")
        said = [each.getMessage().split()[2] for each in caplog.records]
        assert said == [f"User:u{number}" for number in range(200)]
        caplog.clear()
        clock.advance(INTERVAL_MS)
    counted = [each.getMessage() for each in caplog.records]
    assert len(counted) == 201
    assert all(": 1 more times within 10 s" in each for each in counted[:-1])
    assert counted[-1] == (
        "4989 more lines like these are left out, of Principal = User:bob from host = 10.0.0.1"
    )


def test_one_principal_at_many_addresses_and_many_principals_leave_room(
    authorizer: StandardAuthorizer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    def denied(principal: str, host: str = "10.0.0.1") -> bool:
        """Whether it is logged."""
        caplog.clear()
        sender(authorizer, principal, host).authorized_topic(Operation.WRITE, "t")
        return f"Principal = {principal} " in caplog.text

    with caplog.at_level(logging.INFO):
        assert sum(denied("User:bob", f"2001:db8::{n:x}") for n in range(5_000)) == MAX_SENDERS // 4
        assert denied("User:carol")
        assert sum(denied(f"User:u{number}") for number in range(MAX_SENDERS)) == (
            MAX_SENDERS - MAX_SENDERS // 4 - 1
        )
        caplog.clear()
        authorizer.log.close()  # type: ignore[union-attr]
    assert clock.timer_count == 0
    left_out = [json.loads(JsonFormatter().format(each)) for each in caplog.records]
    assert sum(each["left_out"] for each in left_out) == 5_000 + 1 + MAX_SENDERS - MAX_SENDERS
    assert len(left_out) == MAX_SENDERS_COUNTED + 1
    assert left_out[-1]["sender"] == "others"


def test_failed_logins_from_many_addresses_leave_room_for_those_of_others(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuthenticationLog(clock, 4)
    with caplog.at_level(logging.WARNING):
        for number in range(500):
            log.failed("OUTSIDE", f"10.0.{number // 250}.{number % 250}", "guessed")
        for number in range(5_000):  # one client with its own network
            log.failed("OUTSIDE", f"2001:db8::{number:x}", "guessed")
        assert 500 < len(caplog.records) < 510
        log.failed("OUTSIDE", "192.0.2.1", "'carol' has another password")
        assert "192.0.2.1" in caplog.records[-1].getMessage()
        caplog.clear()
        log.close()
    assert len(caplog.records) == 1
    assert "more lines like these are left out, of host = 2001:db8::/64" in caplog.text


def test_a_count_follows_though_no_line_does(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuthenticationLog(clock)
    with caplog.at_level(logging.WARNING):
        for host in ("10.0.0.1", "10.0.0.2"):
            for _ in range(3):
                log.failed("OUTSIDE", host, "guessed")
            clock.advance(INTERVAL_MS / 2)
        caplog.clear()
        clock.advance(INTERVAL_MS / 2)
    assert "10.0.0.2 on listener = OUTSIDE: guessed: 2 more times" in caplog.text
    assert clock.timer_count == 0


def test_switched_off_it_costs_no_memory(
    authorizer: StandardAuthorizer, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, AUTHORIZER.name):
        assert not sender(authorizer).authorized_topic(Operation.WRITE, "t")
    assert not caplog.records
    assert not clock.timer_count


def test_guesses_of_a_password_are_one_line_and_a_count(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    log = AuthenticationLog(clock, 4)
    with caplog.at_level(logging.WARNING):
        for number in range(1_000):
            log.failed("OUTSIDE", "10.0.0.1", "authentication with PLAIN failed: 'alice'")
            log.failed("OUTSIDE", "10.0.0.2", f"authentication with PLAIN failed: 'u{number}'")
        clock.advance(INTERVAL_MS)
    assert [each.getMessage().partition(" failed: ")[2] for each in caplog.records[:5]] == [
        "'alice'",
        "'u0'",
        "'u1'",
        "'u2'",
        "'alice': 999 more times within 10 s",
    ]
    assert caplog.records[5].getMessage() == (
        "997 more lines like these are left out, of host = 10.0.0.2"
    )
