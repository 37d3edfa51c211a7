"""What the checks of committed offsets find, record by record."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from uuid import UUID

import pytest

from moldau.protocol.coordinator_records import CONSUMER_OFFSETS
from moldau.protocol.coordinator_records.classic_groups import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from moldau.protocol.coordinator_records.consumer_groups import (
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
)
from moldau.protocol.messages import consumer_protocol as assignment
from moldau.protocol.records import Record
from moldau.protocol.types import ZERO_UUID
from tests.kit.seeds import Violation
from tests.simulation.transactions.group_log import GroupLog, Patience
from tests.simulation.transactions.ledger import TransactionLedger

FIRST, SECOND = UUID(int=1), UUID(int=2)
OFFSET_VERSION = 4


class Log:
    """A group's log with a clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.checked = GroupLog(lambda: self.now, lambda _topic: SECOND)
        self._end = 0

    def offset(self, offset: int | None, topic_id: UUID = ZERO_UUID) -> None:
        """Commit an offset, or remove it. Raises Violation."""
        value = None
        if offset is not None:
            written = OffsetCommitValue(
                offset=offset, metadata=f"@{topic_id}", commit_timestamp=0, topic_id=topic_id
            )
            value = CONSUMER_OFFSETS.encode_value(written, OFFSET_VERSION)
        key = OffsetCommitKey(group="team", topic="passing", partition=0)
        record = Record(self._end, 0, CONSUMER_OFFSETS.encode_key(key), value)
        self.checked.feed([(self._end, record)])
        self._end += 1

    def generation(self, number: int, member_id: str) -> None:
        """A classic generation of one member, which has the partition."""
        topic = assignment.TopicPartition(topic="passing", partitions=[0])
        assigned = assignment.ConsumerProtocolAssignment(assigned_partitions=[topic])
        member = MemberMetadata(
            member_id=member_id, assignment=b"\0\1" + bytes(assigned.to_bytes(1))
        )
        group = GroupMetadataValue(generation=number, members=[member])
        key = CONSUMER_OFFSETS.encode_key(GroupMetadataKey(group="team"))
        record = Record(self._end, 0, key, CONSUMER_OFFSETS.encode_value(group, 3))
        self.checked.feed([(self._end, record)])
        self._end += 1

    def group(self, epoch: int | None) -> None:
        """A coordinator writes the group's epoch, or its end."""
        value = None
        if epoch is not None:
            value = CONSUMER_OFFSETS.encode_value(ConsumerGroupMetadataValue(epoch=epoch), 0)
        key = CONSUMER_OFFSETS.encode_key(ConsumerGroupMetadataKey(group_id="team"))
        self.checked.wrote([Record(0, 0, key, value)])

    def classic_group(self) -> None:
        """A coordinator writes that the group is a classic one."""
        key = CONSUMER_OFFSETS.encode_key(GroupMetadataKey(group="team"))
        value = CONSUMER_OFFSETS.encode_value(GroupMetadataValue(generation=1), 3)
        self.checked.wrote([Record(0, 0, key, value)])


@pytest.mark.parametrize("topic_id", [ZERO_UUID, FIRST])
def test_an_offset_of_one_topic_goes_back_only_when_a_client_asks(topic_id: UUID) -> None:
    log = Log()
    log.offset(20, topic_id)
    log.checked.asked_again[("team", "passing", 0)] = {7}
    log.offset(7, topic_id)
    log.offset(9, topic_id)
    with pytest.raises(Violation, match="offset-went-back"):
        log.offset(8, topic_id)


def test_the_offsets_of_a_topic_that_was_created_again_begin_again() -> None:
    log = Log()
    log.offset(20, FIRST)
    log.offset(4, SECOND)
    log.offset(5, SECOND)
    with pytest.raises(Violation, match="offset-went-back"):
        log.offset(4, SECOND)


@pytest.mark.parametrize("is_removed", [False, True])
def test_no_offset_of_the_topic_before_comes_after_one_of_the_next(is_removed: bool) -> None:
    log = Log()
    log.offset(20, FIRST)
    log.offset(4, SECOND)
    if is_removed:
        log.offset(None)
    with pytest.raises(Violation, match="offset-of-a-topic-before"):
        log.offset(30, FIRST)


def with_a_member() -> tuple[Log, TransactionLedger]:
    """A group with a member of KIP-848 that is not heard from now on."""
    log = Log()
    ledger = TransactionLedger(Counter(), print, lambda: log.now, lambda _topic: SECOND)
    ledger.group_log = log.checked
    place = ("input", 0)
    ledger.owned("team", "late", {place: SECOND}, Patience(3.0, 6.0), None, is_classic=False)
    log.group(1)
    return log, ledger


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_member_may_lose_its_group_when_it_was_silent_for_its_session(has_ended: bool) -> None:
    log, ledger = with_a_member()
    if has_ended:
        log.group(None)
    log.now = 2.9
    assert not ledger.may_be_lost("team", "late", 2.8)
    log.now = 3.1
    assert ledger.may_be_lost("team", "late", 3.0) is has_ended


@pytest.mark.parametrize("is_unreadable", [False, True])
def test_a_heartbeat_finds_no_group_while_one_that_cannot_be_read_has_it(
    is_unreadable: bool,
) -> None:
    log, ledger = with_a_member()
    if is_unreadable:
        log.checked.unreadable.add("team")
    assert not ledger.may_be_lost("team", "late", 4.0, is_heartbeat=True)
    log.group(None)
    log.now = 2.0
    log.classic_group()
    assert not ledger.may_be_lost("team", "late", 2.5, is_heartbeat=True)
    log.now = 4.0
    assert ledger.may_be_lost("team", "late", 3.5, is_heartbeat=True) is is_unreadable
    assert not ledger.may_be_lost("team", "late", 3.5)
    log.group(2)
    assert not ledger.may_be_lost("team", "late", 4.5, is_heartbeat=True)


@pytest.mark.parametrize("has_ended", [False, True])
def test_there_is_no_group_until_it_begins(has_ended: bool) -> None:
    log = Log()
    if has_ended:
        log.group(1)
        assert not log.checked.was_absent("team", 0.1)
        log.group(None)
    assert log.checked.was_absent("team", 0.1)
    log.now = 5.0
    log.group(1)
    log.now = 6.0
    log.group(2)
    assert log.checked.was_absent("team", 5.0)
    assert not log.checked.was_absent("team", 5.5)


@pytest.mark.parametrize("has_left", [False, True])
def test_an_offset_goes_from_under_a_member_only_when_it_has_left(has_left: bool) -> None:
    """The record that the group is empty may have found no room."""
    log = Log()
    log.offset(20, SECOND)
    log.generation(3, "one")
    if has_left:
        log.checked.left.add(("team", "one"))
    with nullcontext() if has_left else pytest.raises(Violation, match="living-group-lost-offset"):
        log.offset(None)


@pytest.mark.parametrize("has_next", [False, True])
@pytest.mark.parametrize("topic_id", [None, FIRST])
def test_an_answer_is_what_was_committed_at_some_time_since_it_was_asked_for(
    topic_id: UUID | None, has_next: bool
) -> None:
    """It may have waited for the commit of what it says, which came together with a removal."""
    log = Log()
    for log.now, offset in ((1.0, 20), (2.0, 25), (3.0, None)):
        log.offset(offset, FIRST)
    if has_next:
        log.now = 4.0
        log.offset(4, SECOND)
    ledger = TransactionLedger(Counter(), print, lambda: log.now, lambda _topic: SECOND)
    ledger.group_log = log.checked

    def is_lawful(offset: int, asked_at: float) -> bool:
        answer = (offset, "" if offset < 0 else f"@{FIRST}")
        place = ("team", "passing", 0)
        try:
            ledger.offset_fetched(place, *answer, asked_at, is_leader=True, topic_id=topic_id)
        except Violation as violation:
            if violation.kind != "offset-is-another":
                raise
            return False
        return True

    for asked_at, lawful in ((1.5, [-1, 20, 25]), (2.5, [-1, 25]), (3.5, [-1])):
        assert [each for each in (-1, 20, 25) if is_lawful(each, asked_at)] == lawful
