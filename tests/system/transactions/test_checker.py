"""The checker finds every kind of anomaly in a history that has it, and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from tests.system.transactions.checker import check
from tests.system.transactions.findings import KINDS
from tests.system.transactions.history import (
    ConsumerHistory,
    History,
    Log,
    OffsetCommit,
    OffsetRead,
    Outcome,
    Placed,
    Poll,
    Seen,
    Send,
    Transaction,
)

A, B, OUT = Log("a", 0), Log("b", 0), Log("out", 0)
COMMITTED, ABORTED, UNKNOWN = Outcome.COMMITTED, Outcome.ABORTED, Outcome.UNKNOWN
GROUP: Final = "group"


class Tale:
    """A small history, written by hand; every call comes after the one before it."""

    def __init__(self) -> None:
        self.history = History()
        self.values: dict[Log, dict[int, str]] = {A: {}, B: {}, OUT: {}}

    def transaction(
        self,
        *sends: tuple[Log, int | None],
        outcome: Outcome = COMMITTED,
        process: str = "w",
        commits: tuple[OffsetCommit, ...] = (),
        sources: tuple[tuple[Log, int], ...] = (),
    ) -> Transaction:
        """Sends to these offsets (None: not reported), and ends; visible when committed."""
        history = self.history
        made = history.transaction(process, f"id-of-{process[0]}")
        for number, (log, offset) in enumerate(sends):
            send = Send(log, history.value_of(made), history.now(), history.now(), offset)
            send.source = sources[number] if sources else None
            made.sends.append(send)
            if outcome is COMMITTED and offset is not None:
                self.values[log][offset] = send.value
        made.commits.extend(commits)
        if outcome is not ABORTED:
            made.commit_began = history.now()
        made.outcome, made.ended = outcome, history.now()
        return made

    def shown(self, transaction: Transaction, *numbers: int) -> None:
        """These of its sends are visible, at the offsets that were reported."""
        for number in numbers:
            send = transaction.sends[number]
            assert send.offset is not None
            self.values[send.log][send.offset] = send.value

    def poll(self, log: Log, *offsets: int, during: Transaction | None = None) -> None:
        """The one consumer gets what is visible there now."""
        if not self.history.consumers:
            self.history.consumer("reader", is_committed_only=True)
        seen = [Seen(offset, self.values[log][offset]) for offset in offsets]
        began, number = self.history.now(), during.number if during else None
        step = Poll(began, self.history.now(), {log: seen}, number)
        self.history.consumers[0].steps.append(step)

    def placed(self, log: Log, position: int | None) -> None:
        """The one consumer is somewhere else."""
        self.history.consumers[0].steps.append(Placed(self.history.now(), {log: position}))

    def member(self, name: str) -> ConsumerHistory:
        """The consumer of a member of the group, which is its transactions' process too."""
        known = {each.name: each for each in self.history.consumers}
        return known.get(name) or self.history.consumer(name, is_committed_only=True)

    def gives(self, name: str, *logs: Log) -> None:
        """The group gives partitions to a member."""
        placed = Placed(self.history.now(), dict.fromkeys(logs), owns=True)
        self.member(name).steps.append(placed)

    def takes(self, name: str, *logs: Log) -> None:
        """The group takes partitions from a member."""
        placed = Placed(self.history.now(), dict.fromkeys(logs), owns=False)
        self.member(name).steps.append(placed)

    def asks(self, name: str, log: Log, first: int, next_offset: int) -> Transaction:
        """A member asks the coordinator to take its offsets."""
        commits = (consumed(log, first, next_offset),)
        made = self.transaction(commits=commits, process=name, outcome=ABORTED)
        made.offsets_began = self.history.now()
        return made

    def offsets(self, name: str, log: Log, first: int, next_offset: int) -> None:
        """The coordinator takes a member's offsets."""
        self.asks(name, log, first, next_offset).offsets_ended = self.history.now()

    def told(self, log: Log, offset: int | None) -> None:
        """The group's committed offset is asked for."""
        began = self.history.now()
        self.history.offset_reads.append(OffsetRead(GROUP, log, offset, began, self.history.now()))

    def opened(self, process: str) -> None:
        """A process becomes the owner of its id."""
        with self.history.opening(f"id-of-{process[0]}", process):
            pass

    def kinds(self) -> set[str]:
        """What is found when the logs hold what is visible."""
        final = self.history.final
        for log, values in self.values.items():
            final.records[log] = [Seen(*each) for each in sorted(values.items())]
            final.ends.setdefault(log, 100)
        findings = check(self.history)
        print(findings.details(self.history))
        return findings.kinds()


def consumed(log: Log, first: int, next_offset: int) -> OffsetCommit:
    return OffsetCommit(GROUP, log, first, next_offset)


Told = Callable[[Tale], None]
TALES: list[tuple[str, Told, set[str]]] = []


def tale(*kinds: str) -> Callable[[Told], Told]:
    """Registers a tale with exactly what is to be found in it."""

    def register(function: Told) -> Told:
        TALES.append((function.__name__, function, set(kinds)))
        return function

    return register


@tale()
def all_is_well(told: Tale) -> None:
    told.transaction((A, 0), (B, 0))
    told.transaction((A, 2), outcome=ABORTED)
    told.transaction((A, 4), (B, 2), (A, 5))
    told.poll(A, 0, 4)
    told.poll(A, 5)
    told.poll(B, 0, 2)


@tale()
def unknown_and_not_there(told: Tale) -> None:
    told.transaction((A, 0), (B, None), outcome=UNKNOWN, commits=(consumed(B, 0, 9),))
    told.told(B, 0)


@tale()
def unknown_and_there(told: Tale) -> None:
    made = told.transaction((A, 0), (B, 0), outcome=UNKNOWN, commits=(consumed(OUT, 0, 9),))
    told.shown(made, 0, 1)
    told.told(OUT, 9)


@tale()
def unknown_without_records_may_have_consumed(told: Tale) -> None:
    told.transaction((A, 0))
    told.transaction(outcome=UNKNOWN, commits=(consumed(A, 0, 2),))
    told.told(A, 2)
    told.told(A, 2)


@tale()
def not_read_to_the_end(told: Tale) -> None:
    told.transaction((A, 7), (B, None))
    told.values[A].clear()
    told.history.final.ends[A] = 7
    del told.values[B]


@tale("lost-write")
def committed_and_gone(told: Tale) -> None:
    told.transaction((A, 0))
    told.values[A].clear()


@tale("lost-write")
def committed_without_offset_and_gone(told: Tale) -> None:
    told.transaction((A, None))


@tale("lost-write")
def seen_and_gone(told: Tale) -> None:
    made = told.transaction((A, 0), outcome=UNKNOWN)
    told.shown(made, 0)
    told.poll(A, 0)
    told.values[A].clear()


@tale("lost-write", "torn-transaction")
def committed_in_part(told: Tale) -> None:
    told.transaction((A, 0), (B, 0))
    told.values[B].clear()


@tale("torn-transaction")
def unknown_in_part(told: Tale) -> None:
    made = told.transaction((A, 0), (B, 0), outcome=UNKNOWN)
    told.shown(made, 1)


@tale("torn-transaction", "unprocessed")
def outputs_without_offsets(told: Tale) -> None:
    told.transaction((A, 0), (A, 1))
    told.history.final.pipelines[GROUP] = ("out",)
    commits = (consumed(A, 0, 1),)
    told.transaction((OUT, 1), sources=((A, 1),), commits=commits, process="p")
    told.told(A, 1)


@tale("duplicate")
def twice_in_one_log(told: Tale) -> None:
    made = told.transaction((A, 0))
    told.values[A][3] = made.sends[0].value


@tale("duplicate")
def not_where_it_was_told(told: Tale) -> None:
    made = told.transaction((A, 0))
    told.values[A] = {1: made.sends[0].value}


@tale("inconsistent-offset", "lost-write")
def acknowledged_where_another_one_is(told: Tale) -> None:
    first = told.transaction((A, 0))
    told.transaction((A, 0), process="v", outcome=ABORTED)
    told.transaction((A, 0), process="u")
    assert told.values[A][0] != first.sends[0].value


@tale("inconsistent-offset", "lost-write")
def a_read_value_changes(told: Tale) -> None:
    told.transaction((A, 0))
    told.poll(A, 0)
    told.transaction((A, 0), process="v")


@tale("invented")
def nobody_sent_it(told: Tale) -> None:
    told.values[A][0] = "w/9/9"


@tale("invented", "lost-write")
def it_is_in_another_log(told: Tale) -> None:
    made = told.transaction((A, 0))
    told.values[A].clear()
    told.values[B][0] = made.sends[0].value


@tale("aborted-read")
def aborted_and_polled(told: Tale) -> None:
    made = told.transaction((A, 0), outcome=ABORTED)
    told.shown(made, 0)
    told.poll(A, 0)
    told.values[A].clear()


@tale("aborted-read")
def aborted_and_there_in_the_end(told: Tale) -> None:
    told.shown(told.transaction((A, 0), outcome=ABORTED), 0)


@tale("aborted-read")
def asked_to_commit_and_then_aborted(told: Tale) -> None:
    made = told.transaction((A, 0), outcome=UNKNOWN)
    made.outcome = ABORTED
    told.shown(made, 0)


@tale("precommitted-read")
def read_before_anybody_committed(told: Tale) -> None:
    made = told.transaction((A, 0))
    told.poll(A, 0)
    made.commit_began, made.ended = told.history.now(), told.history.now()


@tale()
def read_between_asking_and_being_told(told: Tale) -> None:
    made = told.transaction((A, 0))
    told.poll(A, 0)
    made.ended = told.history.now()


@tale("nonmonotonic-send")
def a_later_transaction_lies_before(told: Tale) -> None:
    told.transaction((A, 5))
    told.transaction((A, 2))


@tale("internal-nonmonotonic-send", "nonmonotonic-send")
def a_later_record_lies_before(told: Tale) -> None:
    told.transaction((A, 5), (A, 2))


@tale("internal-nonmonotonic-send")
def a_later_record_lies_before_while_both_were_on_their_way(told: Tale) -> None:
    made = told.transaction((A, 5), (A, 2))
    for send in made.sends:
        send.ended = told.history.now()


@tale("nonmonotonic-send")
def another_producer_writes_into_the_past(told: Tale) -> None:
    told.transaction((A, 5), outcome=ABORTED)
    told.transaction((A, 2), process="v")


@tale()
def two_producers_at_the_same_time(told: Tale) -> None:
    first = told.transaction((A, 5), outcome=ABORTED)
    told.transaction((A, 2), process="v")
    first.sends[0].ended = told.history.now()


@tale("nonmonotonic-poll")
def polled_again(told: Tale) -> None:
    told.transaction((A, 0), (A, 1))
    told.poll(A, 0, 1)
    told.poll(A, 1)


@tale("internal-nonmonotonic-poll")
def polled_again_in_one_transaction(told: Tale) -> None:
    made = told.transaction((A, 0), (A, 1))
    told.poll(A, 1, 0, during=made)


@tale()
def polled_again_after_a_seek(told: Tale) -> None:
    told.transaction((A, 0), (A, 1), (A, 2))
    told.poll(A, 0, 1)
    told.placed(A, 1)
    told.poll(A, 1)
    told.placed(A, None)
    told.poll(A, 0)


@tale("skipped")
def went_over_a_record(told: Tale) -> None:
    told.transaction((A, 0), (A, 1), (A, 2))
    told.poll(A, 0)
    told.poll(A, 2)


@tale("skipped")
def began_behind_where_it_was_placed(told: Tale) -> None:
    told.transaction((A, 0), (A, 1), (A, 2))
    told.poll(A, 0)
    told.placed(A, 1)
    told.poll(A, 2)


@tale("offset-went-back")
def told_less_than_before(told: Tale) -> None:
    told.told(A, 4)
    told.told(A, 3)


@tale("offset-went-back")
def forgotten(told: Tale) -> None:
    told.told(A, 4)
    told.told(A, None)


@tale("offset-went-back")
def told_less_than_was_committed(told: Tale) -> None:
    told.transaction((B, 0), commits=(consumed(A, 0, 4),))
    told.told(A, 3)


@tale("offset-went-back", "reprocessed")
def committed_less_than_before(told: Tale) -> None:
    told.transaction((A, 0), (A, 1), (A, 2))
    told.transaction(commits=(consumed(A, 0, 3),), process="p")
    told.transaction(commits=(consumed(A, 0, 2),), process="p")


@tale()
def told_while_it_was_committed(told: Tale) -> None:
    made = told.transaction(commits=(consumed(A, 0, 4),))
    told.told(A, None)
    made.ended = told.history.now()
    told.told(A, 4)


@tale("reprocessed")
def consumed_twice(told: Tale) -> None:
    told.transaction((A, 0), (A, 1), (A, 2))
    told.transaction(commits=(consumed(A, 0, 2),), process="p")
    told.transaction(commits=(consumed(A, 1, 3),), process="q")


@tale()
def only_markers_consumed_twice(told: Tale) -> None:
    told.transaction((A, 0), (A, 4))
    told.transaction(commits=(consumed(A, 0, 3),), process="p")
    told.transaction(commits=(consumed(A, 1, 5),), process="q")


@tale("reprocessed")
def two_outputs_of_one_record(told: Tale) -> None:
    told.transaction((A, 0))
    for process, offset in (("p", 0), ("q", 1)):
        told.transaction((OUT, offset), sources=((A, 0),), process=process)


@tale("unprocessed")
def consumed_with_a_gap(told: Tale) -> None:
    told.transaction((A, 0), (A, 1), (A, 2))
    told.transaction(commits=(consumed(A, 0, 1),), process="p")
    told.transaction(commits=(consumed(A, 2, 3),), process="q")


@tale("unprocessed")
def offsets_of_an_aborted_transaction(told: Tale) -> None:
    told.transaction((A, 0), (A, 1))
    told.transaction(commits=(consumed(A, 0, 2),), process="p", outcome=ABORTED)
    told.told(A, 2)


@tale("unprocessed")
def offsets_without_outputs(told: Tale) -> None:
    told.transaction((A, 0), (A, 1))
    told.history.final.pipelines[GROUP] = ("out",)
    commits = (consumed(A, 0, 2),)
    told.transaction((OUT, 0), sources=((A, 0),), commits=commits, process="p")
    told.told(A, 2)


@tale("shared-partition")
def two_members_have_one_partition(told: Tale) -> None:
    told.gives("p", A, B)
    told.gives("q", A)
    told.offsets("q", A, 0, 1)
    told.offsets("p", A, 0, 2)


@tale("shared-partition")
def given_while_another_still_has_it(told: Tale) -> None:
    told.gives("p", A)
    told.offsets("p", A, 0, 1)
    told.takes("p", B)
    told.gives("q", A)
    told.offsets("q", A, 1, 2)
    told.offsets("p", A, 1, 3)


@tale()
def one_member_after_the_other(told: Tale) -> None:
    told.gives("p", A, B)
    told.offsets("p", A, 0, 1)
    told.takes("p", A)
    told.gives("q", A)
    told.offsets("q", A, 1, 2)
    told.offsets("p", B, 0, 1)
    told.takes("q", A)
    told.gives("p", A)
    told.offsets("p", A, 2, 3)


@tale()
def expelled_without_knowing(told: Tale) -> None:
    told.gives("p", A)
    told.offsets("p", A, 0, 1)
    told.gives("q", A)
    told.offsets("q", A, 1, 2)
    told.asks("p", A, 1, 2)
    told.takes("p", A)


@tale()
def told_late_of_what_it_had_lost(told: Tale) -> None:
    told.gives("p", A)
    told.offsets("p", A, 0, 1)
    told.gives("q", A)
    told.offsets("p", A, 1, 2)
    told.takes("q", A)


@tale()
def taken_while_another_asks(told: Tale) -> None:
    told.gives("p", A)
    made = told.asks("q", A, 0, 1)
    told.gives("q", A)
    told.offsets("p", A, 0, 1)
    made.offsets_ended = told.history.now()


@tale("zombie")
def the_old_owner_commits(told: Tale) -> None:
    told.opened("z1")
    made = told.transaction((A, 0), process="z1")
    told.opened("z2")
    made.commit_began, made.ended = told.history.now(), told.history.now()


@tale("zombie")
def the_old_owner_writes(told: Tale) -> None:
    told.opened("z1")
    told.opened("z2")
    told.transaction((A, 0), process="z1", outcome=ABORTED)


@tale()
def the_old_owner_was_as_fast(told: Tale) -> None:
    told.opened("z1")
    told.transaction((A, 0), process="z1")
    made = told.transaction((A, 2), process="z1", outcome=UNKNOWN)
    told.opened("z2")
    told.shown(made, 0)
    told.transaction((A, 4), process="z2")


@pytest.mark.parametrize(("told", "kinds"), [row[1:] for row in TALES], ids=[t[0] for t in TALES])
def test_exactly_what_is_wrong_is_found(told: Told, kinds: set[str]):
    story = Tale()
    told(story)
    assert story.kinds() == kinds


def test_every_kind_has_a_tale():
    assert {kind for _, _, kinds in TALES for kind in kinds} == KINDS.keys()
