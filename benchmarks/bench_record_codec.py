"""Record codec side by side with aiokafka's, in one run: `python -m benchmarks.bench_record_codec`.

Million records per second of ours and the peer's, and the ratio, as minimum / median / maximum over
the runs. Both sides take turns within each run, on the same records, so that a busy machine slows
both.
"""

from __future__ import annotations

import argparse
import importlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka.record import default_records as aiokafka_records

from benchmarks.figures import Effort, Report, Spread, Table, at_least
from moldau.protocol.records import (
    ColumnEncoder,
    Record,
    columns_pure,
    decode_columns,
    encode_batch,
    pure,
    read_batch_header,
    verify_crc,
    write_header,
)
from moldau.protocol.records import _implementation as implementation

RECORD_COUNT = 8_000
VALUE_BYTES = 100
SECONDS = 0.2
PLAIN_COUNT = 2

#: What is asked of the native codec, in million records per second.
LIMITS = {
    "decode columns, native": 10.0,
    "encode columns, native": 20.0,
}

_FUNCTIONS = {
    "decode_records": pure,
    "encode_records": pure,
    "encode_record": pure,
    "decode_column_sections": columns_pure,
    "encode_rows": columns_pure,
}


@dataclass(slots=True)
class Contest:
    """One row of the table."""

    name: str
    ours: Callable[[], Any]
    peer_name: str
    peer: Callable[[], Any]


def use(native: Any) -> None:
    """Switch the package to the native module, or to plain Python when it is None."""
    for name, module in _FUNCTIONS.items():
        setattr(implementation, name, getattr(native or module, name))


def with_implementation(native: Any, function: Callable[[], Any]) -> Callable[[], Any]:
    """The function, run on that implementation."""

    def run() -> Any:
        use(native)
        return function()

    return run


def make_records(count: int, value_bytes: int) -> list[Record]:
    """Records with a 12-byte key, a random value, and time passing slowly."""
    source = random.Random(1)
    return [
        Record(
            index,
            1_700_000_000_000 + index // 10,
            b"key-%08d" % index,
            source.randbytes(value_bytes),
        )
        for index in range(count)
    ]


def peer_encode(builder_class: Any, records: list[Record]) -> bytearray:
    """Encode with one of aiokafka's builders."""
    builder = builder_class(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for index, record in enumerate(records):
        builder.append(index, record.timestamp_ms, record.key, record.value, [])
    built: bytearray = builder.build()
    return built


def peer_decode(batch_class: Any, batch: bytes) -> list[Any]:
    """Decode with one of aiokafka's readers, CRC checked as its consumer does."""
    reader = batch_class(batch)
    assert reader.validate_crc()
    return list(reader)


def contests(records: list[Record]) -> list[Contest]:
    """Every row: pure against pure, compiled against compiled, columns against compiled."""
    batch = bytes(encode_batch(records))
    header = read_batch_header(batch)
    columns = decode_columns(batch)

    def decode() -> list[Record]:
        assert verify_crc(batch, 0, header)
        return implementation.decode_records(
            memoryview(batch)[61:], header.record_count, 0, header.base_timestamp_ms, None
        )

    def decode_flat() -> Any:
        assert verify_crc(batch, 0, header)
        return decode_columns(batch)

    def encode_flat() -> bytearray:
        out, batch_header, _ = ColumnEncoder(columns).next_batch(0, columns.row_count)
        write_header(out, batch_header)
        return out

    slow_reader = aiokafka_records._DefaultRecordBatchPy
    slow_builder = aiokafka_records._DefaultRecordBatchBuilderPy
    fast_reader = aiokafka_records.DefaultRecordBatch
    fast_builder = aiokafka_records.DefaultRecordBatchBuilder

    def read_with(reader: Any) -> Callable[[], Any]:
        return lambda: peer_decode(reader, batch)

    def build_with(builder: Any) -> Callable[[], Any]:
        return lambda: peer_encode(builder, records)

    found: list[tuple[str, Any, Callable[[], Any], str, Callable[[], Any]]] = [
        ("decode, plain Python", None, decode, "aiokafka Python", read_with(slow_reader)),
        (
            "encode, plain Python",
            None,
            lambda: encode_batch(records),
            "aiokafka Python",
            build_with(slow_builder),
        ),
    ]
    try:
        native = importlib.import_module("moldau.protocol.records._native")
    except ImportError:
        native = None
    if native is not None:
        found += [
            ("decode, native", native, decode, "aiokafka C", read_with(fast_reader)),
            (
                "encode, native",
                native,
                lambda: encode_batch(records),
                "aiokafka C",
                build_with(fast_builder),
            ),
            ("decode columns, native", native, decode_flat, "aiokafka C", read_with(fast_reader)),
            ("encode columns, native", native, encode_flat, "aiokafka C", build_with(fast_builder)),
        ]
    return [
        Contest(name, with_implementation(native, ours), peer_name, peer)
        for name, native, ours, peer_name, peer in found
    ]


def timed(function: Callable[[], Any], repeat: int) -> float:
    """Seconds per call."""
    started = time.perf_counter()
    for _ in range(repeat):
        function()
    return (time.perf_counter() - started) / repeat


def measure(
    contest: Contest, record_count: int, runs: int, seconds: float
) -> tuple[Spread, Spread]:
    """Million records per second of ours and of the peer; both are warmed up, then take turns."""
    repeats = []
    for function in (contest.ours, contest.peer):
        function()
        repeats.append(max(1, int(seconds / timed(function, 1))))
    ours, peers = [], []
    for _ in range(runs):
        ours.append(record_count / timed(contest.ours, repeats[0]) / 1e6)
        peers.append(record_count / timed(contest.peer, repeats[1]) / 1e6)
    return Spread.of(ours), Spread.of(peers)


def run(effort: Effort) -> Report:
    """All rows, on 8,000 records of 100 bytes (fewer when scaled down)."""
    return compare(
        record_count=effort.count(RECORD_COUNT, 100),
        value_bytes=VALUE_BYTES,
        runs=effort.rounds,
        seconds=SECONDS * min(1.0, effort.scale),
    )


def compare(*, record_count: int, value_bytes: int, runs: int, seconds: float) -> Report:
    """Every contest; the package's own choice of implementation is restored afterwards."""
    report = Report("Record codec")
    table = Table(
        ("what", "million records/s", "peer", "million records/s", "ratio"),
        f"{record_count:,} records of {value_bytes} bytes + 12-byte key, uncompressed, "
        "minimum / median / maximum:",
    )
    chosen = {name: getattr(implementation, name) for name in _FUNCTIONS}
    try:
        for contest in contests(make_records(record_count, value_bytes)):
            ours, peers = measure(contest, record_count, runs, seconds)
            ratio = ours.per(peers)
            table.add(contest.name, ours.text(), contest.peer_name, peers.text(), ratio.text())
            limit = LIMITS.get(contest.name)
            if limit is not None:
                asked = f"record codec, {contest.name}: ≥ {limit:g} million records/s"
                report.targets.append(at_least(asked, ours, limit))
            elif contest.name.endswith("plain Python"):
                asked = f"record codec, {contest.name}: ≥ aiokafka's plain Python"
                report.targets.append(at_least(asked, ratio, 1.0))
    finally:
        for name, function in chosen.items():
            setattr(implementation, name, function)
    report.tables.append(table)
    if len(table.rows) == PLAIN_COUNT:
        report.notes.append("The native extension is not built: plain Python only.")
    return report


def main() -> None:
    """Parse the options, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=RECORD_COUNT, help="records in the batch")
    parser.add_argument("--value-bytes", type=int, default=VALUE_BYTES)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="per side and run")
    options = parser.parse_args()
    report = compare(
        record_count=options.records,
        value_bytes=options.value_bytes,
        runs=options.runs,
        seconds=options.seconds,
    )
    print(report.markdown())


if __name__ == "__main__":
    main()
