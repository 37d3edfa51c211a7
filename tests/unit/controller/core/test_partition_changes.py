"""One partition's transitions: what Apache Kafka 4.3.0 decides in hundreds of situations, and where
we do otherwise.
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from moldau.controller.core.partition_changes import (
    Election,
    ElectionRules,
    PartitionTarget,
    change_partition,
)
from moldau.metadata.image import PartitionRegistration
from moldau.metadata.image.topics import merge_partition_change
from moldau.protocol.metadata_records import PartitionChangeRecord
from tests.unit.metadata.builders import golden

CASES: list[dict[str, Any]] = json.loads(golden("partition-changes.json"))
TOPIC = UUID(int=1)


def directory(broker_id: int) -> UUID:
    return UUID(int=(7 << 64) | broker_id)


def partition_of(case: dict[str, Any]) -> PartitionRegistration:
    return PartitionRegistration(
        replicas=tuple(case["replicas"]),
        directories=tuple(directory(each) for each in case["replicas"]),
        isr=tuple(case["isr"]),
        removing_replicas=tuple(case.get("removing", ())),
        adding_replicas=tuple(case.get("adding", ())),
        elr=tuple(case.get("elr", ())),
        last_known_elr=tuple(case.get("last", ())),
        leader=case["leader"],
        leader_recovery_state=case.get("recovery", 0),
        leader_epoch=5,
        partition_epoch=9,
    )


def change(case: dict[str, Any]) -> tuple[PartitionChangeRecord, int] | None:
    record = change_partition(
        TOPIC,
        0,
        partition_of(case),
        PartitionTarget(
            isr=case.get("t_isr"),
            replicas=case.get("t_replicas"),
            removing_replicas=case.get("t_removing"),
            adding_replicas=case.get("t_adding"),
            leader_recovery_state=case.get("t_recovery"),
            lost=case.get("unclean", ()),
        ),
        case["acceptable"].__contains__,
        ElectionRules(
            eligible_leader_replicas_enabled=case["elr_on"],
            min_insync_replicas=case["min_isr"],
            election=Election[case["election"]],
            metadata_level=case["level"],
        ),
        directory,
    )
    if record is None:
        return None
    change, version = record
    assert isinstance(change, PartitionChangeRecord)
    return change, version


def kafkas_record(result: dict[str, Any] | None) -> tuple[PartitionChangeRecord, int] | None:
    if result is None:
        return None
    directories = result.get("dirs")
    record = PartitionChangeRecord(
        partition_id=0,
        topic_id=TOPIC,
        isr=result.get("isr"),
        leader=result.get("leader", -2),
        replicas=result.get("replicas"),
        removing_replicas=result.get("removing"),
        adding_replicas=result.get("adding"),
        leader_recovery_state=result.get("recovery", -1),
        directories=None if directories is None else [directory(each) for each in directories],
        eligible_leader_replicas=result.get("elr"),
        last_known_elr=result.get("last"),
    )
    return record, result["version"]


def outcome(
    partition: PartitionRegistration, change: tuple[PartitionChangeRecord, int] | None
) -> tuple[PartitionRegistration, int]:
    """The partition afterwards. Kafka's sets of eligible leaders are in no order, and it writes
    them again when only the order differs, which is why epochs may differ by that. It also notes
    -1 as the last known leader of a partition that had none.
    """
    if change is None:
        return partition._replace(elr=tuple(sorted(partition.elr))), 0
    after = merge_partition_change(partition, change[0])
    after = after._replace(
        elr=tuple(sorted(after.elr)),
        last_known_elr=tuple(each for each in after.last_known_elr if each >= 0),
        partition_epoch=partition.partition_epoch,
    )
    return after, change[1] if after != partition else 0


def test_kafka_decides_the_same() -> None:
    different = []
    for case in CASES:
        partition = partition_of(case)
        ours = outcome(partition, change(case))
        kafkas = outcome(partition, kafkas_record(case["result"]))
        if ours[0] != kafkas[0] or (ours[1] and kafkas[1] and ours[1] != kafkas[1]):
            different.append((case, ours, kafkas))
    assert len(CASES) >= 400
    assert different[:3] == []


def test_the_cases_cover_every_kind_of_outcome() -> None:
    kinds = {(case["op"], case["election"], case["elr_on"]) for case in CASES}
    assert len(kinds) >= 28
    results = [case["result"] for case in CASES if case["result"] is not None]
    for part in ("isr", "leader", "replicas", "removing", "adding", "elr", "last", "recovery"):
        assert sum(part in result for result in results) >= 10, part


BASE = {
    "leader": -1,
    "acceptable": [0, 1, 2],
    "elr_on": True,
    "level": 30,
    "election": "ONLINE",
}


def test_who_has_no_replica_is_not_eligible() -> None:
    """Kafka keeps a removed replica among the eligible leaders when the ISR is small."""
    case = BASE | {
        "replicas": [0, 1],
        "isr": [0, 1],
        "leader": 0,
        "min_isr": 3,
        "t_replicas": [0, 1],
        "t_removing": [1],
    }
    changed = change(case)
    assert changed is not None
    after = merge_partition_change(partition_of(case), changed[0])
    assert (after.replicas, after.isr, after.elr) == ((0,), (0,), ())


def test_eligible_leaders_end_when_the_new_leader_may_commit_alone() -> None:
    """After `min.insync.replicas` went down while no replica was in sync."""
    case = BASE | {"replicas": [0, 1, 2], "isr": [], "elr": [0, 1], "min_isr": 1}
    changed = change(case)
    assert changed is not None
    after = merge_partition_change(partition_of(case), changed[0])
    assert (after.leader, after.isr, after.elr) == (0, (0,), ())
    case["min_isr"] = 2
    changed = change(case)
    assert changed is not None
    assert merge_partition_change(partition_of(case), changed[0]).elr == (1,)
