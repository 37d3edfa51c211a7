"""The table of keys' newest offsets, in both forms."""

from __future__ import annotations

import random

import pytest

from moldau.protocol.records import Record, RecordColumns, decode_columns, encode_batch
from moldau.protocol.records import _implementation as implementation
from moldau.storage.cleaner.offset_map import (
    DROP,
    KEEP,
    KEEP_TOMBSTONE,
    SLOT_BYTES,
    OffsetMap,
)

SEED = bytes(range(16))


@pytest.fixture(params=["native", "pure Python"], autouse=True)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "native" and implementation.native is None:
        pytest.skip("the native codec is not built")
    if request.param != "native":
        monkeypatch.setattr(implementation, "native", None)
    return str(request.param)


def columns(*rows: tuple[bytes | None, bytes | None], base_offset: int = 0) -> RecordColumns:
    records = [Record(n, 0, key, value) for n, (key, value) in enumerate(rows)]
    return decode_columns(encode_batch(records, base_offset=base_offset))


def test_the_newest_offset_of_each_key() -> None:
    table = OffsetMap(1 << 20, 100, 0.9, SEED)
    rows = columns((b"a", b"1"), (b"b", None), (b"a", b"2"), (None, b"x"), (b"", b"y"))
    assert table.put(rows, 0) == 5
    assert (table.count, table.find(b"a"), table.find(b"b"), table.find(b"")) == (3, 2, 1, 4)
    assert table.find(b"c") == -1
    assert list(table.judge(rows, 4)) == [DROP, KEEP_TOMBSTONE, KEEP, DROP, KEEP]
    # What the table does not tell of stays.
    assert list(table.judge(rows, 1)) == [DROP, KEEP_TOMBSTONE, KEEP, KEEP, KEEP]
    assert list(table.judge(columns((b"new", b"1")), 0)) == [KEEP]


def test_rows_before_the_first_offset_are_not_noted() -> None:
    table = OffsetMap(1 << 20, 100, 0.9, SEED)
    rows = columns((b"a", b"1"), (b"b", b"2"), (b"c", b"3"), base_offset=10)
    assert table.put(rows, 11) == 3
    assert [table.find(key) for key in (b"a", b"b", b"c")] == [-1, 11, 12]


def test_a_full_table_says_how_far_it_came() -> None:
    table = OffsetMap(SLOT_BYTES * 7, 10**9, 0.6, SEED)
    assert (table.slot_count, table.limit) == (7, 4)
    rows = columns(*[(b"%d" % (n % 6), b"v") for n in range(12)])
    assert table.put(rows, 0) == 4
    assert table.count == 4
    assert table.put(columns((b"1", b"v"), (b"9", b"v"), base_offset=50), 0) == 1
    assert table.find(b"1") == 50
    assert list(table.judge(rows, 3)) == [KEEP, DROP, KEEP, KEEP, *[KEEP] * 8]


@pytest.mark.parametrize("key_count", [1, 30, 1000])
def test_as_many_keys_as_were_announced_fit(key_count: int) -> None:
    table = OffsetMap(1 << 24, key_count, 0.9, SEED)
    rows = columns(*[(b"key-%d" % n, b"v") for n in range(key_count)])
    assert table.put(rows, 0) == key_count
    assert all(table.find(b"key-%d" % n) == n for n in range(key_count))
    assert table.slot_count * SLOT_BYTES < 200 + key_count * SLOT_BYTES * 1.3


def test_beside_a_dictionary() -> None:
    rng = random.Random(5)
    table = OffsetMap(1 << 20, 3000, 0.9, SEED)
    model: dict[bytes, int] = {}
    offset = 0
    for _ in range(40):
        rows = [
            (rng.randbytes(rng.randint(0, 20)) if rng.random() < 0.3 else b"k%d" % (n % 50), b"v")
            for n in range(rng.randint(1, 80))
        ]
        assert table.put(columns(*rows, base_offset=offset), 0) == len(rows)
        for key, _ in rows:
            model[key] = offset
            offset += 1
    assert table.count == len(model)
    assert all(table.find(key) == found for key, found in model.items())


def test_columns_that_contradict_themselves(form: str) -> None:
    if form != "native":
        pytest.skip("plain Python slices, and checks nothing")
    table = OffsetMap(1 << 20, 10, 0.9, SEED)
    rows = columns((b"a", b"1"), (b"b", b"2"))
    rows.keys.data = memoryview(b"")
    with pytest.raises(ValueError, match="outside"):
        table.put(rows, 0)
    with pytest.raises(ValueError, match="outside"):
        table.judge(rows, 5)


def test_the_native_hash_is_siphash_128(form: str) -> None:
    """Vectors of the authors' reference implementation: key 00..0f, message 00..n."""
    if form != "native":
        pytest.skip("blake2b there")
    expected = {
        0: "a3817f04ba25a8e66df67214c7550293",
        1: "da87c1d86b99af44347659119b22fc45",
        15: "5493e99933b0a8117e08ec0f97cfc3d9",
    }
    for size, digest in expected.items():
        assert implementation.native.hash_key(SEED, bytes(range(size))).hex() == digest
