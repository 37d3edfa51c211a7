"""10,000 random torn and garbled tails (issue 2, "What it must show", 4).

The bytes are those a Log wrote; each case damages them at and after some byte, as a torn write, a
lost page, a flipped bit or another file's block would, and opens the log again. What it holds then
must be the undamaged batches before the damage: a prefix, complete up to the first bad batch.
"""

from __future__ import annotations

import random as random_module
from collections.abc import Callable

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Codec, iter_batches
from moldau.protocol.types import TopicPartition
from moldau.storage.append import RecordBatches
from moldau.storage.log import Log
from moldau.storage.log_config import LogConfig
from moldau.storage.verify import Verification
from tests.kit.dice import drawn_seed
from tests.kit.manual_clock import ManualClock
from tests.storage.crash_model import contents_of
from tests.storage.simulated_disk import DirectoryNode, deep_copy
from tests.storage.simulated_filesystem import SimulatedFilesystem
from tests.storage.storage_fixtures import START_MS, batch

CASE_COUNT = 10_000
PARTS = 10
DIRECTORY = "/data/t-0"
PARTITION = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=2000, segment_index_bytes=160, index_interval_bytes=200)
LEADER_EPOCH = slice(12, 16)
"""Not covered by the CRC: in the last batch nothing contradicts a newer one before the next append.
"""


class Original:
    """A log's files, and where each batch lies in them."""

    def __init__(self, random: random_module.Random, batch_count: int) -> None:
        filesystem = SimulatedFilesystem()
        log = open_log(filesystem)
        for number in range(batch_count):
            data = batch(
                random.randint(1, 4),
                value_bytes=random.randint(0, 120),
                timestamp_ms=START_MS + number,
                codec=random.choice(list(Codec)),
                fill=chr(97 + number % 26),
            )
            assert (
                log.append_as_leader(RecordBatches.read(data), leader_epoch=3).error
                is ErrorCode.NONE
            )
        log.abandon()
        self.root: DirectoryNode = filesystem.root
        self.batches: list[tuple[str, int, bytes, int]] = []
        """(file, position, bytes, next offset) in log order."""
        self.files = {p: d for p, d in filesystem.files().items() if p.endswith(".log")}
        for path, data in self.files.items():
            for position, header in iter_batches(data):
                found = data[position : position + header.size_bytes]
                self.batches.append((path, position, found, header.next_offset))


def open_log(filesystem: SimulatedFilesystem, recovery_point: int = 0) -> Log:
    return Log.open(
        filesystem,
        ManualClock(START_MS),
        DIRECTORY,
        PARTITION,
        CONFIG,
        recovery_point=recovery_point,
    )


Damage = Callable[[random_module.Random, bytes, int], bytes]
"""(random, file contents, position) -> contents that differ from `position` on at the earliest."""


def torn(random: random_module.Random, data: bytes, at: int) -> bytes:
    return data[:at]


def flipped(random: random_module.Random, data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        changed[random.randrange(at, len(data))] ^= 1 << random.randrange(8)
    return bytes(changed)


def garbled(random: random_module.Random, data: bytes, at: int) -> bytes:
    length = random.randint(1, min(200, len(data) - at))
    return data[:at] + random.randbytes(length) + data[at + length :]


def holed(random: random_module.Random, data: bytes, at: int) -> bytes:
    length = random.randint(1, min(700, len(data) - at))
    return data[:at] + bytes(length) + data[at + length :]


def zeros_behind(random: random_module.Random, data: bytes, at: int) -> bytes:
    return data[:at] + bytes(random.randint(1, 4096))


def garbage_behind(random: random_module.Random, data: bytes, at: int) -> bytes:
    return data[:at] + random.randbytes(random.randint(1, 500))


SECTOR_BYTES = 512
"""Whole sectors go missing or astray. (A cut of exactly one batch inside two batches' base offsets,
which no CRC covers, would make a valid batch: Kafka's format cannot tell.)"""


def old_block_behind(random: random_module.Random, data: bytes, at: int) -> bytes:
    """Valid batches of this very file where others should be."""
    at -= at % SECTOR_BYTES
    start = random.randrange(len(data))
    start -= start % SECTOR_BYTES
    return data[:at] + data[start : start + random.randint(1, 3) * SECTOR_BYTES]


def missing_piece(random: random_module.Random, data: bytes, at: int) -> bytes:
    at -= at % SECTOR_BYTES
    return data[:at] + data[at + random.randint(1, 2) * SECTOR_BYTES :]


DAMAGES: list[Damage] = [
    torn,
    flipped,
    garbled,
    holed,
    zeros_behind,
    garbage_behind,
    old_block_behind,
    missing_piece,
]


def same_but_epoch(found: bytes, expected: bytes) -> bool:
    """Equal in all that can be observed."""
    return found[:12] + found[16:] == expected[:12] + expected[16:]


def check_case(original: Original, random: random_module.Random) -> None:
    filesystem = SimulatedFilesystem(deep_copy(original.root))
    path = random.choice(list(original.files))
    data = original.files[path]
    damage = random.choice(DAMAGES)
    damaged = damage(random, data, random.randrange(len(data)))
    differs_at = next(
        (at for at in range(min(len(data), len(damaged))) if data[at] != damaged[at]),
        min(len(data), len(damaged)),
    )
    filesystem.put(path, damaged)
    expected: list[bytes] = []
    for file, position, contents, _ in original.batches:
        # Something behind a segment's last batch ends the log there, later segments or not.
        if file > path and damaged != data:
            break
        if file == path and position + len(contents) > differs_at:
            break
        expected.append(contents)
    log = open_log(filesystem)
    assert not log.offline, log.offline_reason
    found = [each.data for each in contents_of(log)]
    surplus = found[len(expected) :]
    assert found[: len(expected)] == expected, f"{damage.__name__}: undamaged batches are gone"
    following = [contents for _, _, contents, _ in original.batches[len(expected) :]]
    # Damage that only touched leader epochs, or that put back the very same bytes, goes unnoticed.
    assert len(surplus) <= len(following), f"{damage.__name__}: batches from nowhere"
    assert all(map(same_but_epoch, surplus, following)), f"{damage.__name__}: damaged batches kept"
    ends = [0, *(next_offset for _, _, _, next_offset in original.batches)]
    assert log.log_end_offset == ends[len(found)]
    is_newer = log.leader_epoch_cache.latest_epoch > 4
    result = log.append_as_leader(RecordBatches.read(batch(1)), leader_epoch=4)
    if is_newer:
        assert (result.error, log.offline) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
        return
    assert (result.error, result.base_offset) == (ErrorCode.NONE, ends[len(found)])
    log.close()
    findings = Verification(filesystem, deep=True).findings(DIRECTORY)
    unexpected = [str(each) for each in findings if "partition.metadata" not in each.file]
    assert not unexpected, unexpected


@pytest.mark.parametrize("part", range(PARTS))
def test_damaged_tails_recover_to_a_prefix(part: int) -> None:
    seed = drawn_seed(4711)
    random = random_module.Random(seed * 1000 + part)
    original = Original(random, 2 + part * 2)
    for case in range(CASE_COUNT // PARTS):
        case_seed = random.getrandbits(48)
        try:
            check_case(original, random_module.Random(case_seed))
        except AssertionError as error:
            raise AssertionError(
                f"MOLDAU_SEED={seed}, part {part}, case {case} ({case_seed}): {error}"
            ) from error


def test_damage_below_the_recovery_point_is_never_cut_off() -> None:
    """Flushed bytes that are wrong take the partition offline, and the files stay as they are."""
    seed = drawn_seed(99)
    random = random_module.Random(seed)
    original = Original(random, 12)
    _, _, _, recovery_point = original.batches[-1]
    last_file = list(original.files)[-1]
    for _ in range(300):
        filesystem = SimulatedFilesystem(deep_copy(original.root))
        data = original.files[last_file]
        changed = bytearray(data)
        at = random.randrange(len(data))
        changed[at] ^= 1 << random.randrange(8)
        filesystem.put(last_file, bytes(changed))
        log = open_log(filesystem, recovery_point)
        kept = filesystem.files()[last_file]
        assert kept == bytes(changed), f"seed {seed}: flushed bytes were changed"
        if log.offline:
            assert last_file in log.offline_reason
            assert "at byte" in log.offline_reason
        else:
            # Only a leader epoch can change without a trace.
            found = [each.data for each in contents_of(log)]
            expected = [contents for _, _, contents, _ in original.batches]
            assert all(map(same_but_epoch, found, expected))
