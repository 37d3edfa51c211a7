"""What members of a consumer group may commit and read, and the next step of a member toward the
target assignment (KIP-848, KIP-1251), at each edge.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from moldau.broker.coordinator.group.core.consumer_group import ConsumerGroup
from moldau.broker.coordinator.group.core.consumer_member import (
    ClassicProtocols,
    ConsumerGroupMember,
    MemberState,
    OwnedPartitions,
)
from moldau.broker.coordinator.group.core.context import Refusal
from moldau.broker.coordinator.group.core.member_updates import Reconciliation
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import ZERO_UUID

T1, T2, GONE = UUID(int=1), UUID(int=2), UUID(int=3)
NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
STALE, ILLEGAL = ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.ILLEGAL_GENERATION

# -- commits and fetches -------------------------------------------------------------------------


def group() -> ConsumerGroup:
    """m1 speaks the new protocol, and has to give T1-1 back; m2 speaks the classic one."""
    made = ConsumerGroup("team", {}, {"t1": T1}.get)
    m1 = ConsumerGroupMember(
        "m1", member_epoch=5, assigned={T1: {0: 3}}, pending_revocation={T1: {1: 2}}
    )
    classic = ClassicProtocols(1000, (("range", b""),))
    made.update_member(m1)
    made.update_member(
        ConsumerGroupMember("m2", member_epoch=5, assigned={T1: {2: 5}}, classic=classic)
    )
    return made


@pytest.mark.parametrize(
    ("member_id", "instance_id", "epoch", "is_transactional", "api_version", "error"),
    [
        ("m1", None, 5, False, 9, NONE),
        ("m1", None, 5, False, 8, ErrorCode.UNSUPPORTED_VERSION),
        ("m1", None, 5, True, 8, NONE),
        ("m1", None, 6, False, 9, STALE),
        ("m1", None, 6, True, 9, STALE),
        ("m1", None, 4, False, 9, NONE),
        ("m2", None, 5, False, 8, NONE),
        ("m2", None, 6, False, 9, ILLEGAL),
        ("m9", None, 5, False, 9, UNKNOWN),
        ("", None, -1, False, 9, UNKNOWN),
        ("", None, -1, True, 9, NONE),
        ("", None, 0, True, 9, UNKNOWN),
        ("", None, -2, True, 9, UNKNOWN),
        ("", "i", -1, True, 9, UNKNOWN),
        ("m9", None, -1, True, 9, UNKNOWN),
    ],
)
def test_commits_to_a_consumer_group(
    member_id: str,
    instance_id: str | None,
    epoch: int,
    is_transactional: bool,
    api_version: int,
    error: ErrorCode,
) -> None:
    found = group().validate_offset_commit(
        member_id, instance_id, epoch, is_transactional=is_transactional, api_version=api_version
    )
    assert found is error


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"), [("", -1, NONE), ("m1", -1, NONE), ("m1", 0, UNKNOWN)]
)
def test_commits_to_an_empty_consumer_group(member_id: str, epoch: int, error: ErrorCode) -> None:
    empty = ConsumerGroup("team", {})
    found = empty.validate_offset_commit(
        member_id, None, epoch, is_transactional=False, api_version=9
    )
    assert found is error


@pytest.mark.parametrize(
    ("member_id", "epoch", "topic_id", "index", "is_transactional", "error"),
    [
        ("m1", 5, T1, 0, False, NONE),
        ("m1", 5, T1, 2, False, NONE),
        ("m1", 5, T1, 0, True, NONE),
        ("m1", 5, T1, 1, True, NONE),
        ("m1", 5, T1, 2, True, STALE),
        ("m1", 5, T1, 9, True, NONE),
        ("m2", 5, T1, 0, True, ILLEGAL),
        ("m1", 4, T1, 0, False, NONE),
        ("m1", 3, T1, 0, False, NONE),
        ("m1", 2, T1, 0, False, STALE),
        ("m1", 2, T1, 1, False, NONE),
        ("m1", 1, T1, 1, False, STALE),
        ("m1", 4, T1, 0, True, NONE),
        ("m1", 4, T1, 2, True, STALE),
        ("m1", 4, T1, 9, False, STALE),
        ("m2", 4, T1, 2, False, ILLEGAL),
        ("m9", 1, T1, 0, False, NONE),
    ],
)
def test_partitions_that_a_member_may_commit_for(
    member_id: str, epoch: int, topic_id: UUID, index: int, is_transactional: bool, error: ErrorCode
) -> None:
    for asked_id, name in ((topic_id, "any"), (ZERO_UUID, "t1")):
        found = group().partition_commit_error(
            member_id, epoch, asked_id, name, index, is_transactional=is_transactional
        )
        assert found is error


@pytest.mark.parametrize(
    ("epoch", "is_transactional", "error"), [(5, True, NONE), (5, False, NONE), (4, False, STALE)]
)
def test_a_topic_that_does_not_exist_is_no_members(
    epoch: int, is_transactional: bool, error: ErrorCode
) -> None:
    found = group().partition_commit_error(
        "m1", epoch, ZERO_UUID, "gone", 0, is_transactional=is_transactional
    )
    assert found is error


@pytest.mark.parametrize(
    ("member_id", "epoch", "error"),
    [
        (None, -1, NONE),
        (None, 0, UNKNOWN),
        ("", -1, UNKNOWN),
        ("m9", 5, UNKNOWN),
        ("m1", 5, NONE),
        ("m1", 4, STALE),
        ("m1", -1, STALE),
        ("m2", 5, NONE),
        ("m2", 6, ILLEGAL),
    ],
)
def test_who_may_read_offsets(member_id: str | None, epoch: int, error: ErrorCode) -> None:
    assert group().validate_offset_fetch(member_id, epoch) is error


# -- the next step of a member -------------------------------------------------------------------


@dataclass
class Case:
    """A member before and after a step; the target is of epoch 5. `after` None: nothing to do."""

    before: dict[str, Any]
    target: dict[UUID, frozenset[int]]
    after: dict[str, Any] | None
    owned: dict[UUID, frozenset[int]] | None = None
    others: dict[UUID, frozenset[int]] = field(default_factory=dict)
    """What other members still own."""
    subscribed: frozenset[UUID] = frozenset({T1, T2})
    has_subscription_changed: bool = False


STABLE, UNREVOKED = MemberState.STABLE, MemberState.UNREVOKED_PARTITIONS
UNRELEASED, UNDEFINED = MemberState.UNRELEASED_PARTITIONS, MemberState.UNKNOWN
NOTHING: OwnedPartitions = {}
ALL = {T1: frozenset({0, 1})}
HALF = {T1: frozenset({0})}

CASES = {
    "has all of it": Case({"epoch": 5, "has": {T1: {0: 3, 1: 4}}}, ALL, None),
    "is in an older epoch": Case(
        {"epoch": 4, "has": {T1: {0: 3, 1: 4}}}, ALL, {"epoch": 5, "has": {T1: {0: 3, 1: 4}}}
    ),
    "gets more": Case({"epoch": 4, "has": {T1: {0: 3}}}, ALL, {"has": {T1: {0: 3, 1: 5}}}),
    "gets a topic": Case({"epoch": 4}, ALL, {"has": {T1: {0: 5, 1: 5}}}),
    "waits for another member": Case(
        {"epoch": 4, "has": {T1: {0: 3}}},
        ALL,
        {"state": UNRELEASED, "has": {T1: {0: 3}}},
        others={T1: frozenset({1})},
    ),
    "waits for one of two topics": Case(
        {"epoch": 4},
        {**ALL, T2: frozenset({0})},
        {"state": UNRELEASED, "has": {T1: {0: 5, 1: 5}}},
        others={T2: frozenset({0})},
    ),
    "still waits": Case(
        {"epoch": 5, "state": UNRELEASED, "has": {T1: {0: 3}}},
        ALL,
        None,
        others={T1: frozenset({1})},
    ),
    "waits no longer": Case(
        {"epoch": 5, "state": UNRELEASED, "has": {T1: {0: 3}}}, ALL, {"has": {T1: {0: 3, 1: 5}}}
    ),
    "has to give back": Case(
        {"epoch": 4, "has": {T1: {0: 3, 1: 4}}},
        HALF,
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T1: {1: 4}}},
    ),
    "has to give back before it gets more": Case(
        {"epoch": 4, "has": {T1: {0: 3, 1: 4}}},
        {**HALF, T2: frozenset({0})},
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T1: {1: 4}}},
        owned={T1: frozenset({1})},
    ),
    "has given back unasked": Case(
        {"epoch": 4, "has": {T1: {0: 3, 1: 4}}},
        HALF,
        {"has": {T1: {0: 3}}},
        owned={T1: frozenset({0}), T2: frozenset({1})},
    ),
    "loses a topic": Case(
        {"epoch": 4, "has": {T1: {0: 3}, T2: {0: 4}}},
        HALF,
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T2: {0: 4}}},
    ),
    "gives back": Case(
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T1: {1: 4}}},
        HALF,
        None,
        owned={T1: frozenset({0, 1})},
    ),
    "gives back and does not say how far it is": Case(
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T1: {1: 4}}}, HALF, None
    ),
    "has given back": Case(
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T1: {1: 4}}},
        {**HALF, T2: frozenset({7})},
        {"has": {T1: {0: 3}, T2: {7: 5}}},
        owned=HALF,
    ),
    "has given back and has to give back more": Case(
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}, T2: {0: 4}}, "gives": {T1: {1: 4}}},
        HALF,
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T2: {0: 4}}},
        owned={T1: frozenset({0}), T2: frozenset({0})},
    ),
    "is not subscribed to its target": Case(
        {"epoch": 4, "has": {T1: {0: 3}, T2: {0: 4}}},
        {**HALF, T2: frozenset({0, 1})},
        {"has": {T1: {0: 3}}},
        owned=HALF,
        subscribed=frozenset({T1}),
    ),
    "unsubscribes and still reads": Case(
        {"epoch": 5, "has": {T1: {0: 3}, T2: {0: 4}}},
        {**HALF, T2: frozenset({0})},
        {"state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T2: {0: 4}}},
        owned={T2: frozenset({0})},
        subscribed=frozenset({T1}),
        has_subscription_changed=True,
    ),
    "unsubscribes and has stopped reading": Case(
        {"epoch": 5, "has": {T1: {0: 3}, T2: {0: 4}}},
        {**HALF, T2: frozenset({0})},
        {"has": {T1: {0: 3}}},
        owned=HALF,
        subscribed=frozenset({T1}),
        has_subscription_changed=True,
    ),
    "unsubscribes while it gives back": Case(
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}, T2: {0: 4}}, "gives": {T2: {1: 2}}},
        HALF,
        {"epoch": 4, "state": UNREVOKED, "has": {T1: {0: 3}}, "gives": {T2: {0: 4, 1: 2}}},
        subscribed=frozenset({T1}),
        has_subscription_changed=True,
    ),
    "unsubscribes from what it does not have": Case(
        {"epoch": 5, "has": {T1: {0: 3}}},
        HALF,
        None,
        subscribed=frozenset({T1}),
        has_subscription_changed=True,
    ),
    "unsubscribes without a word in an older request": Case(
        {"epoch": 5, "has": {T1: {0: 3}, T2: {0: 4}}}, HALF, None, subscribed=frozenset({T1})
    ),
    "is in a state of a newer coordinator and has nothing": Case(
        {"epoch": 4, "state": UNDEFINED, "has": {T1: {0: 3, 1: 4}}},
        HALF,
        {"has": {T1: {0: 3}}},
        owned={T1: frozenset()},
    ),
}


def member(
    epoch: int = 5,
    state: MemberState = STABLE,
    has: OwnedPartitions = NOTHING,
    gives: OwnedPartitions = NOTHING,
    previous_epoch: int = 2,
) -> ConsumerGroupMember:
    return ConsumerGroupMember(
        "m",
        member_epoch=epoch,
        previous_member_epoch=previous_epoch,
        state=state,
        assigned=has,
        pending_revocation=gives,
    )


def step(case: Case) -> Reconciliation:
    return Reconciliation(
        target_epoch=5,
        target=case.target,
        is_subscribed=case.subscribed.__contains__,
        has_subscription_changed=case.has_subscription_changed,
        is_released=lambda topic_id, index: index not in case.others.get(topic_id, ()),
        owned=case.owned,
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_next_step_of_a_member_that(case: Case) -> None:
    before = member(**case.before)
    after = step(case).next_step(before)
    if case.after is None:
        assert after is before
    else:
        assert after == member(**case.after, previous_epoch=case.before["epoch"])


@pytest.mark.parametrize("owned", [None, {T1: frozenset({7})}])
def test_a_member_in_a_state_of_a_newer_coordinator_gives_up_everything_first(
    owned: dict[UUID, frozenset[int]] | None,
) -> None:
    unknown = member(epoch=4, state=UNDEFINED)
    with pytest.raises(Refusal) as caught:
        step(Case({}, HALF, None, owned=owned)).next_step(unknown)
    assert caught.value.error_code is ErrorCode.FENCED_MEMBER_EPOCH
