"""What names tell at a start after a stop in the middle of a swap, ours or Apache Kafka's."""

from __future__ import annotations

import pytest

from moldau.protocol.records import InvalidBatch
from moldau.storage.cleaner.cleaned_segment import finish_swaps
from tests.storage.log_fixtures import batch_of
from tests.storage.simulated_filesystem import SimulatedFilesystem

INDEXES = (".index", ".timeindex", ".txnindex")


def digits(base: int) -> str:
    return f"{base:020d}"


class Names:
    """A partition's directory with files that say who they are."""

    def __init__(self) -> None:
        self.filesystem = SimulatedFilesystem()
        self.filesystem.mkdirs("/p")
        self.put("leader-epoch-checkpoint", b"")

    def put(self, name: str, data: bytes) -> None:
        self.filesystem.put(f"/p/{name}", data)

    def segment(self, base: int, end: int, suffix: str = "", *, parts: tuple[str, ...]) -> None:
        """A segment with one batch of offsets [base, end); its indexes say `base suffix`."""
        for part in parts:
            data = f"{base}{suffix}".encode()
            if part == ".log":
                data = bytes(batch_of(*["v"] * (end - base), base_offset=base))
            self.put(digits(base) + part + suffix, data)

    def finish(self) -> dict[str, bytes]:
        finish_swaps(self.filesystem, "/p")
        found = {
            path.removeprefix("/p/").lstrip("0") or "0": data
            for path, data in self.filesystem.files().items()
            if "checkpoint" not in path
        }
        again = self.filesystem.files()
        finish_swaps(self.filesystem, "/p")
        assert self.filesystem.files() == again
        return found


ALL = (".log", *INDEXES)


def test_without_traces_nothing_is_touched() -> None:
    names = Names()
    names.segment(10, 20, parts=ALL)
    count = names.filesystem.operation_count
    assert sorted(names.finish()) == ["10.index", "10.log", "10.timeindex", "10.txnindex"]
    assert names.filesystem.operation_count == count


def test_cleaned_files_alone_go() -> None:
    names = Names()
    names.segment(10, 20, parts=ALL)
    names.segment(10, 20, ".cleaned", parts=ALL)
    found = names.finish()
    assert found["10.index"] == b"10"
    assert len(found) == 4


@pytest.mark.parametrize("renamed", range(1, 5))
@pytest.mark.parametrize("removed", range(4))
def test_a_swapped_log_takes_its_indexes_along(renamed: int, removed: int) -> None:
    """Apache Kafka renames log, index, time index, transaction index, in this order, as we do."""
    names = Names()
    if renamed == 4:
        for base in (10, 20)[removed // 2 :]:
            names.segment(base, base + 10, parts=ALL)
    else:
        for base in (10, 20):
            names.segment(base, base + 10, parts=ALL)
    names.segment(30, 40, parts=ALL)
    names.segment(10, 30, ".swap", parts=ALL[:renamed])
    names.segment(10, 30, ".cleaned", parts=ALL[renamed:])
    found = names.finish()
    assert sorted(found) == sorted(f"{base}{part}" for base in (10, 30) for part in ALL)
    assert found["10.index"] == (b"10.swap" if renamed > 1 else b"10.cleaned")
    assert found["10.log"] == bytes(batch_of(*["v"] * 20, base_offset=10))
    assert found["30.index"] == b"30"


def test_the_transaction_index_of_the_old_segment_does_not_outlive_it() -> None:
    names = Names()
    names.segment(10, 20, parts=ALL)
    names.segment(10, 20, ".swap", parts=ALL[:3])
    assert sorted(names.finish()) == ["10.index", "10.log", "10.timeindex"]


@pytest.mark.parametrize("left", range(4))
def test_indexes_follow_a_log_that_is_in_place(left: int) -> None:
    names = Names()
    names.segment(10, 30, parts=ALL[: 4 - left] if left < 4 else (".log",))
    names.segment(10, 30, ".swap", parts=ALL[4 - left :])
    names.segment(30, 40, parts=ALL)
    found = names.finish()
    assert sorted(found) == sorted(f"{base}{part}" for base in (10, 30) for part in ALL)
    assert not any(name.endswith(".swap") for name in found)


def test_an_index_of_a_log_that_is_not_there_goes() -> None:
    names = Names()
    names.segment(10, 20, parts=(".log", ".index"))
    names.segment(50, 60, ".swap", parts=(".index",))
    assert sorted(names.finish()) == ["10.index", "10.log"]


@pytest.mark.parametrize(("byte", "bit"), [(1, 4), (6, 0), (4, 7)])
def test_a_swap_whose_offsets_cannot_be_removes_no_segment(byte: int, bit: int) -> None:
    """One bit that no CRC covers: the new segment seems to replace all that follow it."""
    names = Names()
    for base in (10, 20, 30, 40):
        names.segment(base, base + 10, parts=ALL)
    names.segment(10, 30, ".swap", parts=ALL)
    path = f"/p/{digits(10)}.log.swap"
    names.filesystem.file_node(path).data[byte] ^= 1 << bit
    before = names.filesystem.files()
    with pytest.raises(InvalidBatch):
        names.finish()
    assert names.filesystem.files() == before


def test_an_unfinished_split_of_kafkas_is_undone() -> None:
    """It makes several segments out of one: as long as some are `.cleaned`, none counts."""
    names = Names()
    names.segment(10, 40, parts=ALL)
    names.segment(10, 20, ".cleaned", parts=ALL)
    names.segment(20, 30, ".swap", parts=ALL)
    names.segment(30, 40, ".swap", parts=ALL)
    found = names.finish()
    assert sorted(found) == sorted(f"10{part}" for part in ALL)
    assert found["10.index"] == b"10"


def test_a_finished_split_of_kafkas_counts() -> None:
    names = Names()
    names.segment(10, 40, parts=ALL)
    names.segment(5, 10, parts=ALL)
    for base in (10, 20, 30):
        names.segment(base, base + 10, ".swap", parts=ALL)
    found = names.finish()
    assert sorted(found) == sorted(f"{base}{part}" for base in (5, 10, 20, 30) for part in ALL)
    assert found["10.index"] == b"10.swap"
