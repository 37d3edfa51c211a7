"""Metrics that are derived when they are asked for: names, values, and how many there are."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.node.http import collect
from moldau.node.http.collect import LogTotals, LoopLoad
from moldau.node.http.metrics import Sample
from moldau.protocol.metadata_records import FeatureLevelRecord, RegisterBrokerRecord
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath
from tests.unit.broker.messages import batch, produce


def values(samples: list[Sample]) -> dict[tuple[str, ...], float]:
    """Value by short name and labels."""
    return {
        (each.name.rpartition("name=")[2], *(text for _, text in each.labels)): each.value
        for each in samples
    }


def kinds(samples: list[Sample]) -> dict[str, str]:
    return {each.name: each.kind for each in samples}


async def test_logs(broker: DataPath):
    broker.create_topic("a", 2)
    await broker.ask(produce({("a", 1): batch(3)}), 12)
    log = broker.log("a", 1)
    log.producer_state.producers[7] = log.producer_state.producers[8] = None  # counted alone
    totals = LogTotals()
    logs = [broker.log("a", 0), log]
    found = values(collect.log_samples(logs, totals, shown=True))
    log.producer_state.producers.clear()
    assert found == {
        ("Size", "0", "a"): 0,
        ("LogStartOffset", "0", "a"): 0,
        ("LogEndOffset", "0", "a"): 0,
        ("NumLogSegments", "0", "a"): 1,
        ("Size", "1", "a"): log.size_bytes,
        ("LogStartOffset", "1", "a"): 0,
        ("LogEndOffset", "1", "a"): 3,
        ("NumLogSegments", "1", "a"): 1,
    }
    assert (totals.size_bytes, totals.producer_ids) == (log.size_bytes, 2)
    assert collect.log_samples(logs, totals, shown=False) == []
    assert totals.size_bytes == 2 * log.size_bytes
    assert [(each.name, each.kind, each.value) for each in collect.total_samples(totals)] == [
        ("kafka.server:type=ReplicaManager,name=ProducerIdCount", "gauge", 2),
        ("kafka.log:type=LogManager,name=TotalLogSize", "gauge", 2 * log.size_bytes),
    ]


def test_logs_are_visited_in_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(collect, "LOGS_PER_VISIT", 3)
    monkeypatch.setattr(collect, "MAX_LOGS_SHOWN", 6)
    logs: Any = list(range(8))
    assert list(collect.visits(logs)) == [
        ([0, 1, 2], True),
        ([3, 4, 5], True),
        ([6, 7], False),
    ]
    assert list(collect.visits([])) == []


class Connections(list[Any]):
    """What a ConnectionGroup shows."""

    created_count = 11
    rejected_count = 2
    bytes_received = 300
    bytes_sent = 400
    shares = SimpleNamespace(held_bytes=70, limit_bytes=100)


def test_the_server():
    group: Any = Connections(SimpleNamespace(in_flight_count=count) for count in (2, 3))
    samples = collect.server_samples(group)
    assert values(samples) == {
        ("connection-count",): 2,
        ("connection-creation",): 11,
        ("connection-rejected",): 2,
        ("incoming-byte",): 300,
        ("outgoing-byte",): 400,
        ("RequestQueueSize",): 5,
        ("MemoryPoolUsed",): 70,
        ("MemoryPoolAvailable",): 30,
    }
    counters = [name for name, kind in kinds(samples).items() if kind == "counter"]
    assert counters == [
        f"kafka.server:type=socket-server-metrics,name={name}"
        for name in ("connection-creation", "connection-rejected", "incoming-byte", "outgoing-byte")
    ]
    group.shares = SimpleNamespace(held_bytes=130, limit_bytes=100)
    assert values(collect.server_samples(group))["MemoryPoolAvailable",] == 0


async def test_the_cluster(broker: DataPath):
    broker.create_topic("a", 4, replicas=(BROKER_ID, OTHER_BROKER_ID))
    broker.create_topic("b", leader=OTHER_BROKER_ID, replicas=(BROKER_ID, OTHER_BROKER_ID))
    broker.create_topic("c", leader=-1, isr=())
    broker.replay(
        RegisterBrokerRecord(broker_id=7, fenced=True),
        FeatureLevelRecord(name="metadata.version", feature_level=25),
    )
    image = broker.metadata.image
    offset = image.provenance.last_contained_offset
    assert values(collect.image_samples(image, 1_500.0)) == {
        ("ActiveBrokerCount",): 2,
        ("FencedBrokerCount",): 1,
        ("GlobalTopicCount",): 3,
        ("GlobalPartitionCount",): 6,
        ("OfflinePartitionsCount",): 1,
        ("PreferredReplicaImbalanceCount",): 2,
        ("last-applied-record-offset",): offset,
        ("last-applied-record-timestamp",): 0,
        ("last-applied-record-lag-ms",): 1_500,
        ("CurrentMetadataVersion",): 25,
    }
    later = MetadataDelta(image).apply(Provenance(offset, 1, 400))
    samples = values(collect.image_samples(later, 1_500.0))
    assert samples["last-applied-record-timestamp",] == 400
    assert samples["last-applied-record-lag-ms",] == 1_100
    none = values(collect.image_samples(MetadataImage.EMPTY, 0.0))
    assert none["CurrentMetadataVersion",] == none["GlobalPartitionCount",] == 0
    lag = values(collect.image_samples(image, -5.0))["last-applied-record-lag-ms",]
    assert lag == 0, "a wall clock may go back"


def directory(path: str, *, is_online: bool) -> Any:
    return SimpleNamespace(path=path, is_online=is_online)


def test_log_directories():
    def disk_usage(path: str) -> tuple[int, int]:
        if path == "/broken":
            raise OSError
        return 1_000, 300

    manager = SimpleNamespace(
        directories=SimpleNamespace(
            all=[
                directory("/a", is_online=True),
                directory("/broken", is_online=True),
                directory("/off", is_online=False),
                directory("/z", is_online=True),
            ],
            unavailable=["/never"],
        ),
        filesystem=SimpleNamespace(disk_usage=disk_usage),
    )
    services: Any = SimpleNamespace(log_manager=manager)
    assert values(collect.directory_samples(services)) == {
        ("LogDirectoryOffline", "/a"): 0,
        ("TotalBytes", "/a"): 1_000,
        ("UsableBytes", "/a"): 300,
        ("LogDirectoryOffline", "/broken"): 0,
        ("LogDirectoryOffline", "/off"): 1,
        ("LogDirectoryOffline", "/z"): 0,
        ("TotalBytes", "/z"): 1_000,
        ("UsableBytes", "/z"): 300,
        ("LogDirectoryOffline", "/never"): 1,
    }


def test_the_cleaner():
    cleaner: Any = SimpleNamespace(
        figures=SimpleNamespace(values=lambda: {"kafka.log:type=LogCleaner,name=x": 5}),
        uncleanable_by_directory=lambda: {"/a": (2, 30), "/b": (0, 0)},
    )
    assert values(collect.cleaner_samples(cleaner)) == {
        ("x",): 5,
        ("uncleanable-partitions-count", "/a"): 2,
        ("uncleanable-bytes", "/a"): 30,
        ("uncleanable-partitions-count", "/b"): 0,
        ("uncleanable-bytes", "/b"): 0,
    }


def test_the_load_of_a_loop_s_thread(monkeypatch: pytest.MonkeyPatch):
    now, used = 100.0, 5.0
    monkeypatch.setattr(time, "pthread_getcpuclockid", lambda thread: ("clock of", thread))
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: used if clock[1] == 4 else None)
    load = LoopLoad(4)

    def after(elapsed: float, more: float) -> tuple[float, float]:
        nonlocal now, used
        now, used = now + elapsed, used + more
        idle, cpu = load.samples()
        assert (idle.kind, cpu.kind) == ("gauge", "counter")
        return idle.value, cpu.value

    assert after(10, 2.5) == (0.75, 7.5)
    assert after(10, 10.5) == (0.0, 18.0)
    assert after(0, 0) == (1.0, 18.0)
    assert after(0.5, 0.25) == (0.5, 18.25)


def test_a_system_without_clocks_of_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(time, "pthread_getcpuclockid")
    idle, cpu = LoopLoad(4).samples()
    assert (idle.value, cpu.value) == (1.0, 0.0)
