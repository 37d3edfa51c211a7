"""Compares everything that came out with a plain computation on the CSV.

Owns the verdict. Must not know what was killed. Invariant: every record and every row is looked at;
what is in the archive is what its list of committed files says, as Spark itself reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

import orjson

from demo.story_data import (
    CLOSING_NUMBER,
    Flight,
    Measures,
    audit_of,
    expected_delays,
    measures_in,
    transactions,
)
from moldau.client import TopicPartition
from moldau.client.sync import Admin, Consumer

POLL_MS: Final = 1_000
QUIET_LIMIT: Final = 60
CLOSING_CARRIER: Final = "--"


@dataclass(slots=True)
class Verdict:
    """One line of the table."""

    what: str
    in_count: int
    out_count: int = 0
    lost_count: int = 0
    duplicated_count: int = 0
    wrong_count: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """Whether each came out once, as it must be."""
        failed = self.lost_count + self.duplicated_count + self.wrong_count
        return failed == 0 and self.in_count == self.out_count


def judged(what: str, expected: Mapping[Any, Any], found: Iterable[tuple[Any, Any]]) -> Verdict:
    """Compare what came out, by its key, with what must."""
    verdict = Verdict(what, len(expected))
    seen: Counter[Any] = Counter()
    for key, value in found:
        verdict.out_count += 1
        seen[key] += 1
        if seen[key] > 1:
            verdict.duplicated_count += 1
            verdict.examples.append(f"{key} is there {seen[key]} times")
        elif key not in expected or expected[key] != value:
            verdict.wrong_count += 1
            verdict.examples.append(f"{key}: {value}, not {expected.get(key)}")
    missing = [key for key in expected if key not in seen]
    verdict.lost_count = len(missing)
    verdict.examples += [f"{key} is missing" for key in missing[:3]]
    return verdict


def check_flights(bootstrap: str, topic: str, records: Sequence[Flight]) -> Verdict:
    """The input as read_committed sees it."""
    return judged(topic, _flights(records), numbered(read_topic(bootstrap, topic)))


def check_audit(bootstrap: str, topic: str, records: Sequence[Flight]) -> Verdict:
    """One record per transaction, of exactly its flights."""
    expected = dict(audit_of(number, sent) for number, sent in transactions(records))
    return judged(topic, expected, read_topic(bootstrap, topic))


def check_archive(directory: Path, records: Sequence[Flight]) -> Verdict:
    """The archive, as Spark would read it."""
    import pyarrow.parquet as pq

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for path in committed_files(directory):
            table = pq.ParquetFile(path).read(columns=["key", "value"])
            keys, values = table.column("key"), table.column("value")
            yield from zip(keys.to_pylist(), values.to_pylist(), strict=True)

    return judged("archive", _flights(records), numbered(rows()))


def check_delays(found: Iterable[tuple[bytes, bytes]], records: Sequence[Flight]) -> list[Verdict]:
    """The hours of every carrier, and how many flights they count together."""
    expected = expected_delays(records)
    made: list[tuple[tuple[str, str], Measures]] = []
    misplaced = 0
    for key, value in found:
        place, measures = measures_in(value)
        misplaced += key.decode() != place[0]
        if place[0] != CLOSING_CARRIER:
            made.append((place, measures))
    hours = judged("delays (carrier × hour)", expected, made)
    hours.wrong_count += misplaced
    counted = Verdict("flights counted in delays", len(records))
    counted.out_count = sum(measures[0] for _, measures in made)
    counted.lost_count = max(0, counted.in_count - counted.out_count)
    counted.duplicated_count = max(0, counted.out_count - counted.in_count)
    return [hours, counted]


def _flights(records: Sequence[Flight]) -> dict[int, tuple[bytes, bytes]]:
    return {flight.number: (flight.key, flight.value) for flight in records}


def numbered(
    found: Iterable[tuple[bytes, bytes]],
) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    """Flights by their numbers, without the closing one."""
    for key, value in found:
        number = orjson.loads(value)["n"]
        if number != CLOSING_NUMBER:
            yield number, (key, value)


def read_topic(bootstrap: str, topic: str) -> Iterator[tuple[bytes, bytes]]:
    """Key and value of every record that read_committed sees now."""
    with TopicReader(bootstrap, topic) as reader:
        while not reader.is_at_end():
            yield from reader.poll()


class TopicReader:
    """Reads a topic under read_committed, from its beginning, as far as one likes."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        with Admin(bootstrap) as admin:
            count = len(admin.describe_topics([topic])[topic].partitions)
        self._partitions = [TopicPartition(topic, number) for number in range(count)]
        self._consumer = Consumer(
            bootstrap, isolation_level="read_committed", auto_offset_reset="none"
        )
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning()
        self._quiet = 0

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def poll(self) -> list[tuple[bytes, bytes]]:
        """What has come since the last call; nothing may come for a second."""
        polled = self._consumer.getmany(timeout_ms=POLL_MS)
        found = [(each.key, each.value) for records in polled.values() for each in records]
        self._quiet = 0 if found else self._quiet + 1
        if self._quiet > QUIET_LIMIT:
            raise TimeoutError(f"{self._partitions[0].topic} cannot be read to its end")
        return found

    def ends(self) -> dict[str, int]:
        """The offsets up to which read_committed sees now, by partition, as Spark writes them."""
        ends = self._consumer.end_offsets(self._partitions)
        return {str(each.partition): end for each, end in ends.items()}

    def is_at_end(self) -> bool:
        """Whether everything that is committed now has been read."""
        ends = self._consumer.end_offsets(self._partitions)
        return all(self._consumer.position(each) >= ends[each] for each in self._partitions)


def committed_ends(bootstrap: str, topic: str) -> dict[str, int]:
    """The offsets up to which read_committed sees now, by partition, as Spark writes them."""
    with TopicReader(bootstrap, topic) as reader:
        return reader.ends()


def committed_files(directory: Path) -> list[Path]:
    """The files of a directory that Spark's file sink has committed, by its own list."""
    entries = {path.name: path for path in (directory / "_spark_metadata").iterdir()}
    compact = [int(name.removesuffix(".compact")) for name in entries if name.endswith(".compact")]
    last = max(compact, default=-1)
    names = [f"{last}.compact"] if compact else []
    names += sorted((name for name in entries if name.isdigit() and int(name) > last), key=int)
    found = []
    for name in names:
        version, *lines = entries[name].read_text(encoding="utf-8").splitlines()
        assert version == "v1", f"{name} is of an unknown version {version}"
        found += [Path(unquote(urlparse(orjson.loads(line)["path"]).path)) for line in lines]
    return found
