"""The brokers of new replicas, checks on manual assignments, and the first state of a partition.

Replicas are striped over racks, and over the brokers of each rack (KIP-36, KIP-841): they are
distinct, lie on as many racks as possible, and the first is not fenced. A broker with several log
directories chooses by itself (`storage.log_manager`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from moldau.controller.core.result import Refusal
from moldau.controller.core.state import ControllerState, Random
from moldau.metadata.features import DIRECTORY_ASSIGNMENT_LEVEL
from moldau.metadata.image import (
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerRegistration,
    PartitionRegistration,
)
from moldau.metadata.steps import Steps
from moldau.protocol.errors import ErrorCode


class UsableBroker(NamedTuple):
    """A broker that may hold replicas; a fenced one only when there are not enough others."""

    broker_id: int
    rack: str | None
    fenced: bool


class _Ring:
    """Brokers dealt in turn: a partition starts one broker further than the one before it that
    took from here.
    """

    __slots__ = ("_brokers", "_dealt", "_round", "_start")

    def __init__(self, random: Random, broker_ids: Iterable[int]) -> None:
        self._brokers = sorted(broker_ids)
        self._start = random.randrange(len(self._brokers)) if self._brokers else 0
        self._round = 0
        self._dealt = 0

    def shuffle(self, random: Random) -> None:
        random.shuffle(self._brokers)

    def deal(self, partition_round: int) -> int | None:
        """The next broker for this partition, None when all were dealt."""
        if not self._brokers:
            return None
        if partition_round != self._round:
            self._round, self._dealt = partition_round, 0
            self._start = (self._start + 1) % len(self._brokers)
        if self._dealt == len(self._brokers):
            return None
        self._dealt += 1
        return self._brokers[(self._start + self._dealt - 1) % len(self._brokers)]


class _Rack:
    __slots__ = ("fenced", "unfenced")

    def __init__(self, random: Random, brokers: Sequence[UsableBroker]) -> None:
        self.unfenced = _Ring(random, (each.broker_id for each in brokers if not each.fenced))
        self.fenced = _Ring(random, (each.broker_id for each in brokers if each.fenced))

    def deal(self, partition_round: int) -> int | None:
        broker_id = self.unfenced.deal(partition_round)
        return self.fenced.deal(partition_round) if broker_id is None else broker_id

    def shuffle(self, random: Random) -> None:
        self.fenced.shuffle(random)
        self.unfenced.shuffle(random)


def place_replicas(
    random: Random,
    brokers: Sequence[UsableBroker],
    *,
    partition_count: int,
    replication_factor: int,
) -> Steps[list[list[int]]]:
    """Replicas of new partitions, the preferred leader first.

    Racks take turns partition by partition, and so do the brokers inside a rack; once there are as
    many partitions as unfenced brokers, racks and brokers are shuffled, so that followers do not
    always meet the same leaders.

    Raises Refusal: INVALID_REPLICATION_FACTOR, too few brokers or none that is not fenced.
    """
    _check_placement(brokers, replication_factor)
    by_rack: dict[str, list[UsableBroker]] = {}
    for broker in brokers:
        by_rack.setdefault(broker.rack or "", []).append(broker)
    racks = [_Rack(random, by_rack[name]) for name in sorted(by_rack)]
    unfenced_count = sum(not broker.fenced for broker in brokers)
    first_rack = random.randrange(len(racks))
    placements: list[list[int]] = []
    partition_round = 0
    for _ in range(partition_count):
        if partition_round == unfenced_count > 1:
            random.shuffle(racks)
            for rack in racks:
                rack.shuffle(random)
            partition_round = 0
        placements.append(_place_one(racks, first_rack, partition_round, replication_factor))
        first_rack = (first_rack + 1) % len(racks)
        partition_round += 1
        yield
    return placements


def _place_one(
    racks: list[_Rack], first_rack: int, partition_round: int, replication_factor: int
) -> list[int]:
    order = [(first_rack + step) % len(racks) for step in range(len(racks))]
    replicas: list[int] = []
    leader_rack = -1
    for rack_index in order:
        leader = racks[rack_index].unfenced.deal(partition_round)
        if leader is not None:
            replicas.append(leader)
            leader_rack = rack_index
            break
    assert replicas, "a broker that is not fenced was checked for"
    skip_leader_rack = True
    while len(replicas) < replication_factor:
        for rack_index in order:
            if len(replicas) == replication_factor:
                break
            if rack_index == leader_rack and skip_leader_rack:
                skip_leader_rack = False  # it gave its broker of this turn already
                continue
            broker_id = racks[rack_index].deal(partition_round)
            if broker_id is not None:
                replicas.append(broker_id)
    return replicas


def _check_placement(brokers: Sequence[UsableBroker], replication_factor: int) -> None:
    if replication_factor <= 0:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be at least 1"
        )
    if len(brokers) < replication_factor:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {replication_factor} needs as many brokers, "
            f"{len(brokers)} are registered",
        )
    if all(broker.fenced for broker in brokers):
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR, "all brokers are fenced or shutting down"
        )


MAX_NAMED_BROKERS: Final = 50


def usable_brokers(state: ControllerState) -> list[UsableBroker]:
    """The brokers that placement may choose from: not one that is about to stop, nor one whose
    directories are all cordoned.
    """
    return [
        UsableBroker(broker_id, broker.rack, broker.fenced)
        for broker_id, broker in sorted(state.image.cluster.brokers.items())
        if (broker.fenced or state.is_active(broker_id)) and not _fully_cordoned(broker)
    ]


def _fully_cordoned(broker: BrokerRegistration) -> bool:
    cordoned = broker.cordoned_directories
    if not broker.directories or not cordoned:
        return False
    return set(broker.directories).issubset(cordoned)


def default_directory(state: ControllerState, broker_id: int) -> UUID:
    """The directory of a broker's new replica: its only one, or one still to choose (KIP-858)."""
    broker = state.broker(broker_id)
    if broker is None or not broker.directories:
        return MIGRATING_DIRECTORY
    return broker.directories[0] if len(broker.directories) == 1 else UNASSIGNED_DIRECTORY


def new_partition(state: ControllerState, replicas: Sequence[int]) -> PartitionRegistration:
    """The first state of a partition on `replicas`, at least one of which is live."""
    isr = tuple(broker_id for broker_id in replicas if state.is_active(broker_id))
    assert isr, "placement and manual checks leave a live replica"
    directories = (MIGRATING_DIRECTORY,) * len(replicas)
    if state.metadata_level >= DIRECTORY_ASSIGNMENT_LEVEL:
        directories = tuple(default_directory(state, broker_id) for broker_id in replicas)
    return PartitionRegistration(
        replicas=tuple(replicas), directories=directories, isr=isr, leader=isr[0]
    )


def check_manual_replicas(
    state: ControllerState,
    partition_index: int,
    replicas: Sequence[int],
    replication_factor: int,
    *,
    needs_live: bool = True,
) -> None:
    """Check one partition of a manual assignment; a new one needs a replica that is live.

    Raises Refusal: INVALID_REPLICA_ASSIGNMENT.
    """
    problem = None
    if not replicas:
        problem = "has no replicas"
    elif len(set(replicas)) != len(replicas):
        problem = f"names a broker twice: {_some(replicas)}"
    elif len(replicas) != replication_factor:
        problem = f"has {len(replicas)} replicas where {replication_factor} are expected"
    else:
        brokers = state.image.cluster.brokers
        unknown = [broker_id for broker_id in replicas if broker_id not in brokers]
        if unknown:
            problem = f"names brokers that are not registered: {_some(unknown)}"
        elif needs_live and not any(state.is_active(broker_id) for broker_id in replicas):
            problem = "has only brokers that are fenced or shutting down"
    if problem is not None:
        raise Refusal(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"partition {partition_index} {problem}"
        )


def _some(broker_ids: Sequence[int]) -> str:
    """The first ids, and how many more there are: a request may name hundreds of thousands."""
    if len(broker_ids) <= MAX_NAMED_BROKERS:
        return str(list(broker_ids))
    return f"{list(broker_ids[:MAX_NAMED_BROKERS])} and {len(broker_ids) - MAX_NAMED_BROKERS} more"
