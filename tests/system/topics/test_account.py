"""The account finds what it has to find; without it the soak would say nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

import pytest

from moldau.client.errors import DeliveryTimeout
from tests.system.topics.account import (
    Account,
    Fate,
    LossReport,
    Phase,
    Promise,
    Read,
    Reader,
    Reports,
    Transaction,
)

FORMER, NEW = UUID(int=1), UUID(int=2)
TOPIC = "t"


class Story:
    """A topic with four records, that is created again, and gets three more; one reader of it, who
    has read three of the former ones. `events` may be spoilt before `check`.
    """

    def __init__(self, reports: Reports = Reports.BY_TOPIC) -> None:
        self.account = Account([TOPIC])
        self.topic = self.account.topics[TOPIC]
        self.reader = Reader("reader", Promise.EXACTLY_ONCE, reports, True)
        self.held: list[tuple[int, int, int]] = []
        self._live(FORMER)
        former = [self._read(offset, FORMER) for offset in range(4)][:3]
        self.topic.phase = Phase.DELETING
        self.topic.phase = Phase.GONE
        self.topic.phase = Phase.CREATING
        self._live(NEW)
        self.held.clear()
        report = LossReport(TOPIC, topic_id=NEW)
        self.events: list[Read | LossReport] = [
            *former,
            report,
            *(self._read(offset, NEW) for offset in range(3)),
        ]

    def _live(self, topic_id: UUID) -> None:
        self.topic.ids.append(topic_id)
        self.topic.partition_count = 1
        self.topic.phase = Phase.LIVE

    def _read(self, offset: int, topic_id: UUID) -> Read:
        number, record = self.account.new(TOPIC, 0, None)
        self.account.told(record, offset, None)
        self.held.append((0, offset, number))
        return Read(TOPIC, 0, offset, topic_id, number)

    def first_of_the_new_topic(self, offset: int) -> Read:
        """A read of one more of its records, whatever came before."""
        return self._read(offset, NEW)

    def check(self) -> int:
        """How many promises were broken."""
        account, reader = self.account, self.reader
        account.check_outcomes()
        account.check_held(TOPIC, self.held, all_kinds=True)
        reader.events += self.events
        account.check_reads(reader)
        account.check_gaps(reader)
        return account.problem_count + account.missing(reader, TOPIC, self.held)


def test_what_the_rules_allow_is_not_found():
    story = Story()
    assert story.check() == 0, story.account.problems
    assert story.reader.report_count == 1


def _lost(story: Story) -> None:
    story.events.pop()


def _passed_over(story: Story) -> None:
    del story.events[1]


def _passed_over_after_the_change(story: Story) -> None:
    del story.events[4]


def _doubled(story: Story) -> None:
    story.events.append(story.events[-1])


def _former_after_new(story: Story) -> None:
    story.events.append(story.events.pop(2))


def _reported_late(story: Story) -> None:
    story.events.append(story.events.pop(3))


def _not_reported(story: Story) -> None:
    del story.events[3]


def _reported_twice(story: Story) -> None:
    story.events.insert(3, story.events[3])


def _said_to_be_of_the_former(story: Story) -> None:
    read = story.events[-1]
    assert isinstance(read, Read)
    story.events[-1] = replace(read, topic_id=FORMER)


def _from_another_place(story: Story) -> None:
    read = story.events[-1]
    assert isinstance(read, Read)
    story.events[-1] = replace(read, offset=read.offset + 1)


def _aborted(story: Story) -> None:
    read = story.events[-1]
    assert isinstance(read, Read)
    story.account.records[read.number].transaction = Transaction(Fate.ABORTED)


def _not_in_the_log(story: Story) -> None:
    story.held.pop()


def _twice_in_the_log(story: Story) -> None:
    partition, offset, number = story.held[-1]
    story.held.append((partition, offset + 1, number))


def _told_twice(story: Story) -> None:
    story.account.told(story.account.records[0], None, DeliveryTimeout("too late"))


@pytest.mark.parametrize(
    "spoil",
    [
        *(_lost, _passed_over, _passed_over_after_the_change, _doubled, _former_after_new),
        *(_reported_late, _not_reported, _reported_twice, _said_to_be_of_the_former),
        *(_from_another_place, _aborted, _not_in_the_log, _twice_in_the_log, _told_twice),
    ],
)
def test_the_account_finds(spoil: Callable[[Story], None]):
    story = Story()
    spoil(story)
    assert story.check() > 0


def test_a_record_may_lie_in_two_incarnations_when_it_was_sent_again():
    """Its first acknowledgement was lost with the topic."""
    story = Story()
    number, record = story.account.new(TOPIC, 0, None)
    record.sent_at = Phase.LIVE  # of the former topic
    story.account.told(record, 3, None)
    story.held.append((0, 3, number))
    story.events.insert(3, Read(TOPIC, 0, 4, FORMER, number))
    story.events.insert(3, Read(TOPIC, 0, 3, FORMER, 3))
    story.events.append(Read(TOPIC, 0, 3, NEW, number))
    assert story.check() == 0, story.account.problems


@pytest.mark.parametrize(("offset", "is_found"), [(0, True), (2, True), (3, False)])
def test_a_store_without_topic_ids_meets_a_new_topic_at_an_offset_it_had(
    offset: int, is_found: bool
):
    story = Story(Reports.WHEN_MET)
    former = story.events[:3]
    story.events = [*former, story.first_of_the_new_topic(offset)]
    story.check()
    assert any("is not reported" in each for each in story.account.problems) == is_found


def test_members_of_a_group_hear_of_a_new_topic_each_by_itself():
    story = Story(Reports.AT_MOST_ONCE)
    story.reader.promise = Promise.AT_LEAST_ONCE
    *former, report, first, second, third = story.events
    assert isinstance(report, LossReport)
    both = [replace(each, member="0") for each in (*former, report, first)]
    story.events = [*both, replace(report, member="1"), Read(TOPIC, 0, 3, FORMER, 3, "1")]
    story.events += [replace(each, member="1") for each in (second, third)]
    assert story.check() == 0, story.account.problems
    story.events.insert(5, replace(report, member="0"))
    assert story.check() > 0


class Stream(Story):
    """The same for a stream that says from which offset on nothing is read."""

    def __init__(self) -> None:
        super().__init__(Reports.BY_OFFSET)
        del self.events[3]
        self.told(3, "planner 1")

    def told(self, offset: int, member: str) -> None:
        """A loss; that it comes behind reads says nothing."""
        self.events.append(LossReport(TOPIC, 0, offset, member=member))

    def check(self) -> int:
        found = super().check()
        self.account.check_losses(self.reader)
        return max(found, self.account.problem_count)


def test_a_stream_reports_where_the_former_topic_ends_for_it():
    stream = Stream()
    assert stream.check() == 0, stream.account.problems


def test_a_driver_that_follows_may_tell_again():
    stream = Stream()
    stream.told(3, "planner 2")
    assert stream.check() == 0, stream.account.problems


def test_a_task_reports_the_rest_of_its_range():
    stream = Stream()
    stream.events.insert(3, LossReport(TOPIC, 0, 3, member="task 1"))
    stream.events[-1] = LossReport(TOPIC, 0, 4, member="planner 1")
    assert stream.check() == 0, stream.account.problems


def _stream_tells_nothing(stream: Stream) -> None:
    stream.events.pop()


def _stream_tells_twice(stream: Stream) -> None:
    stream.told(3, "planner 1")


def _stream_tells_too_late_an_offset(stream: Stream) -> None:
    stream.events[-1] = LossReport(TOPIC, 0, 4, member="planner 1")


@pytest.mark.parametrize(
    "spoil", [_stream_tells_nothing, _stream_tells_twice, _stream_tells_too_late_an_offset]
)
def test_the_account_finds_of_a_stream(spoil: Callable[[Stream], None]):
    stream = Stream()
    spoil(stream)
    assert stream.check() > 0
