"""Three brokers for other people's clients, and the four ways in which leadership moves.

Owns the cluster and the questions about one topic. Must not know clients. Invariant: each way
returns when another broker leads and all replicas are in sync again.
"""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeVar

from confluent_kafka.admin import AdminClient, NewTopic

from moldau.client import Admin, ElectionType
from moldau.protocol.types import TopicPartition
from moldau.testing import Cluster
from tests.kit.waiting import until

Value = TypeVar("Value")

BROKER_COUNT: Final = 3
DEADLINE_S: Final = 120.0
METADATA_TIMEOUT_S: Final = 20.0
CONFIG: Final = {
    "default.replication.factor": "1",
    # Short enough for a test, long enough that a busy machine fences no broker by itself.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "min.insync.replicas": "2",
    "auto.leader.rebalance.enable": "false",
    "moldau.http.listener": "127.0.0.1:0",
    "log.index.size.max.bytes": "65536",
}


class View(NamedTuple):
    """One partition as a client's metadata shows it."""

    leader_id: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class ThreeBrokers:
    """Use as a context.

    Args:
        config: for all nodes.
        broker_config: for single brokers, by id.
    """

    def __init__(
        self,
        config: Mapping[str, str] | None = None,
        *,
        broker_config: Mapping[int, Mapping[str, str]] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.cluster = Cluster(
            brokers=BROKER_COUNT, config={**CONFIG, **(config or {})}, directory=directory
        )
        self._broker_config = broker_config or {}

    def __enter__(self) -> Self:
        self.cluster.__enter__()
        try:
            for broker_id, values in self._broker_config.items():
                self._configure(broker_id, values)
        except BaseException:
            self.cluster.close()
            raise
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self

    def __exit__(self, *exception: Any) -> None:
        self.cluster.close()

    @property
    def bootstrap(self) -> str:
        """`bootstrap.servers`."""
        return self.cluster.bootstrap_server

    def _configure(self, broker_id: int, values: Mapping[str, str]) -> None:
        """What concerns one broker alone, as an operator would: edit the file, restart."""
        assert self.cluster.stop(broker_id) == 0
        with self.cluster.node(broker_id).config_path.open("a") as file:
            file.writelines(f"{key}={value}\n" for key, value in values.items())
        self.cluster.restart(broker_id)

    # -- the topic -------------------------------------------------------------------------------

    def create(
        self, topic: str, assignment: list[list[int]], config: Mapping[str, str] | None = None
    ) -> None:
        """A topic with these replicas; returns when its preferred leaders lead, all in sync."""
        new = NewTopic(
            topic, len(assignment), replica_assignment=assignment, config=dict(config or {})
        )
        self.admin.create_topics([new])[topic].result(METADATA_TIMEOUT_S)
        self.wait_in_sync(topic)
        leaders = [view.leader_id for view in self.described(topic).values()]
        assert leaders == [replicas[0] for replicas in assignment]

    def described(self, topic: str) -> dict[int, View]:
        """The partitions, by index."""
        found = self.admin.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics[topic]
        return {
            index: View(partition.leader, tuple(partition.replicas), tuple(partition.isrs))
            for index, partition in sorted(found.partitions.items())
        }

    def leader(self, topic: str, index: int = 0) -> int:
        """Who leads, -1 while no broker does."""
        return self.described(topic)[index].leader_id

    def wait_in_sync(self, topic: str) -> None:
        """Wait until every replica of every partition is in sync."""

        def in_sync() -> bool:
            views = self.described(topic).values()
            return bool(views) and all(
                view.leader_id > 0 and set(view.isr) == set(view.replicas) for view in views
            )

        until(in_sync, what=f"all replicas of {topic} in sync", deadline_s=DEADLINE_S)

    def _wait_other_leader(self, topic: str, before: int) -> None:
        until(
            lambda: self.leader(topic) not in (before, -1),
            what=f"another leader than {before} for {topic}-0",
            deadline_s=DEADLINE_S,
        )

    # -- how leadership moves --------------------------------------------------------------------

    def kill_leader(self, topic: str, meanwhile: Callable[[], None]) -> None:
        """`kill -9`, life without it, restart."""
        leader_id = self.leader(topic)
        self.cluster.kill(leader_id)
        self._wait_other_leader(topic, leader_id)
        meanwhile()
        self.cluster.restart(leader_id)
        self.wait_in_sync(topic)

    def shut_leader_down(self, topic: str, meanwhile: Callable[[], None]) -> None:
        """Controlled shutdown, life without it, restart."""
        leader_id = self.leader(topic)
        assert self.cluster.stop(leader_id) == 0
        self._wait_other_leader(topic, leader_id)
        meanwhile()
        self.cluster.restart(leader_id)
        self.wait_in_sync(topic)

    def reassign(self, topic: str, meanwhile: Callable[[], None]) -> None:
        """The leader's replica leaves for good; later an empty one comes to the same broker."""
        view = self.described(topic)[0]
        others = [replica for replica in view.replicas if replica != view.leader_id]
        self._move(topic, others)
        self._wait_other_leader(topic, view.leader_id)
        meanwhile()
        self._move(topic, [view.leader_id, *others])

    def elect_preferred(self, topic: str, meanwhile: Callable[[], None]) -> None:
        """Leadership goes to the first replica; another one has to lead before."""
        leader_id, replicas, _ = self.described(topic)[0]
        assert leader_id != replicas[0]
        meanwhile()
        partition = TopicPartition(topic, 0)
        outcome = self.ask(lambda admin: admin.elect_leaders(ElectionType.PREFERRED, [partition]))
        assert outcome == {partition: None}
        self._wait_other_leader(topic, leader_id)
        assert self.leader(topic) == replicas[0]

    def _move(self, topic: str, replicas: list[int]) -> None:
        partition = TopicPartition(topic, 0)
        self.ask(lambda admin: admin.alter_partition_reassignments({partition: replicas}))

        def moved() -> bool:
            view = self.described(topic)[0]
            return list(view.replicas) == replicas and set(view.isr) == set(replicas)

        until(moved, what=f"{topic}-0 on {replicas}, in sync", deadline_s=DEADLINE_S)

    def ask(self, question: Callable[[Admin], Coroutine[Any, Any, Value]]) -> Value:
        """What our admin client answers."""

        async def run() -> Value:
            async with Admin(self.bootstrap) as admin:
                return await question(admin)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, run()).result(DEADLINE_S)

    # -- figures ---------------------------------------------------------------------------------

    def metrics(self, broker_id: int) -> dict[str, float]:
        """All series of one broker, by name with labels."""
        log = self.cluster.node(broker_id).log_path.read_text()
        host, port = re.findall(r"HTTP listener on ([\d.]+):(\d+)", log)[-1]
        with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=20) as answer:
            lines = answer.read().decode().splitlines()
        return {
            name: float(value)
            for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
        }

    def bytes_out(self, broker_id: int, topic: str) -> float:
        """Record bytes that a broker has sent to consumers of the topic."""
        name = "kafka_server_brokertopicmetrics_bytesout_total"
        return self.metrics(broker_id).get(f'{name}{{topic="{topic}"}}', 0.0)
