"""A segment garbled below its recovery point costs that partition, never its neighbours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from moldau.protocol.errors import ErrorCode
from moldau.protocol.records import Record, encode_batch
from moldau.testing import Cluster
from tests.interop.raw.probe import connected, produce_raw, topic_metadata
from tests.interop.samples import BASE_TIMESTAMP_MS
from tests.interop.topics import TopicMaker
from tests.system.processes import Writer, read_all, run_cli


def garble(path: Path, position: int) -> None:
    """Change one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[Path, str, int]:
    """A stopped cluster's directory, the damaged topic, the position of its damaged batch."""
    with Cluster(directory=tmp_path) as cluster:
        maker = TopicMaker(cluster.bootstrap_server)
        for name in ("damaged", "sound"):
            maker.create(name)
            for _ in range(3):
                writer = Writer(cluster.bootstrap_server, name, **{"linger.ms": 50})
                writer.send(100)
                writer.flush()
        # After the orderly stop everything is flushed: the recovery point is the end.
        assert cluster.stop() == 0
        # After the kill the broker may not believe the files without a look.
        cluster.restart()
        cluster.kill()
        log = cluster.data_directory() / "damaged-0" / "00000000000000000000.log"
        size_bytes = log.stat().st_size
        first_batch_bytes = int.from_bytes(log.read_bytes()[8:12], "big") + 12
        assert first_batch_bytes < size_bytes
        garble(log, first_batch_bytes + 200)
    return tmp_path, "damaged", first_batch_bytes


def test_its_partition_answers_storage_error_and_neighbours_serve(
    damaged: tuple[Path, str, int],
) -> None:
    home, topic, _ = damaged
    with Cluster(directory=home) as cluster:
        bootstrap = cluster.bootstrap_server

        async def ask() -> None:
            async with connected(bootstrap) as connection:
                await topic_metadata(connection, "sound")
                batch = encode_batch([Record(0, BASE_TIMESTAMP_MS, None, b"v")])
                answer = await produce_raw(connection, topic, batch)
                assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
                answer = await produce_raw(connection, "sound", batch)
                assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 300)

        asyncio.run(ask())
        assert len(read_all(bootstrap, "sound")) == 301
        text = cluster.node().log_path.read_text()
        assert "00000000000000000000.log" in text
        assert topic in text


def test_moldau_log_verify_names_file_and_position(damaged: tuple[Path, str, int]) -> None:
    home, topic, position = damaged
    data = home / "node-1" / "data"
    ended = run_cli("log", "verify", data)
    assert ended.status == 1
    line = ended.output.splitlines()[0]
    assert line.startswith("DAMAGE: ")
    assert str(data / f"{topic}-0" / "00000000000000000000.log") in line
    assert str(position) in line
    assert "crc" in line.lower()


def test_an_unflushed_torn_tail_is_cut_and_the_rest_served(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        TopicMaker(cluster.bootstrap_server).create("torn")
        writer = Writer(cluster.bootstrap_server, "torn")
        writer.send(100)
        writer.flush()
        cluster.kill()
        log = cluster.data_directory() / "torn-0" / "00000000000000000000.log"
        whole = log.read_bytes()
        log.write_bytes(whole + whole[:50])
        cluster.restart()
        assert log.read_bytes().rstrip(b"\0") == whole.rstrip(b"\0")
        assert len(read_all(cluster.bootstrap_server, "torn")) == 100
        writer.send(10)
        writer.flush()
        assert len(read_all(cluster.bootstrap_server, "torn")) == 110
