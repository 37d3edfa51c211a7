"""Whether the replicas of a partition hold the same bytes, once their brokers are down.

Owns the comparison. Must not: need a running node. Invariant: segments may begin at different
offsets on different brokers; what is compared is the batches, in order, from the highest log start.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def batches_of(directory: Path) -> dict[int, bytes]:
    """Every whole batch of a partition's directory by its base offset, as bytes."""
    batches: dict[int, bytes] = {}
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        position = 0
        while len(data) - position >= 12:
            base_offset = int.from_bytes(data[position : position + 8], "big")
            size_bytes = int.from_bytes(data[position + 8 : position + 12], "big") + 12
            if size_bytes <= 12 or len(data) - position < size_bytes:
                break
            assert base_offset not in batches, f"{directory}: two batches at {base_offset}"
            batches[base_offset] = data[position : position + size_bytes]
            position += size_bytes
    return batches


def differences(directories: Sequence[Path]) -> list[str]:
    """What differs between replicas, a line each: batches that one lacks or has otherwise."""
    logs = [batches_of(directory) for directory in directories]
    start_offset = max((min(log) for log in logs if log), default=0)
    found = []
    for directory, log in zip(directories[1:], logs[1:], strict=True):
        for base_offset in sorted(set(logs[0]) | set(log)):
            if base_offset < start_offset or logs[0].get(base_offset) == log.get(base_offset):
                continue
            ours, theirs = logs[0].get(base_offset), log.get(base_offset)
            if ours is None or theirs is None:
                lacking = directories[0] if ours is None else directory
                found.append(f"{lacking} lacks the batch at {base_offset}")
            else:
                found.append(f"{directory} has another batch at {base_offset}")
    return found
