"""The real file system: tracked ends, regions that outlive their segment, locks, atomic writes."""

import asyncio
import errno
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from moldau.runtime.files import RESERVE_STEP_BYTES, FileRegion
from moldau.runtime.filesystem import LockHeld, OsFilesystem
from tests.kit.counting import descriptors


@pytest.fixture
def filesystem():
    instance = OsFilesystem()
    yield instance
    instance.close()


def test_append_read_truncate_reopen(filesystem: OsFilesystem, tmp_path: Path) -> None:
    path = str(tmp_path / "a.log")
    with pytest.raises(FileNotFoundError):
        filesystem.open(path)
    file = filesystem.open(path, create=True)
    file.append(b"hello ")
    file.append(memoryview(bytearray(b"world")))
    assert file.size_bytes == 11
    assert file.pread(5, 6) == b"world"
    assert file.pread(50, 6) == b"world"
    target = bytearray(20)
    assert file.pread_into(target, 3) == 8
    file.pwrite(b"J", 0)
    file.truncate(5)
    file.append(b"!")
    file.fdatasync()
    file.fsync()
    file.close()
    file.close()
    again = filesystem.open(path, write=False)
    assert again.size_bytes == 6
    assert again.pread(6, 0) == b"Jello!"
    again.close()
    with pytest.raises(FileExistsError):
        filesystem.open(path, exclusive=True)
    assert filesystem.size_bytes(path) == 6


def test_preallocated_space_is_not_contents(filesystem: OsFilesystem, tmp_path: Path) -> None:
    path = str(tmp_path / "a.log")
    file = filesystem.open(path, create=True, preallocate_bytes=100_000)
    assert (file.size_bytes, filesystem.size_bytes(path)) == (0, 100_000)
    file.append(b"abc")
    file.close()
    assert filesystem.read_bytes(path) == b"abc"


@pytest.mark.real
def test_append_that_hits_a_limit_is_cut_back(filesystem: OsFilesystem, tmp_path: Path) -> None:
    """A real failing write (file size limit, in another process) leaves exactly the old bytes."""
    script = f"""
import resource, signal
from moldau.runtime.filesystem import OsFilesystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
file = OsFilesystem().open({str(tmp_path / "full.log")!r}, create=True)
file.append(b"a" * 4000)
try:
    file.append(b"b" * 8000)
except OSError as error:
    print(error.errno, file.size_bytes)
file.append(b"c" * 4000)
print(file.size_bytes)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(errno.EFBIG), "4000", "8000"]
    assert (tmp_path / "full.log").read_bytes() == b"a" * 4000 + b"c" * 4000


def test_region_outlives_its_segment(filesystem: OsFilesystem, tmp_path: Path) -> None:
    path = str(tmp_path / "a.log")
    file = filesystem.open(path, create=True)
    file.append(b"0123456789")
    region = FileRegion(file, 2, 5)
    forgotten = FileRegion(file, 0, 1)
    file.close()
    filesystem.unlink(path)
    assert (len(region), region.read()) == (5, b"23456")
    del forgotten
    descriptor = file.fileno()
    os.fstat(descriptor)
    region.release()
    region.release()
    assert file.fileno() == -1
    with pytest.raises(ValueError, match="closed"):
        FileRegion(file, 0, 1)


def test_region_of_a_short_file_is_an_error(filesystem: OsFilesystem, tmp_path: Path) -> None:
    file = filesystem.open(str(tmp_path / "a.log"), create=True)
    file.append(b"123")
    with pytest.raises(OSError, match="ends inside"):
        FileRegion(file, 0, 4).read()
    file.close()


def test_mapped_file(filesystem: OsFilesystem, tmp_path: Path) -> None:
    path = str(tmp_path / "0.index")
    with pytest.raises(FileNotFoundError):
        filesystem.map(path, 100)
    mapped = filesystem.map(path, 10 * RESERVE_STEP_BYTES, create=True)
    before = os.stat(path).st_blocks
    mapped.reserve(8)
    assert os.stat(path).st_blocks > before
    mapped.buffer[0:3] = b"abc"
    piece = mapped.buffer[0:3]
    with pytest.raises(BufferError):
        mapped.resize(8)
    piece.release()
    mapped.resize(8)
    assert bytes(mapped.buffer) == b"abc\0\0\0\0\0"
    mapped.flush()
    mapped.resize(0)
    assert len(mapped.buffer) == 0
    mapped.resize(4)
    mapped.close()
    mapped.close()
    assert filesystem.read_bytes(path) == b"\0" * 4


def test_resizing_refuses_a_replaced_file(filesystem: OsFilesystem, tmp_path: Path) -> None:
    path = str(tmp_path / "0.index")
    mapped = filesystem.map(path, 100, create=True)
    filesystem.write_atomically(path, b"somebody else's")
    with pytest.raises(OSError, match="another file"):
        mapped.resize(8)
    mapped.close()
    assert filesystem.read_bytes(path) == b"somebody else's"


def test_names(filesystem: OsFilesystem, tmp_path: Path) -> None:
    root = str(tmp_path / "x")
    filesystem.mkdirs(root + "/y/z")
    filesystem.mkdirs(root + "/y/z")
    filesystem.write_atomically(root + "/y/file", b"1")
    filesystem.write_atomically(root + "/y/file", b"22")
    os.symlink(str(tmp_path), root + "/y/link")
    assert filesystem.listdir(root + "/y") == ["file", "link", "z"]
    filesystem.rename(root + "/y/file", root + "/y/a")
    assert filesystem.read_bytes(root + "/y/a") == b"22"
    assert filesystem.is_directory(root)
    filesystem.fsync_directory(root)
    filesystem.rmtree(root)
    assert not filesystem.exists(root)
    assert tmp_path.exists()
    usage = filesystem.disk_usage(str(tmp_path))
    assert 0 < usage.usable_bytes <= usage.total_bytes
    with pytest.raises(OSError, match="regular"):
        filesystem.open(os.devnull, write=True)


@pytest.mark.real
def test_lock_keeps_others_out(filesystem: OsFilesystem, tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    lock = filesystem.lock(path)
    with pytest.raises(LockHeld):
        filesystem.lock(path)
    script = f"""
from moldau.runtime.filesystem import OsFilesystem, LockHeld
try:
    OsFilesystem().lock({path!r})
except LockHeld:
    print("held")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "held\n"
    lock.release()
    lock.release()
    filesystem.lock(path).release()


async def test_offload_runs_elsewhere_and_is_bounded(filesystem: OsFilesystem) -> None:
    here = threading.get_ident()
    assert await filesystem.offload(threading.get_ident) != here
    running = peak = 0
    guard = threading.Lock()

    def work(number: int, *, factor: int) -> int:
        nonlocal running, peak
        with guard:
            running += 1
            peak = max(peak, running)
        with guard:
            running -= 1
        return number * factor

    results = await asyncio.gather(
        *(filesystem.offload(work, number, factor=2) for number in range(1000))
    )
    assert results == [number * 2 for number in range(1000)]
    assert peak <= 4
    with pytest.raises(ZeroDivisionError):
        await filesystem.offload(lambda: 1 // 0)


def test_mapped_files_cost_at_most_one_descriptor(filesystem: OsFilesystem, tmp_path: Path) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 64
    before = descriptors()
    mapped = [filesystem.map(str(tmp_path / f"{i}"), 4096, create=True) for i in range(20)]
    assert len(descriptors() - before) <= 20
    for each in mapped:
        each.close()
    assert not descriptors() - before
