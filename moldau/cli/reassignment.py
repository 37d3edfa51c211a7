"""Moves of partitions: the wish, the plan, its file and its throttle, and how far moves have come.

Owns the JSON of kafka-reassign-partitions, which keys a throttle sets on which brokers and topics
(KIP-73), and the figures and the waiting. Must not choose replicas (`client.admin.replica_planner`
does). Invariants: every broker and partition of a plan exists, and partitions that stay as they are
are no part of it; a file is consistent in itself: no partition and no broker of a partition is
named twice, and it asks for nothing that is not done; what is taken away with a throttle is named,
and nothing else is; a figure that no broker reported is None, and an estimate is made of what was
seen, never of what was configured.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from moldau import client
from moldau.cli.options import Target, describe_targets, ids_text, partitions_of, read_small_file
from moldau.cli.output import SUMMARY, Block, LiveView, fail, file_errors, refusing, size_text
from moldau.client.admin.replica_planner import PlanImpossible, RackUnknown, plan_replicas

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
DIRECTORY_RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
BROKER_KEYS = (LEADER_RATE, FOLLOWER_RATE, DIRECTORY_RATE)
TOPIC_KEYS = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
VERSION = 1
ANY_DIRECTORY = "any"
FORM = '{"version":1,"partitions":[{"topic":…,"partition":…,"replicas":[…]}]}'
Assignment = Mapping[client.TopicPartition, Sequence[int]]
FIGURES_TIMEOUT_MS = 5_000
COLUMNS = ("partition", "replica", "in-sync", "end", "leader-end", "behind", "size", "missing")
WINDOW_COUNT = 30
"""Looks that a rate is taken over."""


class Move(NamedTuple):
    """The replicas of one partition before and after."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def added(self) -> tuple[int, ...]:
        return tuple(each for each in self.after if each not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        return tuple(each for each in self.before if each not in self.after)


def topic_throttles(moves: Mapping[client.TopicPartition, Move]) -> dict[str, dict[str, str]]:
    """The lists of throttled replicas by topic: those copied from, and those copied to."""
    throttles: dict[str, dict[str, list[str]]] = {}
    for partition, move in sorted(moves.items()):
        if not move.added:
            continue
        lists = throttles.setdefault(partition.topic, {key: [] for key in TOPIC_KEYS})
        lists[LEADER_REPLICAS] += [f"{partition.partition}:{each}" for each in move.before]
        lists[FOLLOWER_REPLICAS] += [f"{partition.partition}:{each}" for each in move.added]
    return {
        topic: {key: ",".join(values) for key, values in lists.items()}
        for topic, lists in throttles.items()
    }


def throttled_brokers(moves: Mapping[client.TopicPartition, Move]) -> list[int]:
    ids = {each for move in moves.values() if move.added for each in (*move.before, *move.added)}
    return sorted(ids)


async def set_throttle(
    admin: client.Admin,
    moves: Mapping[client.TopicPartition, Move],
    bytes_per_second: int,
    live_broker_ids: Collection[int],
) -> list[int]:
    """Throttle moves before they begin; the brokers that could not be reached, since they are down.

    Lists that a topic has already are replaced, as Kafka's tool does. Raises: KafkaError
    """
    assert bytes_per_second > 0
    brokers = throttled_brokers(moves)
    changes: dict[client.ConfigResource, list[client.ConfigChange]] = {
        client.ConfigResource(client.ConfigResourceType.TOPIC, topic): [
            client.ConfigChange(key, value) for key, value in values.items()
        ]
        for topic, values in topic_throttles(moves).items()
    }
    await admin.alter_configs(changes)
    rate = str(bytes_per_second)
    await admin.alter_configs(
        {
            client.ConfigResource(client.ConfigResourceType.BROKER, str(broker_id)): [
                client.ConfigChange(LEADER_RATE, rate),
                client.ConfigChange(FOLLOWER_RATE, rate),
            ]
            for broker_id in brokers
            if broker_id in live_broker_ids
        }
    )
    return [broker_id for broker_id in brokers if broker_id not in live_broker_ids]


async def clear_throttles(admin: client.Admin, topics: Iterable[str]) -> list[str]:
    """Take throttles from brokers and topics; which of them had one. Raises: KafkaError"""
    brokers = (await admin.describe_cluster()).brokers
    cleared = []
    for broker in brokers:
        resource = client.ConfigResource(client.ConfigResourceType.BROKER, str(broker.node_id))
        if await _reset(admin, resource, BROKER_KEYS, client.ConfigSource.DYNAMIC_BROKER_CONFIG):
            cleared.append(f"broker {broker.node_id}")
    for topic in sorted(set(topics)):
        resource = client.ConfigResource(client.ConfigResourceType.TOPIC, topic)
        try:
            if await _reset(admin, resource, TOPIC_KEYS, client.ConfigSource.DYNAMIC_TOPIC_CONFIG):
                cleared.append(f"topic {topic}")
        except client.UnknownTopicOrPartition:
            continue  # deleted since then, with its configuration
    return cleared


async def _reset(
    admin: client.Admin,
    resource: client.ConfigResource,
    keys: Iterable[str],
    source: client.ConfigSource,
) -> bool:
    """Delete the keys that are set on the resource itself; whether there was one."""
    entries = (await admin.describe_configs([resource]))[resource]
    found = [key for key in keys if key in entries and entries[key].source == source]
    if found:
        changes = [client.ConfigChange(key, None, client.ConfigOperation.DELETE) for key in found]
        await admin.alter_configs({resource: changes})
    return bool(found)


def assignment_document(assignment: Assignment) -> dict[str, object]:
    """An assignment in the form of Kafka's files."""
    return {
        "version": VERSION,
        "partitions": [
            {
                **partition._asdict(),
                "replicas": list(replicas),
                "log_dirs": [ANY_DIRECTORY] * len(replicas),
            }
            for partition, replicas in sorted(assignment.items())
        ],
    }


def write_assignment(path: Path, assignment: Assignment) -> None:
    """Write a file; exits with status 1 when that fails."""
    with file_errors(path):
        path.write_text(json.dumps(assignment_document(assignment)) + "\n", encoding="utf-8")


def read_assignment(path: Path) -> dict[client.TopicPartition, list[int]]:
    """The moves of a file; exits with status 2 when it cannot be read or has another form."""
    with refusing(ValueError, of=f"{path}: not JSON of the form {FORM}"):
        document = json.loads(read_small_file(path))
    with refusing(ValueError, of=path):
        return parse_assignment(document)


def parse_assignment(document: object) -> dict[client.TopicPartition, list[int]]:
    """The moves in a document. Raises: ValueError, with one line that says what is wrong."""
    if not isinstance(document, dict) or not isinstance(document.get("partitions"), list):
        raise ValueError(f"not of the form {FORM}")
    version = document.get("version", VERSION)
    if version != VERSION:
        raise ValueError(f"version {version!r}; only {VERSION} is known")
    moves: dict[client.TopicPartition, list[int]] = {}
    for each in document["partitions"]:
        partition, replicas = _entry(each)
        if partition in moves:
            raise ValueError(f"{partition} is named twice")
        moves[partition] = replicas
    if not moves:
        raise ValueError("no partitions are named")
    return moves


def _entry(entry: object) -> tuple[client.TopicPartition, list[int]]:
    if not isinstance(entry, dict) or not {"topic", "partition", "replicas"} <= entry.keys():
        raise ValueError(f"{_short(entry)} has not the form {FORM}")
    topic, index, replicas = entry["topic"], entry["partition"], entry["replicas"]
    if not isinstance(topic, str) or not topic:
        raise ValueError(f"the topic {_short(topic)} is not a name")
    if not _is_id(index):
        raise ValueError(f"{topic}: the partition {_short(index)} is not a number from 0 on")
    partition = client.TopicPartition(topic, index)
    if not isinstance(replicas, list) or not replicas or not all(map(_is_id, replicas)):
        raise ValueError(f"{partition}: replicas {_short(replicas)} is not a list of broker ids")
    if len(set(replicas)) < len(replicas):
        raise ValueError(f"{partition}: replicas {_short(replicas)} names a broker twice")
    directories = entry.get("log_dirs", [ANY_DIRECTORY] * len(replicas))
    if not isinstance(directories, list) or len(directories) != len(replicas):
        raise ValueError(f"{partition}: log_dirs needs one entry for each of the replicas")
    if any(each != ANY_DIRECTORY for each in directories):
        raise ValueError(f'{partition}: log_dirs can only be "{ANY_DIRECTORY}"')
    return partition, replicas


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


class Wish(NamedTuple):
    """What the user asks for: listed replicas, or rules for a plan."""

    targets: list[Target]
    listed: Mapping[client.TopicPartition, Sequence[int]] | None = None
    replicas: list[int] | None = None
    brokers: list[int] | None = None
    without: list[int] | None = None
    racks: list[str] | None = None
    replication_factor: int | None = None
    rack_aware: bool = True


class Plan(NamedTuple):
    """What would become of which partitions; those that stay as they are are left out of `moves`,
    and so are those that are on their way to where they are wanted.
    """

    wanted: dict[client.TopicPartition, tuple[int, ...]]
    moves: dict[client.TopicPartition, Move]
    ongoing: dict[client.TopicPartition, client.Reassignment]
    cluster: client.ClusterDescription

    @property
    def live_broker_ids(self) -> set[int]:
        return {each.node_id for each in self.cluster.brokers if not each.fenced}

    @property
    def after(self) -> dict[client.TopicPartition, tuple[int, ...]]:
        return {partition: move.after for partition, move in self.moves.items()}

    @property
    def before(self) -> dict[client.TopicPartition, tuple[int, ...]]:
        return {partition: move.before for partition, move in self.moves.items()}


async def make_plan(admin: client.Admin, wish: Wish) -> Plan:
    """What fulfils a wish; exits with status 1 when nothing can. Raises: KafkaError"""
    topics, partitions = await describe_targets(admin, wish.targets or list(wish.listed or ()))
    cluster = await admin.describe_cluster(include_fenced_brokers=True)
    ongoing = await admin.list_partition_reassignments()
    described = partitions_of(topics)
    before = {each: described[each].replicas for each in partitions}
    before |= {each: ongoing[each].target_replicas for each in partitions if each in ongoing}
    after: Mapping[client.TopicPartition, Sequence[int]]
    if wish.listed is not None:
        after = wish.listed
    elif wish.replicas is not None:
        after = dict.fromkeys(partitions, wish.replicas)
    else:
        try:
            after = plan_replicas(
                before, _usable(cluster, wish), replication_factor=wish.replication_factor
            )
        except RackUnknown as unknown:
            fail(f"{unknown}: set it, or give --disable-rack-aware")
        except PlanImpossible as impossible:
            fail(str(impossible))
    missing = {each for replicas in after.values() for each in replicas}
    missing -= {each.node_id for each in cluster.brokers}
    if missing:
        fail(_no_broker(sorted(missing), cluster))
    moves = {
        partition: Move(before[partition], tuple(after[partition]))
        for partition in partitions
        if before[partition] != tuple(after[partition])
    }
    wanted = {partition: tuple(after[partition]) for partition in partitions}
    return Plan(wanted, moves, ongoing, cluster)


def _usable(cluster: client.ClusterDescription, wish: Wish) -> dict[int, str | None]:
    """The brokers a plan may use, with their racks; exits with status 1 when one is missing."""
    brokers = {each.node_id: each for each in cluster.brokers}
    unknown = [
        each for each in (*(wish.brokers or ()), *(wish.without or ())) if each not in brokers
    ]
    if unknown:
        fail(_no_broker(unknown, cluster))
    fenced = [each for each in wish.brokers or () if brokers[each].fenced]
    if fenced:
        fail(f"broker {ids_text(fenced)} does not serve at the moment")
    known_racks = {each.rack for each in cluster.brokers if each.rack is not None}
    for rack in wish.racks or ():
        if rack not in known_racks:
            known = ", ".join(sorted(known_racks)) or "none"
            fail(f"no broker is in rack {rack!r}; racks are {known}")
    return {
        each.node_id: each.rack if wish.rack_aware else None
        for each in cluster.brokers
        if not each.fenced
        and (wish.brokers is None or each.node_id in wish.brokers)
        and (wish.racks is None or each.rack in wish.racks)
        and each.node_id not in (wish.without or ())
    }


def _no_broker(unknown: Sequence[int], cluster: client.ClusterDescription) -> str:
    known = ", ".join(str(each.node_id) for each in cluster.brokers)
    return f"there is no broker {', '.join(map(str, unknown))}; there are {known or 'none'}"


async def partition_sizes(
    admin: client.Admin, made: Plan
) -> dict[client.TopicPartition, int | None]:
    """The size of each partition, as the first of its replicas that answers reports it."""
    wanted = [
        client.TopicPartitionReplica(*partition, broker_id)
        for partition, move in made.moves.items()
        if move.added
        for broker_id in move.before
        if broker_id in made.live_broker_ids
    ]
    logs = await admin.describe_replica_logs(wanted, timeout_ms=FIGURES_TIMEOUT_MS)
    sizes: dict[client.TopicPartition, int | None] = dict.fromkeys(made.moves)
    for (topic, index, _), log in logs.items():
        partition = client.TopicPartition(topic, index)
        if isinstance(log, client.ReplicaLog):
            sizes[partition] = max(sizes[partition] or 0, log.size_bytes)
    return sizes


@dataclass(frozen=True, slots=True)
class ReplicaProgress:
    """One replica that is being added. Sizes differ a little between equal replicas, since each
    deletes segments by itself, so missing bytes are about right.
    """

    partition: client.TopicPartition
    broker_id: int
    in_sync: bool
    log_end_offset: int | None
    leader_end_offset: int | None
    size_bytes: int | None
    leader_size_bytes: int | None

    @property
    def behind_records(self) -> int | None:
        if self.log_end_offset is None or self.leader_end_offset is None:
            return None
        return max(0, self.leader_end_offset - self.log_end_offset)

    @property
    def missing_bytes(self) -> int | None:
        """About how many bytes are still to be copied."""
        if self.behind_records == 0:
            return 0
        if self.size_bytes is None or self.leader_size_bytes is None:
            return None
        return max(0, self.leader_size_bytes - self.size_bytes)

    def document(self) -> dict[str, object]:
        return {
            "broker_id": self.broker_id,
            "in_sync": self.in_sync,
            "log_end_offset": self.log_end_offset,
            "leader_log_end_offset": self.leader_end_offset,
            "behind_records": self.behind_records,
            "size_bytes": self.size_bytes,
            "missing_bytes": self.missing_bytes,
        }


async def look(
    admin: client.Admin, partitions: Collection[client.TopicPartition] | None
) -> tuple[dict[client.TopicPartition, client.Reassignment], list[ReplicaProgress]]:
    """The moves of some partitions (None: all), and how far each replica is. Raises: KafkaError"""
    moves = await admin.list_partition_reassignments(partitions)
    if not moves:
        return moves, []
    topics = await admin.describe_topics(sorted({partition.topic for partition in moves}))
    described = partitions_of(topics)
    wanted = {
        client.TopicPartitionReplica(*partition, broker_id)
        for partition, move in moves.items()
        if partition in described
        for broker_id in (*move.adding_replicas, described[partition].leader)
        if broker_id >= 0
    }
    ends, logs = await asyncio.gather(
        admin.list_replica_offsets(wanted, timeout_ms=FIGURES_TIMEOUT_MS),
        admin.describe_replica_logs(wanted, timeout_ms=FIGURES_TIMEOUT_MS),
    )

    def end(replica: client.TopicPartitionReplica) -> int | None:
        found = ends.get(replica)
        return found if isinstance(found, int) and found >= 0 else None

    def size(replica: client.TopicPartitionReplica) -> int | None:
        found = logs.get(replica)
        return found.size_bytes if isinstance(found, client.ReplicaLog) else None

    rows = []
    for partition, move in sorted(moves.items()):
        if partition not in described:  # the broker that was asked does not know it yet
            continue
        leader = client.TopicPartitionReplica(*partition, described[partition].leader)
        for broker_id in move.adding_replicas:
            own = client.TopicPartitionReplica(*partition, broker_id)
            rows.append(
                ReplicaProgress(
                    partition,
                    broker_id,
                    broker_id in described[partition].isr,
                    end(own),
                    end(leader),
                    size(own),
                    size(leader),
                )
            )
    return moves, rows


class Estimate:
    """How fast the replicas catch up, from the looks that were taken."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=WINDOW_COUNT)

    def add(self, now_s: float, rows: Iterable[ReplicaProgress]) -> None:
        """Take one more look into account, unless one of its figures is missing."""
        missing = [row.missing_bytes for row in rows]
        known = [each for each in missing if each is not None]
        if len(known) == len(missing):
            self._looks.append((now_s, sum(known)))

    @property
    def missing_bytes(self) -> int | None:
        return self._looks[-1][1] if self._looks else None

    @property
    def bytes_per_second(self) -> float | None:
        """How fast the missing bytes become fewer; None when they do not, or that is unknown."""
        if len(self._looks) < 2:
            return None
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        if last >= first or last_s <= first_s:
            return None
        return (first - last) / (last_s - first_s)

    @property
    def remaining_s(self) -> float | None:
        rate, missing = self.bytes_per_second, self.missing_bytes
        return None if rate is None or missing is None else missing / rate

    def text(self) -> str:
        missing, rate, left_s = self.missing_bytes, self.bytes_per_second, self.remaining_s
        return (
            f"{'-' if missing is None else size_text(missing)} to copy, "
            f"{'-' if rate is None else size_text(int(rate))}/s, "
            f"{'-' if left_s is None else duration_text(left_s)} left"
        )


def duration_text(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def progress_block(
    moves: Mapping[client.TopicPartition, client.Reassignment],
    rows: Iterable[ReplicaProgress],
    told: str,
) -> Block:
    listed = list(rows)
    copying = {row.partition for row in listed}
    lines = {f"{row.partition} replica {row.broker_id}": _line(row) for row in listed}
    # A move that only gives replicas up, or changes their order, has nothing to wait for.
    lines.update(
        (str(each), f"{each} needs no copies") for each in sorted(moves) if each not in copying
    )
    if moves:
        lines[SUMMARY] = told
    title = f"{len(moves)} partitions are being moved: {told}"
    return Block(title, COLUMNS, [progress_cells(row) for row in listed], lines)


def progress_cells(row: ReplicaProgress) -> tuple[object, ...]:
    return (
        row.partition,
        row.broker_id,
        "yes" if row.in_sync else "no",
        row.log_end_offset,
        row.leader_end_offset,
        row.behind_records,
        None if row.size_bytes is None else size_text(row.size_bytes),
        None if row.missing_bytes is None else size_text(row.missing_bytes),
    )


def _line(row: ReplicaProgress) -> str:
    behind = "-" if row.behind_records is None else row.behind_records
    missing = "-" if row.missing_bytes is None else size_text(row.missing_bytes)
    state = "in sync" if row.in_sync else f"{behind} records behind, {missing} to copy"
    return f"{row.partition} replica {row.broker_id}: {state}"


async def wait_for_moves(
    admin: client.Admin,
    partitions: Collection[client.TopicPartition],
    view: LiveView,
    *,
    interval_s: float,
    timeout_ms: float | None,
    quiet: bool = False,
) -> bool:
    """Show how moves go until none of these partitions is being moved; False after `timeout_ms`.
    Faults that pass are said and waited for. Raises: KafkaError
    """
    started_s = time.monotonic()
    estimate = Estimate()
    while True:
        try:
            moves, rows = await look(admin, partitions)
        except client.KafkaError as error:
            if not error.retriable and not isinstance(error, client.RequestTimeout):
                raise
            view.say(str(error))
        else:
            estimate.add(time.monotonic(), rows)
            if not quiet:
                view.show([progress_block(moves, rows, estimate.text())], gone="is done")
            if not moves:
                return True
        if timeout_ms is not None and (time.monotonic() - started_s) * 1000 >= timeout_ms:
            return False
        await asyncio.sleep(interval_s)
