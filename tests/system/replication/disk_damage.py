"""What becomes of a dead broker's partition files when the power fails, or the disk is replaced.

Owns the choice of bytes that may be gone. Must not touch a running node. Invariant: what a broker
has flushed (below the recovery point that it checkpointed) survives a power failure.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Final

RECOVERY_POINTS: Final = "recovery-point-offset-checkpoint"
CHECKPOINT_HEAD_LINES: Final = 2


def lose_unflushed(data_directory: Path, topic: str, dice: random.Random) -> int:
    """Cut the topic's logs somewhere behind their recovery points; how many bytes are gone."""
    flushed = recovery_points(data_directory)
    lost_bytes = 0
    for directory in sorted(data_directory.glob(f"{topic}-*")):
        if not directory.is_dir() or directory.name.count(".") > 0:
            continue
        for path in sorted(directory.glob("*.log"), reverse=True):
            size_bytes = path.stat().st_size
            keep_bytes = _flushed_bytes(path, flushed.get(directory.name, 0))
            cut_bytes = dice.randint(keep_bytes, size_bytes)
            lost_bytes += size_bytes - cut_bytes
            with path.open("r+b") as log:
                log.truncate(cut_bytes)
            if keep_bytes > 0:
                break
    return lost_bytes


def lose_everything(data_directory: Path, topic: str) -> None:
    """The topic's partitions are not there any more; the node's identity and metadata are."""
    for directory in data_directory.glob(f"{topic}-*"):
        if directory.is_dir():
            shutil.rmtree(directory)


def recovery_points(data_directory: Path) -> dict[str, int]:
    """Offset by the name of a partition's directory, as the checkpoint file has them."""
    path = data_directory / RECOVERY_POINTS
    if not path.exists():
        return {}
    rows = path.read_text().splitlines()[CHECKPOINT_HEAD_LINES:]
    found = {}
    for row in rows:
        topic, partition, offset = row.split(" ")
        found[f"{topic}-{partition}"] = int(offset)
    return found


def _flushed_bytes(path: Path, recovery_point: int) -> int:
    """How much of a segment lies below the recovery point."""
    data = path.read_bytes()
    position = 0
    while len(data) - position >= 12:
        if int.from_bytes(data[position : position + 8], "big") >= recovery_point:
            break
        size_bytes = int.from_bytes(data[position + 8 : position + 12], "big") + 12
        if len(data) - position < size_bytes:
            break
        position += size_bytes
    return position
