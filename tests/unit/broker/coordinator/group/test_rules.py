"""Rules of the group coordinator, at each edge: what is a legal heartbeat, when expressions are
looked up, what a failed write is called, and what settings come to.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from moldau.broker.coordinator.core.result import CoordinatorResult, write_error
from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_groups import (
    check_request,
    is_full,
    owned_partitions,
    told,
)
from moldau.broker.coordinator.group.core.consumer_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    MemberState,
    ResolvedRegularExpression,
    with_epoch,
)
from moldau.broker.coordinator.group.core.consumer_protocol import write_assignment
from moldau.broker.coordinator.group.core.context import (
    ClientInfo,
    ConsumerGroupSettings,
    LimitedTime,
    Refusal,
    offset_read_error,
    offset_write_error,
)
from moldau.broker.coordinator.group.core.regular_expressions import (
    MIN_REFRESH_INTERVAL_MS,
    Change,
    RegularExpressions,
    ResolveRegularExpressions,
    expression_tombstones,
    resolution_records,
)
from moldau.metadata.image import ConfigResourceType, MetadataImage
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from moldau.protocol.messages.p68_consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from moldau.protocol.metadata_records import ConfigRecord
from tests.unit.metadata.builders import replay

T1, T2 = UUID(int=1), UUID(int=2)
CLIENT = ClientInfo("client", "host")
NONE = ErrorCode.NONE

# -- heartbeats ----------------------------------------------------------------------------------


def request(**changes: Any) -> ConsumerGroupHeartbeatRequest:
    values: dict[str, Any] = {
        "group_id": "team",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ["a"],
        "topic_partitions": [],
    }
    return ConsumerGroupHeartbeatRequest(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "api_version", "error"),
    [
        ({}, 1, NONE),
        ({"member_id": ""}, 0, NONE),
        ({"member_id": ""}, 1, ErrorCode.INVALID_REQUEST),
        ({"member_id": " "}, 1, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "member_epoch": 1}, 0, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "member_epoch": -1}, 0, ErrorCode.INVALID_REQUEST),
        ({"member_id": "", "member_epoch": -2, "instance_id": "i"}, 0, NONE),
        ({"group_id": " "}, 0, ErrorCode.INVALID_REQUEST),
        ({"instance_id": " "}, 0, ErrorCode.INVALID_REQUEST),
        ({"rack_id": " "}, 0, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1}, 1, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": -1, "member_epoch": 1}, 1, NONE),
        ({"topic_partitions": None}, 1, ErrorCode.INVALID_REQUEST),
        ({"topic_partitions": None, "member_epoch": 1}, 1, NONE),
        ({"topic_partitions": [TopicPartitions(topic_id=T1)]}, 1, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None}, 1, ErrorCode.INVALID_REQUEST),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": "a"}, 1, NONE),
        ({"member_epoch": -1}, 1, NONE),
        ({"member_epoch": -2}, 1, ErrorCode.INVALID_REQUEST),
        ({"member_epoch": -2, "instance_id": "i"}, 1, NONE),
        ({"member_epoch": -3, "instance_id": "i"}, 1, ErrorCode.INVALID_REQUEST),
        ({"server_assignor": "range"}, 1, NONE),
        ({"server_assignor": "other"}, 1, ErrorCode.UNSUPPORTED_ASSIGNOR),
    ],
)
def test_legal_heartbeats(changes: dict[str, Any], api_version: int, error: ErrorCode) -> None:
    found = NONE
    try:
        check_request(request(**changes), api_version, ("uniform", "range"))
    except Refusal as refusal:
        found = refusal.error_code
    assert found is error


@pytest.mark.parametrize(
    ("epoch", "owned", "is_fenced"),
    [
        (0, None, False),
        (7, None, False),
        (8, {}, True),
        (6, {}, True),
        (5, {}, False),
        (5, None, True),
        (5, {T1: frozenset({0, 1})}, False),
        (5, {T1: frozenset({0, 2})}, True),
        (5, {T2: frozenset()}, True),
        (4, {}, True),
    ],
)
def test_epochs_that_a_member_may_be_in(epoch: int, owned: Any, is_fenced: bool) -> None:
    member = ConsumerGroupMember(
        "m", member_epoch=7, previous_member_epoch=5, assigned={T1: {0: 1, 1: 7}}
    )
    if is_fenced:
        with pytest.raises(Refusal) as caught:
            member.check_epoch(epoch, owned)
        assert caught.value.error_code is ErrorCode.FENCED_MEMBER_EPOCH
    else:
        member.check_epoch(epoch, owned)


def test_a_static_member_that_is_away_sends_under_no_epoch_of_before() -> None:
    away = ConsumerGroupMember("m", member_epoch=-2, previous_member_epoch=5)
    for epoch in (5, 6):
        with pytest.raises(Refusal) as caught:
            away.check_epoch(epoch, {})
        assert caught.value.error_code is ErrorCode.FENCED_MEMBER_EPOCH


def test_a_heartbeat_changes_what_it_names_and_leaves_the_rest_as_it_was() -> None:
    member = ConsumerGroupMember(
        "m",
        instance_id="i",
        rack_id="r",
        client_id="client",
        client_host="host",
        subscribed_topic_names=frozenset({"a"}),
        subscribed_topic_regex="x",
        rebalance_timeout_ms=1000,
        server_assignor="range",
        member_epoch=4,
    )
    silent = request(
        rebalance_timeout_ms=-1, subscribed_topic_names=None, topic_partitions=None, member_epoch=4
    )
    assert told(member, silent, CLIENT) is member
    for name, value in [
        ("instance_id", "j"),
        ("rack_id", "s"),
        ("subscribed_topic_regex", "y"),
        ("rebalance_timeout_ms", 2000),
        ("server_assignor", "uniform"),
    ]:
        changed = request(
            **{"rebalance_timeout_ms": -1, "subscribed_topic_names": None, name: value}
        )
        after = told(member, changed, CLIENT)
        assert getattr(after, name) == value
        assert after.member_epoch == 4
    names = told(member, request(subscribed_topic_names=["b", "b"]), CLIENT)
    assert names.subscribed_topic_names == {"b"}
    moved = told(member, silent, ClientInfo("other", "host"))
    assert (moved.client_id, moved.rack_id) == ("other", "r")
    was_classic = ConsumerGroupMember("m", classic=ClassicProtocols(1, ()))
    assert told(was_classic, silent, CLIENT).classic is None


@pytest.mark.parametrize(
    ("changes", "is_all"),
    [
        ({"member_epoch": 0, "topic_partitions": None}, True),
        ({}, True),
        ({"rebalance_timeout_ms": -1}, False),
        ({"topic_partitions": None}, False),
        ({"subscribed_topic_names": None}, False),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": ""}, True),
    ],
)
def test_a_full_heartbeat_names_everything(changes: dict[str, Any], is_all: bool) -> None:
    assert is_full(request(**({"member_epoch": 3} | changes))) is is_all


def test_partitions_that_a_member_names_in_pieces() -> None:
    assert owned_partitions(None) is None
    pieces = [(T1, [0]), (T2, [5]), (T1, [1])]
    topics = [TopicPartitions(topic_id=topic, partitions=each) for topic, each in pieces]
    assert owned_partitions(topics) == {T1: {0, 1}, T2: {5}}


def test_whose_place_a_static_member_may_take() -> None:
    group = ConsumerGroup("team", {})
    assert group.released_static_member("i", "m2") is None
    group.update_member(ConsumerGroupMember("m1", instance_id="i", member_epoch=3))
    with pytest.raises(Refusal) as caught:
        group.released_static_member("i", "m2")
    assert caught.value.error_code is ErrorCode.UNRELEASED_INSTANCE_ID
    left = ConsumerGroupMember("m1", instance_id="i", member_epoch=-2, assigned={T1: {0: 0}})
    group.update_member(left)
    assert group.released_static_member("i", "m2") is left
    heir = left.successor("m2")
    assert (heir.member_id, heir.member_epoch, heir.previous_member_epoch) == ("m2", 0, 0)
    assert heir.assigned == left.assigned
    classic = ConsumerGroupMember(
        "m1", instance_id="i", member_epoch=3, classic=ClassicProtocols(1, ())
    )
    group.update_member(classic)
    assert group.released_static_member("i", "m2") is classic


@pytest.mark.parametrize(
    ("state", "epoch", "is_giving_back"),
    [
        (MemberState.UNREVOKED_PARTITIONS, 5, True),
        (MemberState.UNREVOKED_PARTITIONS, -2, False),
        (MemberState.UNREVOKED_PARTITIONS, -1, False),
        (MemberState.UNRELEASED_PARTITIONS, 5, False),
        (MemberState.STABLE, 5, False),
    ],
)
def test_a_member_gives_back_unless_it_is_away(
    state: MemberState, epoch: int, is_giving_back: bool
) -> None:
    member = ConsumerGroupMember("m", member_epoch=epoch, state=state)
    assert member.is_giving_back is is_giving_back


def test_a_member_as_a_value() -> None:
    member = ConsumerGroupMember("m", member_epoch=5, assigned=with_epoch({T1: frozenset({0})}, 5))
    assert member.assigned == {T1: {0: 5}}
    assert (member.is_reconciled_to(5), member.is_reconciled_to(4)) == (True, False)
    waiting = ConsumerGroupMember(
        "m",
        member_epoch=5,
        state=MemberState.UNRELEASED_PARTITIONS,
        assigned={T1: {0: 3}},
        pending_revocation={T1: {1: 2}, T2: {0: 1}},
    )
    assert not waiting.is_reconciled_to(5)
    found = [waiting.epoch_of(T1, 0), waiting.epoch_of(T1, 1), waiting.epoch_of(T2, 0)]
    assert (found, waiting.epoch_of(T2, 1)) == ([3, 2, 1], None)
    gone = waiting.without_assignment()
    assert (gone.member_epoch, gone.previous_member_epoch) == (-1, -1)
    assert (gone.assigned, gone.pending_revocation) == ({}, {})


# -- regular expressions -------------------------------------------------------------------------

REFRESH_MS = 600_000
NOW_MS = 10_000_000


def expressions(new_topics_offset: int = 5) -> RegularExpressions:
    made = RegularExpressions(REFRESH_MS)
    made.new_topics_offset = new_topics_offset
    return made


def commands_of(
    rules: RegularExpressions,
    group: ConsumerGroup,
    old: ConsumerGroupMember,
    new: ConsumerGroupMember,
) -> list[object]:
    """The look-ups that a member's heartbeat leads to."""
    out = CoordinatorResult()
    rules.plan(group, old, new, CLIENT, NOW_MS, out)
    return out.commands


def group_with(*members: tuple[str, str], age_ms: int = 0, offset: int = 5) -> ConsumerGroup:
    group = ConsumerGroup("team", {})
    for member_id, expression in members:
        member = ConsumerGroupMember(member_id, subscribed_topic_regex=expression)
        group.update_member(member)
        if expression:
            at_ms = NOW_MS - age_ms
            resolved = ResolvedRegularExpression(frozenset({"t"}), offset, at_ms)
            group.set_resolved(expression, resolved)
    return group


@pytest.mark.parametrize(
    ("age_ms", "offset", "is_due"),
    [
        (0, 4, False),
        (MIN_REFRESH_INTERVAL_MS - 1, 4, False),
        (MIN_REFRESH_INTERVAL_MS, 4, True),
        (MIN_REFRESH_INTERVAL_MS, 5, False),
        (MIN_REFRESH_INTERVAL_MS, 6, False),
        (REFRESH_MS - 1, 5, False),
        (REFRESH_MS, 5, True),
        (-1, 5, True),
    ],
)
def test_when_expressions_are_looked_up_again(age_ms: int, offset: int, is_due: bool) -> None:
    group = group_with(("m1", "x"), age_ms=age_ms, offset=offset)
    member = group.members["m1"]
    out = CoordinatorResult()
    change = expressions().plan(group, member, member, CLIENT, NOW_MS, out)
    assert (change, out.records) == (Change.NONE, [])
    assert bool(out.commands) is is_due
    for command in out.commands:
        assert isinstance(command, ResolveRegularExpressions)
        assert (command.group_id, command.expressions) == ("team", {"x"})


@pytest.mark.parametrize(
    ("before", "after", "change", "ended", "wanted"),
    [
        ("x", "x", Change.NONE, False, None),
        ("", "y", Change.UPDATED_AND_RESOLVED, False, None),
        ("", "new", Change.UPDATED, False, {"x", "y", "new"}),
        ("x", "", Change.UPDATED_AND_RESOLVED, True, {"y"}),
        ("x", "new", Change.UPDATED, True, {"y", "new"}),
        ("y", "", Change.UPDATED_AND_RESOLVED, False, None),
        ("y", "x", Change.UPDATED_AND_RESOLVED, False, None),
    ],
)
def test_what_a_changed_expression_leads_to(
    before: str, after: str, change: Change, ended: bool, wanted: set[str] | None
) -> None:
    members = [("m1", before), ("m2", "y"), ("m3", "y")]
    if before != "x":
        members.append(("m4", "x"))
    group = group_with(*members, age_ms=MIN_REFRESH_INTERVAL_MS)
    old = group.members["m1"]
    new = ConsumerGroupMember("m1", subscribed_topic_regex=after)
    rules = expressions()
    out = CoordinatorResult()
    assert rules.plan(group, old, new, CLIENT, NOW_MS, out) is change
    assert len(out.records) == ended
    assert [each.expressions for each in out.commands] == ([] if wanted is None else [wanted])  # type: ignore[attr-defined]
    rules.started("team")
    assert not commands_of(rules, group, old, new)
    rules.ended("team")
    assert bool(commands_of(rules, group, old, new)) is (wanted is not None)


def test_an_invalid_expression_is_refused_when_no_member_has_it_yet() -> None:
    group = group_with(("m1", ""))
    old, new = group.members["m1"], ConsumerGroupMember("m1", subscribed_topic_regex="(")
    with pytest.raises(Refusal) as caught:
        commands_of(expressions(), group, old, new)
    assert caught.value.error_code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_the_result_of_a_look_up() -> None:
    group = group_with(("m1", "x"), ("m2", "y"))
    group.update_member(ConsumerGroupMember("m3", subscribed_topic_names=frozenset({"n"})))
    same = ResolvedRegularExpression(frozenset({"t"}), 9, 99)
    records, subscribed, changed = resolution_records(group, {"x": same})
    assert (len(records), subscribed, changed) == (1, {"n", "t"}, False)
    other = ResolvedRegularExpression(frozenset({"u"}), 9, 99)
    records, subscribed, changed = resolution_records(group, {"x": other, "gone": other})
    assert (len(records), subscribed, changed) == (1, {"n", "t", "u"}, True)
    nothing = ResolvedRegularExpression(frozenset(), 9, 99)
    group.set_resolved("x", None)
    assert resolution_records(group, {"x": nothing})[1:] == ({"n", "t"}, False)
    assert resolution_records(group, {"y": nothing})[1:] == ({"n"}, True)


def test_an_expression_ends_with_the_last_who_has_it() -> None:
    group = group_with(("m1", "x"), ("m2", "y"), ("m3", "y"), ("m4", ""))
    members = group.members
    assert len(expression_tombstones(group, [members["m1"], members["m4"]])) == 1
    assert expression_tombstones(group, [members["m2"]]) == []
    assert len(expression_tombstones(group, [members["m2"], members["m3"]])) == 1


# -- the embedded consumer protocol --------------------------------------------------------------


def test_an_assignment_is_written_as_its_reader_can_read_it() -> None:
    nothing = ConsumerProtocolAssignment(assigned_partitions=[]).to_bytes(0)
    for subscription_, version in [(b"", 0), (b"\0", 0), (b"\0\2rest", 2), (b"\0\x63", 3)]:
        written = write_assignment({}, subscription_, MetadataImage.EMPTY)
        assert written == version.to_bytes(2, "big") + nothing


# -- errors and settings -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "of_groups", "of_commits", "of_fetches"),
    [
        ("NONE", "NONE", "NONE", "NONE"),
        ("COORDINATOR_NOT_AVAILABLE", *["COORDINATOR_NOT_AVAILABLE"] * 2, None),
        (
            "REQUEST_TIMED_OUT",
            "COORDINATOR_NOT_AVAILABLE",
            "COORDINATOR_NOT_AVAILABLE",
            "NOT_COORDINATOR",
        ),
        ("NOT_COORDINATOR", "NOT_COORDINATOR", "NOT_COORDINATOR", None),
        ("MESSAGE_TOO_LARGE", "UNKNOWN_SERVER_ERROR", "INVALID_COMMIT_OFFSET_SIZE", None),
        ("UNKNOWN_SERVER_ERROR", "UNKNOWN_SERVER_ERROR", "UNKNOWN_SERVER_ERROR", None),
        ("COORDINATOR_LOAD_IN_PROGRESS", *["COORDINATOR_LOAD_IN_PROGRESS"] * 3),
    ],
)
def test_what_a_failed_write_is_called(
    error: str, of_groups: str, of_commits: str, of_fetches: str | None
) -> None:
    code = ErrorCode[error]
    assert write_error(code).name == of_groups
    assert offset_write_error(code).name == of_commits
    assert offset_read_error(code).name == (of_fetches or of_groups)


def test_settings_of_a_group_are_held_within_the_brokers_limits() -> None:
    limited = LimitedTime(15, 10, 20)
    assert [limited.of(text) for text in ("9", "10", "20", "21", "x")] == [10, 10, 20, 20, 15]
    settings = ConsumerGroupSettings(
        broker_id=3,
        session_timeout=LimitedTime(45_000, 10, 20),
        heartbeat_interval=LimitedTime(5000, 10, 20),
        assignment_interval=LimitedTime(1000, 10, 20),
    )

    def configured(*values: tuple[ConfigResourceType, str, str, str]) -> tuple[int, int, int]:
        records = [
            ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)
            for kind, name, key, value in values
        ]
        times = settings.of_group(replay(MetadataImage.EMPTY, records).configs, "team")
        return (
            times.session_timeout_ms,
            times.heartbeat_interval_ms,
            times.assignment_interval_ms,
        )

    group, broker = ConfigResourceType.GROUP, ConfigResourceType.BROKER
    interval = "group.consumer.assignment.interval.ms"
    assert configured() == (45_000, 5000, 1000)
    assert configured((group, "other", "consumer.session.timeout.ms", "11")) == configured()
    own = (group, "team", "consumer.session.timeout.ms", "11")
    beat = (group, "team", "consumer.heartbeat.interval.ms", "99")
    assert configured(own, beat) == (11, 20, 1000)
    everywhere = (broker, "", interval, "12")
    assert configured(everywhere) == (45_000, 5000, 12)
    assert configured(everywhere, (broker, "4", interval, "14"))[2] == 12
    assert configured(everywhere, (broker, "3", interval, "13"))[2] == 13
    own_interval = (group, "team", "consumer.assignment.interval.ms", "1")
    assert configured(everywhere, own_interval)[2] == 10
