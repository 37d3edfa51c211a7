"""Three controllers and three brokers on hosts of their own, with disks that can be filled or hang.

Owns the small disks, the disks' moods, and what is asked about replication. Must not: decide what
breaks when (that is the nemesis). Invariant: leaving the context ends every process and unmounts
every disk.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from benchmarks.wire import CREATE_TOPICS_VERSION, create_topic_request
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from tests.kit.repeated_lines import repeated_in
from tests.kit.waiting import until
from tests.system.conftest import SmallDisk
from tests.system.quorum.hosts import Hosts
from tests.system.quorum.spread_cluster import BROKER_PORT, SpreadCluster, host_name
from tests.system.replication.disk_mood import MOOD_VARIABLE, DiskMood

CONTROLLER_IDS: Final = (101, 102, 103)
BROKER_IDS: Final = (1, 2, 3)
METADATA_VERSION: Final = 8
ANSWER_S: Final = 5.0
CREATE_ANSWER_S: Final = 30.0
DEADLINE_S: Final = 120.0
REPOSITORY: Final = Path(__file__).resolve().parents[3]

#: Long enough that a busy machine does not fence a broker, short enough for a test.
SESSION_TIMEOUT_MS: Final = 5_000
MAX_LAG_MS: Final = 5_000
CONFIG: Final = {
    "broker.session.timeout.ms": str(SESSION_TIMEOUT_MS),
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": str(MAX_LAG_MS),
    "replica.fetch.wait.max.ms": "300",
    "min.insync.replicas": "2",
    "log.index.size.max.bytes": "65536",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    "moldau.log.level": "info",
}

#: Room for the metadata log of a soak, and quick to fill.
CONTROLLER_DISK_BYTES: Final = 64 * 2**20

#: What no node may log, whatever breaks: an exception that no handler expected.
UNEXPECTED: Final = re.compile(r"unexpected \w+ \((?:report|stop)\)|Traceback")


class PartitionView(NamedTuple):
    """One partition, as one broker's metadata has it."""

    leader_id: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ChaosCluster(SpreadCluster):
    """Use as a context, inside Hosts.

    Args:
        disk_bytes: give each broker a disk (tmpfs) of that size, and each controller a small one;
            None: the machine's.
        broker_ids: who serves clients.
        keeps_disks: what lies on the small disks in the end is copied to where it stays.
        directory_count: how many log directories each broker has; more than one needs small disks.
    """

    def __init__(
        self,
        hosts: Hosts,
        directory: Path,
        config: Mapping[str, str] | None = None,
        *,
        disk_bytes: int | None = None,
        broker_ids: Sequence[int] = BROKER_IDS,
        keeps_disks: bool = False,
        directory_count: int = 1,
    ) -> None:
        assert directory_count == 1 or disk_bytes is not None
        self.disks: dict[int, SmallDisk] = {}
        self._directory_count = directory_count
        self._disk_bytes = disk_bytes
        self._keeps_disks = keeps_disks
        super().__init__(
            hosts, directory, CONTROLLER_IDS, broker_ids, {**CONFIG, **dict(config or {})}
        )

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as undo:
            undo.callback(self._unmount)
            if self._disk_bytes is not None:
                for broker_id in self.broker_ids:
                    self._mount(broker_id, self._disk_bytes)
                for controller_id in self.controller_ids:
                    self._mount(controller_id, CONTROLLER_DISK_BYTES)
            super().__enter__()
            self._undo = undo.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        with self._undo:
            super().__exit__(*exception)

    # -- processes and disks ---------------------------------------------------------------------

    def command(self, node_id: int) -> list[str]:
        """A node with a disk that can be slow."""
        variable = f"{MOOD_VARIABLE}={self._mood_path(node_id)}"
        module = "tests.system.replication.slow_node"
        config = str(self.config_path(node_id))
        return [
            *("env", f"--chdir={REPOSITORY}", variable),
            *(sys.executable, "-m", module, config),
        ]

    def set_mood(self, node_id: int, mood: DiskMood) -> None:
        """From now on the node's disk is like that."""
        mood.write(self._mood_path(node_id))

    def exit_status(self, node_id: int) -> int | None:
        """How the process ended; None while it runs."""
        return self._processes[node_id].poll()

    def stop_all(self) -> list[str]:
        """Stop every node in order; what did not go well."""
        complaints = []
        for node_id in (*self.broker_ids, *self.controller_ids):
            status = self.stop(node_id)
            if status != 0:
                tail = self.log_tail(node_id)
                complaints.append(f"node {node_id} stopped with status {status}: {tail}")
        return complaints

    def unexpected(self) -> list[str]:
        """What is wrong with the nodes' logs: exceptions, and lines that are repeated."""
        node_ids = (*self.broker_ids, *self.controller_ids)
        logs = {each: self.home(each) / "node.log" for each in node_ids}
        found = []
        for node_id, log in logs.items():
            lines = log.read_text(errors="replace").splitlines()
            found += [f"node {node_id}: {line}" for line in lines if UNEXPECTED.search(line)]
        return [*found, *repeated_in(logs)]

    def _mood_path(self, node_id: int) -> Path:
        return self.home(node_id) / "disk.json"

    def _mount(self, node_id: int, size_bytes: int) -> None:
        path = self.home(node_id) / "data"
        path.mkdir(parents=True)
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)], check=True
        )
        self.disks[node_id] = SmallDisk(path)

    def own_config(self, node_id: int) -> dict[str, str]:
        """Each broker stands in its own rack; `log.dirs` lie on the small disk, whose own top
        is not the node's.
        """
        is_broker = node_id in self.broker_ids
        rack = {"broker.rack": f"rack-{node_id}"} if is_broker else {}
        if node_id not in self.disks:
            return rack
        return {**rack, "log.dirs": ",".join(map(str, self.data_directories(node_id)))}

    def data_directories(self, node_id: int) -> list[Path]:
        """The node's `log.dirs`, the one with the metadata log first."""
        if node_id not in self.disks:
            return [self.home(node_id) / "data"]
        top = self.disks[node_id].path
        count = self._directory_count if node_id in self.broker_ids else 1
        return [top / f"log-{number}" for number in range(1, count + 1)]

    def config_path(self, node_id: int) -> Path:
        """The node's `server.properties`."""
        return self.home(node_id) / "server.properties"

    def replica_directories(self, broker_id: int, partition: str) -> list[Path]:
        """Where the broker has that partition (`topic-number`): exactly one directory when all is
        well.
        """
        places = [each / partition for each in self.data_directories(broker_id)]
        return [each for each in places if each.is_dir()]

    def _unmount(self) -> None:
        for node_id, disk in self.disks.items():
            if self._keeps_disks:
                kept = self.home(node_id) / "disk"
                shutil.copytree(disk.path, kept, dirs_exist_ok=True)
            subprocess.run(["umount", "-l", str(disk.path)], check=False, capture_output=True)

    # -- topics ----------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`, for clients in the hub."""
        hosts = [self.hosts.address(host_name(each)) for each in self.broker_ids]
        return ",".join(f"{host}:{BROKER_PORT}" for host in hosts)

    def create_topic(
        self, name: str, partition_count: int, config: Mapping[str, str] | None = None
    ) -> None:
        """A topic with three replicas; returns when all of them are in sync."""
        request = create_topic_request(name, partition_count, dict(config or {}))
        request.topics[0].replication_factor = len(BROKER_IDS)
        with self.wire(self.broker_ids[0]) as wire:
            wire.socket.settimeout(CREATE_ANSWER_S)
            answer = wire.ask(request, CREATE_TOPICS_VERSION).topics[0]
        assert answer.error_code == ErrorCode.NONE, answer
        self.wait_in_sync(name, partition_count)

    def partitions(self, asked: int, topic: str) -> dict[int, PartitionView]:
        """The partitions of a topic as one broker knows them. Raises: OSError."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        with self.wire(asked) as wire:
            wire.socket.settimeout(ANSWER_S)
            described = wire.ask(request, METADATA_VERSION).topics[0]
        return {
            each.partition_index: PartitionView(
                each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(sorted(each.isr_nodes)),
            )
            for each in described.partitions
        }

    def out_of_sync(
        self, topic: str, partition_count: int, without: Collection[str] = ()
    ) -> list[str]:
        """What is missing until all brokers say that all replicas are in sync, but for those of
        the partitions (`topic-number`) in `without`.
        """
        missing = []
        for asked in self.broker_ids:
            try:
                views = self.partitions(asked, topic)
            except OSError as error:
                missing.append(f"broker {asked} does not answer: {error}")
                continue
            if len(views) != partition_count:
                missing.append(f"broker {asked} knows {len(views)} partitions")
            missing += [
                f"broker {asked}: {topic}-{number} {view}"
                for number, view in views.items()
                if f"{topic}-{number}" not in without
                and (view.leader_id < 0 or len(view.isr) < len(view.replicas))
            ]
        return missing

    def wait_in_sync(
        self, topic: str, partition_count: int, deadline_s: float = DEADLINE_S
    ) -> None:
        """Return when all replicas are in sync. Raises: TimeoutError, saying which are not."""
        missing: list[str] = []

        def in_sync() -> bool:
            missing[:] = self.out_of_sync(topic, partition_count)
            return not missing

        try:
            until(in_sync, what="all replicas in sync", deadline_s=deadline_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}: " + "; ".join(missing)) from None


@contextmanager
def running(
    directory: Path,
    config: Mapping[str, str] | None = None,
    *,
    disk_bytes: int | None = None,
    broker_ids: Sequence[int] = BROKER_IDS,
    keeps_disks: bool = False,
    directory_count: int = 1,
    kind: type[ChaosCluster] = ChaosCluster,
) -> Iterator[ChaosCluster]:
    """The cluster on fresh hosts."""
    names = [host_name(node_id) for node_id in (*CONTROLLER_IDS, *broker_ids)]
    with (
        Hosts(names) as hosts,
        kind(
            hosts,
            directory,
            config,
            disk_bytes=disk_bytes,
            broker_ids=broker_ids,
            keeps_disks=keeps_disks,
            directory_count=directory_count,
        ) as cluster,
    ):
        yield cluster
