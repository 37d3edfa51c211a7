"""The records that every client writes and every other client must read back equal.

Owns `Rec`, the one form all clients' records are turned into before they are compared.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP_MS = (int(time.time()) - 3600) * 1000
"""An hour ago. Never a fixed day: retention, which first looks 30 s after a node's start, goes by
the records' own timestamps and would take them before they are read.
"""


@dataclass(frozen=True, slots=True)
class Rec:
    """What a client says and hears about one record; headers in order, duplicates kept."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = BASE_TIMESTAMP_MS


def sample_records() -> list[Rec]:
    """Ordinary records and every odd one: nulls, empties, repeated header keys, text, a big one."""
    records = [
        Rec(
            f"key-{number}".encode(),
            b'{"flight": %d, "carrier": "UA", "origin": "EWR"}' % number,
            timestamp_ms=BASE_TIMESTAMP_MS + number,
        )
        for number in range(60)
    ]
    return [
        *records,
        Rec(None, b"no key"),
        Rec(b"tombstone", None),
        Rec(None, None),
        Rec(b"", b""),
        Rec(b"k", b"v", (("one", b"1"), ("one", b"2"), ("two", b""))),
        Rec(b"k", b"v", (("příliš žluťoučký", bytes(range(256))),)),
        Rec(b"later", b"earlier", timestamp_ms=BASE_TIMESTAMP_MS - 5),
        Rec(b"big", random.Random(7).randbytes(150_000) + bytes(150_000)),
        Rec(b"null header", b"v", (("nothing", None), ("something", b"x"))),
    ]
