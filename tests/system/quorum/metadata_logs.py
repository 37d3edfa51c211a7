"""What the metadata logs of stopped nodes say, laid side by side.

Owns the comparison. Must not: need a running node. Invariant: only whole batches with a right CRC
are looked at; a log that begins later (behind a snapshot) is compared where it overlaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moldau.protocol.messages.quorum_records import LeaderChangeMessage
from moldau.protocol.records import ControlRecordType
from moldau.raft.batch_codec import DecodedBatch, decode_batches
from moldau.raft.values import METADATA_DIRECTORY
from tests.kit import judging


def read_log(home: Path) -> dict[int, DecodedBatch]:
    """Every batch of a node's metadata log by its base offset."""
    batches: dict[int, DecodedBatch] = {}
    for path in sorted((home / "data" / METADATA_DIRECTORY).glob("*.log")):
        for batch in decode_batches(path.read_bytes(), path.name):
            batches[batch.header.base_offset] = batch
    return batches


def leaders_by_epoch(log: dict[int, DecodedBatch]) -> dict[int, int]:
    """Who opened each epoch."""
    leaders = {}
    for batch in log.values():
        for record_type, value in batch.control_records:
            if record_type == ControlRecordType.LEADER_CHANGE:
                message = LeaderChangeMessage.decode(value, 0)[0]
                leaders[batch.header.partition_leader_epoch] = message.leader_id
    return leaders


@judging()
def check_agreement(homes: Sequence[Path], committed_end_offset: int) -> dict[int, int]:
    """All logs are the same below `committed_end_offset`, without a gap, as far as each of them
    goes, and each epoch has one leader; returns the leaders by epoch.
    """
    logs = [read_log(home) for home in homes]
    leaders: dict[int, int] = {}
    for log in logs:
        for leader_epoch, leader_id in leaders_by_epoch(log).items():
            assert leaders.setdefault(leader_epoch, leader_id) == leader_id, (
                f"{leader_id} and {leaders[leader_epoch]} both led epoch {leader_epoch}"
            )
    reference = logs[0]
    for home, log in zip(homes[1:], logs[1:], strict=True):
        start = max(min(reference), min(log))
        end_offset = min(committed_end_offset, _end_of(reference), _end_of(log))
        for base_offset in sorted(set(reference) | set(log)):
            if start <= base_offset < end_offset:
                ours, theirs = reference.get(base_offset), log.get(base_offset)
                assert ours is not None, f"{homes[0]} lacks the batch at {base_offset}"
                assert theirs is not None, f"{home} lacks the batch at {base_offset}"
                assert ours.header == theirs.header, f"batches at {base_offset} differ"
                assert ours.records == theirs.records, f"records at {base_offset} differ"
    return leaders


def _end_of(log: dict[int, DecodedBatch]) -> int:
    return log[max(log)].header.next_offset
