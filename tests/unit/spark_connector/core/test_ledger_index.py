"""Which records of a ledger topic are whose, and which queries are known where."""

from __future__ import annotations

import pytest

from moldau.spark_connector.core.ledger import (
    Batch,
    BatchState,
    LedgerIndex,
    LedgerUnreadable,
    SinkRecord,
    encode,
    finished_key,
)


def batch(query_id: str, number: int = 0) -> Batch:
    return Batch(query_id, number, BatchState.DONE, 1, 1)


def took(*records: tuple[str, Batch | None]) -> LedgerIndex:
    """An index of these: the keys, and what is under each."""
    index = LedgerIndex()
    for offset, (key, found) in enumerate(records):
        index.take(key.encode(), encode(SinkRecord("s", "token", found)), offset)
    return index


def test_the_newest_record_of_each_key_counts() -> None:
    index = took(("s", None), ("s2", batch("other")), ("s", batch("q", 1)), ("s", batch("q", 2)))
    record = index.record("s")
    assert record is not None
    assert record.batch == batch("q", 2)
    assert index.record("nobody") is None
    assert index.sink_ids() == ["s", "s2"]
    index.take(b"s", None)
    assert index.record("s") is None


def test_of_many_streams_the_newest_are_listed_and_all_are_found() -> None:
    keys = [finished_key("s", f"q{number}") for number in range(4)]
    index = took(
        *((key, batch(f"q{number}")) for number, key in enumerate(keys)),
        (keys[0], batch("q0", 9)),
        (finished_key("s", "txn:a"), batch("txn:a")),
        (finished_key("s2", "q9"), batch("q9")),
    )
    assert index.streams("s", 9) == (
        {"q1": batch("q1"), "q2": batch("q2"), "q3": batch("q3"), "q0": batch("q0", 9)},
        True,
    )
    assert index.streams("s", 2) == ({"q3": batch("q3"), "q0": batch("q0", 9)}, False)
    assert index.finished("s", "q1") == batch("q1")
    assert index.finished("s", "txn:a") == batch("txn:a")
    assert index.finished("s", "q9") is None


def test_a_query_is_found_under_every_other_sink() -> None:
    index = took(
        ("s", batch("q", 7)),
        ("one", batch("q", 1)),
        ("two", batch("other")),
        (finished_key("two", "q"), batch("q", 2)),
        ("three", batch("another", 3)),
        ("four", batch("q and more", 4)),
    )
    assert index.elsewhere("s", "q") == [("one", batch("q", 1)), ("two", batch("q", 2))]
    assert index.elsewhere("one", "other") == [("two", batch("other"))]
    assert index.elsewhere("s", "nobody") == []


def test_what_another_sink_has_written_need_not_be_understood() -> None:
    index = took(("s", batch("q")))
    index.take(b"new", b'{"version": 9}', 41)
    index.take(b"\xff", b"no sink's")
    assert index.record("s") is not None
    assert index.elsewhere("s", "q") == []
    with pytest.raises(LedgerUnreadable, match="offset 41, sink 'new': it has version 9"):
        index.record("new")


def test_the_size_is_that_of_what_is_kept() -> None:
    index = took(("s", batch("q")), (finished_key("s", "q2"), batch("q2")))
    size_bytes = index.size_bytes
    for _ in range(3):
        index.take(b"s", encode(SinkRecord("s", "token", batch("q"))))
    assert index.size_bytes == size_bytes > 0
    index.take(b"s", None)
    index.take(finished_key("s", "q2").encode(), None)
    index.take(finished_key("s", "q2").encode(), None)
    assert (index.size_bytes, index.sink_ids()) == (0, [])


def test_all_keys_of_a_sink() -> None:
    index = took(("s", batch("q")), ("s2", None), (finished_key("s", "q2"), batch("q2")))
    assert [key for key, _ in index.values("s")] == ["s", finished_key("s", "q2")]
    assert list(index.values("nobody")) == []
