"""What a replica's log says that was away while markers were removed, batch by batch."""

from __future__ import annotations

from moldau.protocol.records import Record
from tests.simulation.transactions.compaction import CompactedLogs, meaning_of
from tests.simulation.transactions.contents import Content

LOG = "__consumer_offsets-0"
PRODUCER = 1001


def data(offset: int, value: bytes) -> Content:
    """A batch of one record in a transaction; its key is its offset."""
    record = Record(offset, 0, b"%d" % offset, value)
    return Content(offset, 0, PRODUCER, 0, True, (record,), None, 0.0)


def end(offset: int, *, commits: bool) -> Content:
    """A marker."""
    return Content(offset, 0, PRODUCER, 0, True, (), (commits, 0), 0.0)


FIRST, SECOND = data(0, b"first"), data(2, b"second")
ABORT, COMMIT = end(1, commits=False), end(3, commits=True)
WRITTEN = [FIRST, ABORT, SECOND, COMMIT]


def as_missed(
    removed: list[Content], found: list[Content], written: list[Content] = WRITTEN
) -> list[Content]:
    """What was written as that log may say it, when another's compaction has removed those."""
    logs = CompactedLogs()
    logs.compacted(LOG, written, [each for each in written if each not in removed])
    return logs.without_missed_ends(LOG, written, found)


def test_a_transaction_is_open_where_its_marker_was_missed():
    seen = as_missed(WRITTEN, [FIRST])
    assert meaning_of(seen) == meaning_of([FIRST])
    assert meaning_of(seen).open == {PRODUCER: {b"0": (0, b"first")}}


def test_the_next_marker_decides_what_the_missed_one_would_have():
    seen = as_missed([FIRST, ABORT], [FIRST, SECOND, COMMIT])
    assert seen == [FIRST, SECOND, COMMIT]
    assert meaning_of(seen).settled == {b"0": (0, b"first"), b"2": (2, b"second")}


def test_of_a_transaction_without_its_end_only_what_compaction_left_is_read():
    written = [FIRST, SECOND, COMMIT]
    assert meaning_of(as_missed(written, [SECOND], written)) == meaning_of([SECOND])


def test_a_marker_that_no_compaction_removed_must_be_there():
    assert as_missed([], [FIRST, SECOND, COMMIT]) == WRITTEN


def test_a_marker_whose_transaction_is_gone_has_decided():
    assert as_missed([FIRST, ABORT], [SECOND, COMMIT]) == WRITTEN


def test_a_marker_that_this_log_has_decides_whatever_another_has_removed():
    assert as_missed(WRITTEN, WRITTEN) == WRITTEN
