"""The JSON pages of a broker with topics: every field, and where a page ends."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.broker.replica.partition import Partition
from moldau.node.http import views
from moldau.protocol.metadata_records import RegisterBrokerRecord
from moldau.protocol.metadata_records.nodes import Endpoint
from moldau.protocol.types import uuid_to_base64
from moldau.runtime.filesystem import OsFilesystem
from tests.unit.broker.harness import BROKER_ID, CLUSTER_ID, OTHER_BROKER_ID, DataPath, topic_id_of
from tests.unit.broker.messages import batch, produce

BOTH = (BROKER_ID, OTHER_BROKER_ID)


async def test_the_cluster(broker: DataPath):
    listener = Endpoint(name="EXTERNAL", host="h", port=9, security_protocol=0)
    broker.replay(
        RegisterBrokerRecord(
            broker_id=7, broker_epoch=70, rack="r1", fenced=True, end_points=[listener]
        )
    )
    broker.create_topic("a")
    document = views.cluster(broker.services)
    others, seven = document.pop("brokers")[:2], views.cluster(broker.services)["brokers"][2]  # type: ignore[attr-defined, index]
    assert document == {
        "cluster_id": CLUSTER_ID,
        "broker_id": BROKER_ID,
        "controller_id": 103,  # not the broker that clients are sent to
        "metadata_offset": broker.metadata.image.provenance.last_contained_offset,
        "features": {},
        "topic_count": 1,
    }
    assert [(each["broker_id"], each["fenced"]) for each in others] == [(1, False), (2, False)]
    assert others[1]["listeners"] == {"PLAINTEXT": "host-2:9092"}
    assert seven == {
        "broker_id": 7,
        "broker_epoch": 70,
        "rack": "r1",
        "fenced": True,
        "listeners": {"EXTERNAL": "h:9"},
    }


async def test_topics_come_in_pages(broker: DataPath, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(views, "MAX_TOPICS_PER_PAGE", 2)
    for name in "dbcae":
        broker.create_topic(name)
    services = broker.services
    assert views.topic_names(services) == (["a", "b"], "b")
    assert views.topic_names(services, "b") == (["c", "d"], "d")
    assert views.topic_names(services, "d") == (["e"], None)
    assert views.topic_names(services, "c") == (["d", "e"], None)
    assert views.topic_names(services, "e") == ([], None)
    assert views.topics(services, ["a", "gone", "b"], "b") == {
        "topics": [
            {
                "name": name,
                "topic_id": uuid_to_base64(topic_id_of(name)),
                "internal": False,
                "partition_count": 1,
            }
            for name in "ab"
        ],
        "next_after": "b",
    }


async def test_internal_topics_are_marked(broker: DataPath):
    broker.create_topic("__consumer_offsets", 3)
    [entry] = views.topics(broker.services, ["__consumer_offsets"], None)["topics"]  # type: ignore[misc]
    assert (entry["internal"], entry["partition_count"]) == (True, 3)


def replica(broker_id: int, **more: Any) -> dict[str, Any]:
    return {"broker_id": broker_id, "in_sync": True, "caught_up_age_ms": 0.0, **more}


async def test_a_topic_as_its_leader_knows_it(broker: DataPath):
    broker.create_topic("a", replicas=BOTH, isr=BOTH, min_insync_replicas="2", cleanup_policy="x")
    await broker.ask(produce({("a", 0): batch(2)}, acks=1), 12)
    broker.follower_has("a", OTHER_BROKER_ID, 1)
    document = views.topic(broker.services, "a")
    assert document is not None
    [partition] = document.pop("partitions")  # type: ignore[misc]
    assert document == {
        "name": "a",
        "topic_id": uuid_to_base64(topic_id_of("a")),
        "internal": False,
        "partition_count": 1,
        "configs": {"cleanup.policy": "x", "min.insync.replicas": "2"},
        "next_partition": None,
    }
    size_bytes = partition.pop("size_bytes")
    assert size_bytes == broker.log("a").size_bytes > 0
    assert partition == {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 0,
        "replicas": [1, 2],
        "isr": [1, 2],
        "eligible_leader_replicas": [],
        "offline_replicas": [],
        "error": None,
        "log_start_offset": 0,
        "high_watermark": 1,
        "log_end_offset": 2,
        "offline": False,
        "low_watermark": broker.partition("a").low_watermark,
        "under_min_isr": False,
        "reassigning": False,
        "replica_states": [
            replica(1, log_end_offset=2, lag=0),
            replica(2, log_end_offset=1, lag=1),
        ],
    }
    hidden = views.topic(broker.services, "a", shows_configs=False)
    assert hidden is not None
    assert hidden["configs"] is None
    assert views.topic(broker.services, "none") is None


async def test_a_topic_as_another_broker_knows_it(broker: DataPath):
    broker.create_topic("far", leader=OTHER_BROKER_ID, replicas=(OTHER_BROKER_ID,))
    broker.create_topic("here", leader=OTHER_BROKER_ID, replicas=BOTH, leader_epoch=4)
    broker.create_topic("none", leader=-1, isr=(), replicas=(9,))
    document = views.topic(broker.services, "far")
    assert document is not None
    assert document["partitions"] == [
        {
            "partition": 0,
            "leader": 2,
            "leader_epoch": 0,
            "replicas": [2],
            "isr": [2],
            "eligible_leader_replicas": [],
            "offline_replicas": [],
            "error": None,
        }
    ]
    [followed] = views.topic(broker.services, "here")["partitions"]  # type: ignore[index, misc]
    assert (followed["leader_epoch"], followed["log_end_offset"]) == (4, 0)
    assert "replica_states" not in followed
    [lost] = views.topic(broker.services, "none")["partitions"]  # type: ignore[index, misc]
    assert (lost["leader"], lost["error"]) == (-1, "LEADER_NOT_AVAILABLE")
    assert lost["offline_replicas"] == [9]


async def test_an_offline_partition_says_nothing_of_its_replicas(
    broker: DataPath, monkeypatch: pytest.MonkeyPatch
):
    broker.create_topic("a")
    monkeypatch.setattr(Partition, "is_offline", True)
    [partition] = views.topic(broker.services, "a")["partitions"]  # type: ignore[index, misc]
    assert "replica_states" not in partition


async def test_partitions_come_in_pages(broker: DataPath, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(views, "MAX_PARTITIONS_PER_PAGE", 2)
    broker.create_topic("a", 5, leader=OTHER_BROKER_ID, replicas=(OTHER_BROKER_ID,))

    def page(first: int) -> tuple[list[int], object]:
        document: Any = views.topic(broker.services, "a", first)
        return [each["partition"] for each in document["partitions"]], document["next_partition"]

    assert page(0) == ([0, 1], 2)
    assert page(2) == ([2, 3], 4)
    assert page(3) == ([3, 4], None)
    assert page(4) == ([4], None)
    assert page(5) == ([], None)


async def test_log_directories(broker: DataPath, monkeypatch: pytest.MonkeyPatch):
    broker.create_topic("a", 2)
    monkeypatch.setattr(OsFilesystem, "disk_usage", lambda *_: (1_000, 300))
    monkeypatch.setattr(broker.log_manager.directories, "unavailable", ["/gone"])
    assert views.log_directories(broker.services) == {
        "log_directories": [
            {
                "directory": broker.directory,
                "error": None,
                "total_bytes": 1_000,
                "usable_bytes": 300,
                "partitions": [
                    {"topic": "a", "partition": index, "size_bytes": 0} for index in (0, 1)
                ],
            },
            {
                "directory": "/gone",
                "error": "KAFKA_STORAGE_ERROR",
                "total_bytes": -1,
                "usable_bytes": -1,
                "partitions": [],
            },
        ]
    }


async def test_the_digest_of_the_metadata(broker: DataPath):
    broker.create_topic("a")
    image = broker.metadata.image
    assert views.metadata(image) == {
        "last_applied_offset": image.provenance.last_contained_offset,
        "last_applied_epoch": 1,
        "digest": image.digest(),
    }
