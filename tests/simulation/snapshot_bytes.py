"""A snapshot as bytes with a checksum, as FetchSnapshot carries it.

Owns: the encoding. Must not: be Kafka's (the driver's tests see to that). Invariant: damaged bytes
decode to None.
"""

from __future__ import annotations

import pickle
import zlib

from tests.simulation.disk import Snapshot

CHECKSUM_BYTES = 4
PADDING = bytes(1_000)
"""Makes snapshots large enough for several pieces."""


def encode(snapshot: Snapshot) -> bytes:
    """The snapshot's file."""
    body = pickle.dumps((snapshot, PADDING), protocol=5)
    return zlib.crc32(body).to_bytes(CHECKSUM_BYTES, "big") + body


def decode(data: bytes) -> Snapshot | None:
    """What `encode` was given."""
    body = data[CHECKSUM_BYTES:]
    if int.from_bytes(data[:CHECKSUM_BYTES], "big") != zlib.crc32(body):
        return None
    snapshot: Snapshot = pickle.loads(body)[0]
    return snapshot
