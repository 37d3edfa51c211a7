"""Requests of very many parts to one group: one operation, on what was stored at one moment."""

from __future__ import annotations

import contextlib
from types import GeneratorType

import pytest

from moldau.broker.coordinator.group.core.joining import MAX_READ_AT_ONCE as MAX_PROTOCOLS
from moldau.broker.coordinator.group.core.joining import Joining
from moldau.broker.coordinator.group.core.offset_requests import MAX_READ_AT_ONCE
from moldau.broker.coordinator.shard import Shard
from moldau.metadata.steps import at_once
from moldau.protocol.errors import ErrorCode, RemoteProtocolError
from moldau.protocol.messages.p11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from tests.kit.counting import Newcomers, collector_at_rest
from tests.unit.broker.coordinator.group.harness import CLIENT, Groups, error_of, subscription

COUNT = MAX_READ_AT_ONCE + 1


def test_offsets_of_many_partitions_are_those_of_one_moment() -> None:
    groups = Groups()
    groups.commit({("events", 0): 10, ("events", 1): 11})
    groups.commit_transactional({("events", 1): 21})
    named = groups.fetch({"events": list(range(COUNT))}, require_stable=True).answer
    assert isinstance(named, GeneratorType)
    groups.commit({("events", 0): 20, ("events", 2): 22})
    groups.end_transaction()
    found = at_once(named).topics[0].partitions
    assert [each.partition_index for each in found] == list(range(COUNT))
    assert [each.committed_offset for each in found[:3]] == [10, -1, -1]
    assert [each.error_code for each in found[:3]] == [0, ErrorCode.UNSTABLE_OFFSET_COMMIT, 0]


def test_all_offsets_of_a_group_with_many_are_those_of_one_moment() -> None:
    groups = Groups()
    groups.commit({("events", index): index for index in range(COUNT)})
    every = groups.fetch().answer
    groups.commit({("events", 0): 99, ("more", 0): 1})
    (topic,) = at_once(every).topics
    assert [each.committed_offset for each in topic.partitions] == list(range(COUNT))


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_commit_that_no_batch_can_hold_is_refused_whole(is_transactional: bool) -> None:
    groups = Groups()
    groups.commit({("events", 0): 1})
    groups.log.max_batch_bytes = 500
    offsets = {("events", index): 7 for index in range(20)}
    commit = groups.commit_transactional if is_transactional else groups.commit
    refused = commit(offsets)
    codes = {each.error_code for topic in refused.answer.topics for each in topic.partitions}
    assert codes == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
    assert groups.offset("events", 0) == 1


def test_a_member_that_may_not_commit_hears_that_before_the_size() -> None:
    groups = Groups()
    groups.stable()
    groups.log.max_batch_bytes = 500
    offsets = {("events", index): 7 for index in range(20)}
    assert error_of(groups.commit(offsets, member_id="x", generation=1)) is (
        ErrorCode.UNKNOWN_MEMBER_ID
    )


# -- JoinGroup -----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, MAX_PROTOCOLS + 1])
@pytest.mark.parametrize("broken", [None, 0, -1])
def test_every_protocol_has_to_be_readable(count: int, broken: int | None) -> None:
    metadata = [subscription(f"topic-{number}") for number in range(count)]
    if broken is not None:
        metadata[broken] = b"\0"
    request = JoinGroupRequest(
        protocols=[
            JoinGroupRequestProtocol(name=f"p-{number}", metadata=data)
            for number, data in enumerate(metadata)
        ]
    )
    joining = at_once(Joining.read(request, 9, CLIENT, None))
    assert joining.protocols == [(f"p-{number}", data) for number, data in enumerate(metadata)]
    if broken is None:
        assert joining.subscription.topics == ["topic-0"]
    else:
        with pytest.raises(RemoteProtocolError):
            _ = joining.subscription


def test_an_unreadable_subscription_leaves_no_cycle() -> None:
    """It would hold the request, and with it the connection."""
    protocols = [JoinGroupRequestProtocol(name="p", metadata=b"\0")]
    new = Newcomers(Joining)
    with collector_at_rest():
        joining = at_once(Joining.read(JoinGroupRequest(protocols=protocols), 9, CLIENT, None))
        for _ in range(2):
            with contextlib.suppress(RemoteProtocolError):
                _ = joining.subscription
        del joining
        assert new.objects() == []


# -- many that wait ------------------------------------------------------------------------------


def test_many_that_wait_for_one_commit_are_answered_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = Groups(is_committing_at_once=False)
    waiting = [groups.commit({("events", 0): number}) for number in range(6)]
    end_wait = Shard._end_wait

    def slowly(shard: Shard[object], *args: object) -> None:
        groups.broker.clock.stand_still(1.5)
        end_wait(shard, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Shard, "_end_wait", slowly)
    answered = []
    drain_soon = Shard._drain_soon

    def counted(shard: Shard[object]) -> None:
        answered.append(sum(each.is_answered for each in waiting))
        drain_soon(shard)

    monkeypatch.setattr(Shard, "_drain_soon", counted)
    groups.log.commit()
    assert all(each.is_answered for each in waiting)
    assert len(set(answered)) > 2
