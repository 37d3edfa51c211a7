"""Plans of moves as files, in the JSON of kafka-reassign-partitions.

Owns the form. Must not know a cluster. Invariant: what is read is consistent in itself: no
partition and no broker of a partition is named twice, and nothing is asked for that is not done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moldau.cli.output import fail
from moldau.client import TopicPartition

MAX_FILE_BYTES = 64 * 1024 * 1024
VERSION = 1
ANY_DIRECTORY = "any"
FORM = '{"version":1,"partitions":[{"topic":…,"partition":…,"replicas":[…]}]}'

Assignment = Mapping[TopicPartition, Sequence[int]]


def assignment_document(assignment: Assignment) -> dict[str, Any]:
    """An assignment in the form of Kafka's files."""
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": list(replicas),
                "log_dirs": [ANY_DIRECTORY] * len(replicas),
            }
            for partition, replicas in sorted(assignment.items())
        ],
    }


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write a file; exits with status 1 when that fails."""
    try:
        path.write_text(json.dumps(assignment_document(assignment)) + "\n", encoding="utf-8")
    except OSError as error:
        fail(f"{path}: {error.strerror or error}")


def read_assignment(path: Path) -> dict[TopicPartition, list[int]]:
    """The moves of a file; exits with status 2 when it cannot be read or has another form."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            fail(f"{path}: over {MAX_FILE_BYTES} bytes", status=2)
        document = json.loads(path.read_bytes())
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", status=2)
    except ValueError as error:
        fail(f"{path}: not JSON of the form {FORM}: {error}", status=2)
    try:
        return parse_assignment(document)
    except ValueError as error:
        fail(f"{path}: {error}", status=2)


def parse_assignment(document: Any) -> dict[TopicPartition, list[int]]:
    """The moves in a document. Raises: ValueError, with one line that says what is wrong."""
    if not isinstance(document, dict) or not isinstance(document.get("partitions"), list):
        raise ValueError(f"not of the form {FORM}")
    version = document.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"version {version!r}; only {VERSION} is known")
    moves: dict[TopicPartition, list[int]] = {}
    for each in document["partitions"]:
        partition, replicas = _entry(each)
        if partition in moves:
            raise ValueError(f"{partition} is named twice")
        moves[partition] = replicas
    if not moves:
        raise ValueError("no partitions are named")
    return moves


def _entry(entry: Any) -> tuple[TopicPartition, list[int]]:
    if not isinstance(entry, dict) or not {"topic", "partition", "replicas"} <= entry.keys():
        raise ValueError(f"{_short(entry)} has not the form {FORM}")
    topic, index, replicas = entry["topic"], entry["partition"], entry["replicas"]
    if not isinstance(topic, str) or not topic:
        raise ValueError(f"the topic {_short(topic)} is not a name")
    if not _is_id(index):
        raise ValueError(f"{topic}: the partition {_short(index)} is not a number from 0 on")
    partition = TopicPartition(topic, index)
    if not isinstance(replicas, list) or not replicas or not all(map(_is_id, replicas)):
        raise ValueError(f"{partition}: replicas {_short(replicas)} is not a list of broker ids")
    if len(set(replicas)) < len(replicas):
        raise ValueError(f"{partition}: replicas {_short(replicas)} names a broker twice")
    directories = entry.get("log_dirs", [ANY_DIRECTORY] * len(replicas))
    if not isinstance(directories, list) or len(directories) != len(replicas):
        raise ValueError(f"{partition}: log_dirs needs one entry for each of the replicas")
    if any(each != ANY_DIRECTORY for each in directories):
        raise ValueError(f'{partition}: log_dirs can only be "{ANY_DIRECTORY}"')
    return partition, replicas


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
