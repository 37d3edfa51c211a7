"""Memory and descriptors stay bounded whatever clients do."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker
from tests.kit.waiting import until
from tests.system.processes import Writer, read_all

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

MEGABYTE = 1024 * 1024
FRAME_BYTES = 15 * MEGABYTE
QUEUED_LIMIT_BYTES = 32 * MEGABYTE
CONNECTION_COUNT = 40


def resident_bytes(pid: int) -> int:
    """The process's resident memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE")


def descriptor_count(pid: int) -> int:
    """Open files of the process."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


class Flood:
    """Connections that announce big frames and send as much of them as the node takes."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._send) for _ in range(CONNECTION_COUNT)]
        self.sent_bytes = [0] * CONNECTION_COUNT

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)

    def _send(self) -> None:
        index = self._threads.index(threading.current_thread())
        chunk = bytes(256 * 1024)
        with contextlib.suppress(OSError), socket.create_connection(self._address) as peer:
            peer.settimeout(0.2)
            peer.sendall(struct.pack(">ihhih", FRAME_BYTES, 0, 9, 1, -1))
            while not self._stop.is_set() and self.sent_bytes[index] < FRAME_BYTES - MEGABYTE:
                with contextlib.suppress(TimeoutError):
                    self.sent_bytes[index] += peer.send(chunk)
            self._stop.wait()


@pytest.fixture(scope="module")
def limited() -> Iterator[Cluster]:
    """A node that may keep 32 MB of requests, none of them over 16 MB."""
    config = {
        "socket.request.max.bytes": str(16 * MEGABYTE),
        "queued.max.request.bytes": str(QUEUED_LIMIT_BYTES),
    }
    with Cluster(config=config) as cluster:
        yield cluster


def test_a_flood_of_half_open_big_frames(limited: Cluster) -> None:
    topic = TopicMaker(limited.bootstrap_server).create()
    pid = limited.node().pid
    writer = Writer(limited.bootstrap_server, topic)
    writer.send(100)
    writer.flush()
    before = resident_bytes(pid)
    with Flood(limited.bootstrap_server) as flood:
        until(lambda: sum(flood.sent_bytes) > FRAME_BYTES, what="the flood has begun")
        # Room for one frame beyond the limit and for the process's own; forty frames are 600 MB.
        bound = before + QUEUED_LIMIT_BYTES + FRAME_BYTES + 32 * MEGABYTE
        for _ in range(50):
            writer.send(1)
            writer.poll()
            assert resident_bytes(pid) < bound
    writer.flush()
    assert writer.refused == []
    assert len(read_all(limited.bootstrap_server, topic)) == 150
    until(
        lambda: resident_bytes(pid) < before + QUEUED_LIMIT_BYTES + 64 * MEGABYTE,
        what="memory is given back",
    )


def test_many_idle_connections_cost_little(limited: Cluster) -> None:
    host, _, port = limited.bootstrap_server.rpartition(":")
    pid = limited.node().pid
    before, descriptors = resident_bytes(pid), descriptor_count(pid)  # some may be closing still
    with ExitStack() as opened:
        for _ in range(300):
            opened.enter_context(socket.create_connection((host, int(port))))
        until(lambda: descriptor_count(pid) >= 300, what="all connections accepted")
        assert resident_bytes(pid) < before + 60 * MEGABYTE
    until(lambda: descriptor_count(pid) < descriptors + 20, what="all connections closed")


def test_a_reader_that_does_not_read_holds_little(limited: Cluster) -> None:
    """Requests whose answers pile up: the node stops reading from such a connection."""
    topic = TopicMaker(limited.bootstrap_server).create()
    writer = Writer(limited.bootstrap_server, topic)
    writer.send(300, size_bytes=50_000)
    writer.flush()
    name = topic.encode()
    partition = struct.pack(">iqi", 0, 0, 10 * MEGABYTE)
    body = struct.pack(">iiiib", -1, 0, 1, 10 * MEGABYTE, 0)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">i", 1) + partition
    head = struct.pack(">hhih", 1, 4, 7, -1)
    request = struct.pack(">i", len(head) + len(body)) + head + body
    pid = limited.node().pid
    before = resident_bytes(pid)
    host, _, port = limited.bootstrap_server.rpartition(":")
    with socket.create_connection((host, int(port))) as peer:
        peer.settimeout(1)
        with contextlib.suppress(TimeoutError):
            for _ in range(2000):
                peer.sendall(request)
        assert resident_bytes(pid) < before + 64 * MEGABYTE
        writer.send(100)
        writer.flush()
    assert writer.refused == []


def test_a_thousand_partitions(tmp_path: Path) -> None:
    # The last writer lives on and asks for its topic: deleted, that would create it again.
    config = {"auto.create.topics.enable": "false"}
    with Cluster(config=config, directory=tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_server})
        pid = cluster.node().pid
        before = resident_bytes(pid)
        names = [f"wide-{number}" for number in range(4)]
        made = admin.create_topics([NewTopic(name, 250, 1) for name in names])
        for future in made.values():
            future.result(60)
        for name in names:
            writer = Writer(cluster.bootstrap_server, name)
            writer.send(10)
            writer.flush()
        assert descriptor_count(pid) < 1000, "segments are opened on demand"
        assert resident_bytes(pid) < before + 100 * MEGABYTE
        assert cluster.stop() == 0
        cluster.restart()
        pid = cluster.node().pid
        assert descriptor_count(pid) < 1000
        assert resident_bytes(pid) < 200 * MEGABYTE
        for name in names:
            assert len(admin.list_topics(name, timeout=20).topics[name].partitions) == 250
            assert len(read_all(cluster.bootstrap_server, name)) == 10
        for future in admin.delete_topics(names).values():
            future.result(60)
        assert not [name for name in admin.list_topics(timeout=20).topics if name in names]
