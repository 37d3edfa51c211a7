"""Real processes: a shared node for tests that leave it alone, and what the others are built of."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from moldau.local.layout import PortHolder
from moldau.testing import Cluster
from tests.interop.topics import TopicMaker

TRIES = 100


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A node for one module; its tests must leave it running."""
    with Cluster(config={"moldau.http.listener": "127.0.0.1:0"}) as running:
        yield running


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> Iterator[TopicMaker]:
    """Makes topics on the module's node."""
    with TopicMaker(cluster.bootstrap_server) as maker:
        yield maker


@pytest.fixture
def topic(topics: TopicMaker) -> str:
    """A fresh topic with one partition."""
    return topics.create()


class SmallDisk:
    """A mounted tmpfs that can be filled, freed and made read-only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all the room there is."""
        with self._ballast.open("ab", buffering=0) as ballast:
            try:
                while True:
                    ballast.write(bytes(65_536))
            except OSError:
                pass

    def free(self) -> None:
        """Give it back."""
        self._ballast.unlink()

    def make_read_only(self) -> None:
        """No file of it can be changed any more."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.path)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """24 MB of disk. Needs root on Linux, else the test is skipped."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    path = tmp_path / f"disk-{uuid.uuid4().hex}"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


@pytest.fixture
def base_port() -> Iterator[int]:
    """A port whose two neighbours, and the three ports 100 above, are free as well."""
    for _ in range(TRIES):
        holder = PortHolder("localhost")
        [port] = holder.take()
        try:
            for neighbour in (port + 1, port + 2, *range(port + 100, port + 103)):
                holder.hold(neighbour)
        except OSError:
            holder.close()
            continue
        holder.close()
        yield port
        return
    raise AssertionError("no free ports")
