"""What became of each record, and what each reader has read, reported and not reported.

Owns the rules of the soak. Must not talk to the cluster. Invariants: a record is stored at one
offset of an incarnation, and all who speak of it name that one; an incarnation is one of the topics
that have had a name, counted from 0. A record may lie in two of them: the acknowledgement of the
first is lost with the topic, and the producer sends it again.

The writer cannot know in which incarnation a record lies. The changer of topics says when it begins
and ends to delete and to create (`Phase`), so that the moments of sending and of acknowledgement
bound it; readers that name the topic's id, and the final log, say it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final
from uuid import UUID

MAX_PROBLEMS: Final = 40
PHASES: Final = 4


class Phase(IntEnum):
    """What happens to an incarnation, in this order. Before LIVE a broker may still write to the
    former one, since not all of them know the new one.
    """

    CREATING = 0
    LIVE = 1
    DELETING = 2
    GONE = 3


class Fate(Enum):
    """What a transaction came to; records outside of one are COMMITTED."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Promise(Enum):
    """How often a reader hands out a record."""

    EXACTLY_ONCE = "exactly once"
    AT_LEAST_ONCE = "at least once"


class Reports(Enum):
    """How a reader reports that a topic was created again."""

    BY_TOPIC = "once per topic"
    BY_PARTITION = "once per partition"
    WHEN_MET = "once, when an offset that it had comes again; others pass for the former topic's"
    BY_DRIVER = "once per driver, until a row of the new topic is stored"
    BY_OFFSET = "once per partition, with the offset from which on nothing of the former is read"
    AT_MOST_ONCE = "at most once: an assignment that ends with the topic has nothing to report"
    NEVER = "it has the id in its rows, and no loss of its own"


@dataclass(slots=True)
class Transaction:
    """One transaction of a writer."""

    fate: Fate = Fate.OPEN


@dataclass(slots=True)
class Topic:
    """A name, and the topics that have had it."""

    name: str
    partition_count: int = 0
    ids: list[UUID] = field(default_factory=list)
    phase: Phase = Phase.GONE

    @property
    def incarnation(self) -> int:
        """The one that the phase is of; -1 before the first."""
        return len(self.ids) - (self.phase is not Phase.CREATING)

    @property
    def moment(self) -> int:
        """Grows with each change of phase."""
        return self.incarnation * PHASES + self.phase


@dataclass(slots=True)
class Record:
    """One record, as its writer sees it."""

    topic: str
    partition: int
    sent_at: int
    transaction: Transaction | None
    acknowledged_at: int | None = None
    offset: int | None = None
    error: str | None = None
    outcome_count: int = 0

    @property
    def fate(self) -> Fate:
        """Whether it is visible."""
        return Fate.COMMITTED if self.transaction is None else self.transaction.fate

    @property
    def first_possible(self) -> int:
        """The earliest incarnation in which it may lie."""
        incarnation, phase = divmod(self.sent_at, PHASES)
        return incarnation - (phase == Phase.CREATING)

    @property
    def last_possible(self) -> int | None:
        """The latest one, None while there is no acknowledgement."""
        return None if self.acknowledged_at is None else self.acknowledged_at // PHASES

    @property
    def incarnation(self) -> int | None:
        """Where it lies, if that is certain."""
        return self.first_possible if self.first_possible == self.last_possible else None


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a reader has handed it out; `topic_id` where the reader knows it, `member` where
    a reader is several.
    """

    topic: str
    partition: int
    offset: int
    topic_id: UUID | None
    number: int
    member: str = ""


@dataclass(frozen=True, slots=True)
class LossReport:
    """A reader says that a topic was created again. None: the reader does not say that.

    Attributes:
        offset: from here on nothing of the former topic is read.
        member: of several that are one reader, or of drivers that follow each other.
    """

    topic: str
    partition: int | None = None
    offset: int | None = None
    topic_id: UUID | None = None
    member: str = ""


Place = tuple[int, int, int]
"""Incarnation, partition, offset."""

Logs = defaultdict[tuple[str, int, int], set[int]]
"""Offsets, by topic, incarnation and partition."""


@dataclass
class Member:
    """What one of a reader's members has reported: each hands out and reports in its own order,
    since each hears of a new topic by itself.
    """

    last_of_topic: dict[str, int] = field(default_factory=dict)
    last_of_partition: dict[tuple[str, int], int] = field(default_factory=dict)
    reported: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    reported_ids: Counter[tuple[str, UUID]] = field(default_factory=Counter)
    reported_before: dict[tuple[str, int | None, int], int] = field(default_factory=dict)


@dataclass
class Reader:
    """One reader's account; events are in the reader's own order. Most have one member."""

    name: str
    promise: Promise
    reports: Reports
    is_committed_only: bool
    events: list[Read | LossReport] = field(default_factory=list)
    checked_count: int = 0
    repeated_count: int = 0
    report_count: int = 0
    unreported_count: int = 0
    seen: defaultdict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    last_offset: dict[tuple[str, int, int], int] = field(default_factory=dict)
    members: defaultdict[str, Member] = field(default_factory=lambda: defaultdict(Member))
    losses: defaultdict[tuple[str, int], list[LossReport]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """The positions by partition, of readers that report BY_OFFSET."""


class Account:
    """The whole run. Writers may call from any thread; everything else is one thread's."""

    def __init__(self, topic_names: Iterable[str]) -> None:
        self.topics = {name: Topic(name) for name in topic_names}
        self.records: dict[int, Record] = {}
        self.readers: dict[str, Reader] = {}
        self.places: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.problems: list[str] = []
        self.problem_count = 0
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    # -- writing --------------------------------------------------------------------------------

    def new(
        self, topic_name: str, partition: int, transaction: Transaction | None
    ) -> tuple[int, Record]:
        """A record that is about to be sent, and its number."""
        with self._lock:
            number = len(self.records)
            topic = self.topics[topic_name]
            record = Record(topic_name, partition, topic.moment, transaction)
            self.records[number] = record
            return number, record

    def told(self, record: Record, offset: int | None, error: BaseException | None) -> None:
        """What the producer says of a record: its offset, or why it failed."""
        with self._lock:
            record.outcome_count += 1
            if error is None:
                record.acknowledged_at = self.topics[record.topic].moment
                record.offset = offset if offset is not None and offset >= 0 else None
            else:
                code = getattr(error, "code", None)
                record.error = type(error).__name__ if code is None else code.name

    def wrong(self, problem: str) -> None:
        """A promise was broken."""
        self.problem_count += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)

    # -- reading --------------------------------------------------------------------------------

    def check_reads(self, reader: Reader) -> None:
        """Judge what the reader has handed out and reported since the last call. All records that
        it may have read have their outcome.
        """
        for event in reader.events[reader.checked_count :]:
            if isinstance(event, LossReport):
                self._take_report(reader, event)
            else:
                self._take_read(reader, event)
        reader.checked_count = len(reader.events)

    def _take_report(self, reader: Reader, report: LossReport) -> None:
        reader.report_count += 1
        member = reader.members[report.member]
        member.reported[report.topic, report.partition] += 1
        if report.partition is not None and report.offset is not None:
            reader.losses[report.topic, report.partition].append(report)
        if report.topic_id is not None:
            member.reported_ids[report.topic, report.topic_id] += 1
            is_again = member.reported_ids[report.topic, report.topic_id] > 1
            if is_again and reader.reports is not Reports.BY_DRIVER:
                self.wrong(f"{reader.name}: {report} is reported again")
            if report.topic_id not in self.topics[report.topic].ids:
                self.wrong(f"{reader.name}: {report} names an id that the topic never had")
        if reader.reports is Reports.NEVER:
            self.wrong(f"{reader.name}: {report}, though it has nothing to report")

    def _take_read(self, reader: Reader, read: Read) -> None:
        what = f"{reader.name}: record {read.number} ({read.topic}-{read.partition}@{read.offset})"
        record = self.records.get(read.number)
        if record is None or (record.topic, record.partition) != (read.topic, read.partition):
            self.wrong(f"{what} is not what was sent: {record}")
            return
        if reader.is_committed_only and record.fate is Fate.ABORTED:
            self.wrong(f"{what} is of an aborted transaction")
        incarnation = self._placed(what, record, read)
        if incarnation is None:
            self.counts["reads of which the incarnation is not known"] += 1
            return
        key = (read.topic, incarnation, read.partition)
        member = reader.members[read.member]
        if incarnation < member.last_of_topic.get(read.topic, -1):
            self.wrong(
                f"{what} is of incarnation {incarnation}, after one of "
                f"{member.last_of_topic[read.topic]}"
            )
        if read.offset <= reader.last_offset.get(key, -1):
            reader.repeated_count += 1
            if reader.promise is Promise.EXACTLY_ONCE:
                self.wrong(f"{what} comes after offset {reader.last_offset[key]}: again, or late")
        self._check_reported(reader, what, read, incarnation)
        member.last_of_topic[read.topic] = incarnation
        member.last_of_partition[read.topic, read.partition] = incarnation
        reader.last_offset[key] = max(read.offset, reader.last_offset.get(key, -1))
        reader.seen[read.topic].add((incarnation, read.partition, read.offset))

    def _placed(self, what: str, record: Record, read: Read) -> int | None:
        """The incarnation in which the record that was read lies; all who speak of it must
        agree.
        """
        incarnation = record.incarnation
        if read.topic_id is not None:
            ids = self.topics[read.topic].ids
            if read.topic_id not in ids:
                self.wrong(f"{what} is said to be of the unknown topic id {read.topic_id}")
                return None
            incarnation = ids.index(read.topic_id)
            last = record.last_possible
            if incarnation < record.first_possible or (last is not None and incarnation > last):
                self.wrong(
                    f"{what} is said to be of incarnation {incarnation}, and was sent and "
                    f"acknowledged in {record.first_possible} to {last}"
                )
        if incarnation is None:
            # What others have said of this offset; if they name two, or none, it stays unknown.
            places = [each for each, at in self.places[read.number].items() if at == read.offset]
            return places[0] if len(places) == 1 else None
        if record.incarnation == incarnation and record.offset not in (None, read.offset):
            self.wrong(f"{what} was acknowledged at offset {record.offset}")
        known = self.places[read.number].setdefault(incarnation, read.offset)
        if known != read.offset:
            self.wrong(f"{what} of incarnation {incarnation} is at {known} for others")
        return incarnation

    def _check_reported(self, reader: Reader, what: str, read: Read, incarnation: int) -> None:
        """Before the first record of another incarnation the reader has reported the change, and
        no more often than there were changes.
        """
        scopes: list[int | None] = {
            Reports.BY_TOPIC: [None],
            Reports.BY_PARTITION: [read.partition],
            Reports.WHEN_MET: [None],
            Reports.BY_DRIVER: [None],
            Reports.BY_OFFSET: [],  # judged by offsets, in whatever order the log says them
            Reports.AT_MOST_ONCE: [None],
            Reports.NEVER: [],
        }[reader.reports]
        member = reader.members[read.member]
        former = member.last_of_partition.get((read.topic, read.partition), incarnation)
        for scope in scopes:
            count = member.reported[read.topic, scope]
            member.reported_before.setdefault((read.topic, scope, incarnation), count)
            if former == incarnation:
                continue
            new = count - member.reported_before.get((read.topic, scope, former), count)
            most = incarnation - former
            if new > most and reader.reports not in (Reports.WHEN_MET, Reports.BY_DRIVER):
                self.wrong(f"{what}: {new} reports of {most} changes from incarnation {former} on")
            if new == 0:
                reader.unreported_count += 1
                last = reader.last_offset.get((read.topic, former, read.partition), -1)
                is_news = reader.reports is Reports.WHEN_MET and read.offset > last
                if reader.reports is not Reports.AT_MOST_ONCE and not is_news:
                    self.wrong(f"{what}: the change from incarnation {former} is not reported")

    # -- what must have been read ---------------------------------------------------------------

    def missing(self, reader: Reader, topic: str, held: Iterable[tuple[int, int, int]]) -> int:
        """How many records of the live topic (partition, offset, number) the reader lacks."""
        incarnation = self.topics[topic].incarnation
        seen = reader.seen[topic]
        return sum((incarnation, partition, offset) not in seen for partition, offset, _ in held)

    def check_held(
        self, topic_name: str, held: list[tuple[int, int, int]], *, all_kinds: bool
    ) -> None:
        """Compare what the live topic holds with what was acknowledged.

        Args:
            held: partition, offset and number of each record, in order.
            all_kinds: those of aborted transactions too.
        """
        topic = self.topics[topic_name]
        incarnation = topic.incarnation
        found: set[int] = set()
        for partition, offset, number in held:
            what = f"the log of {topic_name}-{partition}@{offset} holds record {number}"
            record = self.records.get(number)
            if record is None or (record.topic, record.partition) != (topic_name, partition):
                self.wrong(f"{what}, which is not what was sent: {record}")
                continue
            if number in found:
                self.wrong(f"{what} again")
            found.add(number)
            self._placed(what, record, Read(topic_name, partition, offset, topic.ids[-1], number))
        for number, record in self.records.items():
            if (
                record.topic == topic_name
                and record.incarnation == incarnation
                and (all_kinds or record.fate is Fate.COMMITTED)
                and number not in found
            ):
                self.wrong(f"record {number} was acknowledged in the live {topic_name}: {record}")

    def check_outcomes(self) -> None:
        """Every record has exactly one outcome. All producers have been flushed."""
        for number, record in self.records.items():
            if record.outcome_count != 1:
                self.wrong(f"record {number} has {record.outcome_count} outcomes: {record}")

    def check_gaps(self, reader: Reader) -> None:
        """A reader has everything of each log, dead ones too, up to where it came, and nothing
        was reported twice.
        """
        logs = self._logs()
        for (topic, incarnation, partition), last in reader.last_offset.items():
            offsets = sorted(logs[topic, incarnation, partition])
            for offset in offsets[: bisect_left(offsets, last)]:
                if (incarnation, partition, offset) not in reader.seen[topic]:
                    self.wrong(
                        f"{reader.name}: {topic}-{partition}@{offset} of incarnation {incarnation} "
                        f"was passed over: it has read up to {last}"
                    )
        if reader.reports in (Reports.BY_DRIVER, Reports.BY_OFFSET):
            return
        for name, topic_state in self.topics.items():
            changes = topic_state.incarnation
            for member in reader.members.values():
                for (topic, scope), count in member.reported.items():
                    if topic == name and count > changes:
                        self.wrong(f"{reader.name}: {name}, {scope}: {count} reports of {changes}")

    def check_losses(self, reader: Reader) -> None:
        """Check a reader that reports BY_OFFSET, and has read everything that the live topics hold:
        each change of a partition that it had read is reported, from an offset on below which it
        has everything, and not twice by one driver.

        A loss does not say of which incarnation it is. Losses are reported in the order of
        incarnations; so they are wrong when they cannot be shared out to them.
        """
        if reader.reports is not Reports.BY_OFFSET:
            return
        logs = self._logs()
        partitions = {(topic, partition) for topic, _, partition in reader.last_offset}
        for topic, partition in sorted(partitions | reader.losses.keys()):
            incarnations = self._unread(reader, logs, topic, partition)
            losses = reader.losses[topic, partition]
            told_count = share_out(losses, incarnations)
            if told_count is not None:
                self.wrong(
                    f"{reader.name}: {topic}-{partition}: what is told does not fit what was read, "
                    f"from loss {told_count} on, {losses[max(0, told_count - 2) :][:4]} of "
                    f"{len(losses)}; by incarnation: read or not, first offset not read: "
                    f"{list(enumerate(incarnations))[-8:]}"
                )

    def _unread(
        self, reader: Reader, logs: Logs, topic: str, partition: int
    ) -> list[tuple[bool, int | None]]:
        """For each former incarnation of a partition: whether the reader has read of it, and the
        first offset known that it has not.
        """
        seen = reader.seen[topic]
        found = []
        for incarnation in range(self.topics[topic].incarnation):
            place = (topic, incarnation, partition)
            unread = [at for at in logs[place] if (incarnation, partition, at) not in seen]
            found.append((place in reader.last_offset, min(unread, default=None)))
        return found

    def _logs(self) -> Logs:
        """The offsets that are known of all logs that there ever were, of visible records."""
        logs: Logs = defaultdict(set)
        for number, record in self.records.items():
            if record.fate is not Fate.COMMITTED:
                continue
            for incarnation, offset in self.places[number].items():
                logs[record.topic, incarnation, record.partition].add(offset)
            if record.incarnation is not None and record.offset is not None:
                logs[record.topic, record.incarnation, record.partition].add(record.offset)
        return logs


def share_out(losses: list[LossReport], incarnations: list[tuple[bool, int | None]]) -> int | None:
    """Whether the losses of a partition can be of its incarnations, in this order.

    One that was read has at least one loss; one member reports an incarnation once; and
    what was not read lies at or after the lowest offset that is named.

    Args:
        incarnations: whether it was read, and the first offset that was not.

    Returns:
        None when they can, else how many of the losses can at most.
    """
    possible = {0}
    """So many of the losses may be of the incarnations so far."""
    most = 0
    for was_read, unread in incarnations:
        following = set() if was_read else set(possible)
        for begin in possible:
            told: set[str] = set()
            lowest: int | None = None
            for end in range(begin, len(losses)):
                loss = losses[end]
                if loss.offset is None or loss.member in told:
                    break
                told.add(loss.member)
                lowest = loss.offset if lowest is None else min(lowest, loss.offset)
                if not was_read or unread is None or unread >= lowest:
                    following.add(end + 1)
        most = max(most, max(possible, default=0))
        possible = following
    return None if len(losses) in possible else max(most, max(possible, default=0))
