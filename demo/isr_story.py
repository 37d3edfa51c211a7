"""What happens to a partition with three replicas, as a list of events: the in-sync set under a cut
link, too few replicas, and an election without a replica in sync.

Owns the order of what is done, and waits for what has to follow. Must not print. Invariant: an
event is printed when it was observed from outside (metadata, delivery reports, the brokers' logs).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from demo.isr_stage import BROKER_IDS, Stage
from moldau.client import (
    Admin,
    ConfigChange,
    ConfigResource,
    ConfigResourceType,
    KafkaError,
    NewTopic,
    PartitionDescription,
)
from moldau.testing import wait_until

TOPIC: Final = "isr"
MAX_LAG_MS: Final = 10_000
CONFIG: Final = {
    "replica.lag.time.max.ms": str(MAX_LAG_MS),
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "500",
    "unclean.leader.election.enable": "false",
    # How often the controller looks for partitions that it may now give a leader (5 minutes).
    "unclean.leader.election.interval.ms": "2000",
}
LEADER: Final = 1
CUT_OFF: Final = 3
DEADLINE_S: Final = 120.0
ANSWER_MS: Final = 10_000
RECORD_INTERVAL_S: Final = 0.05
ENOUGH: Final = 20
#: Written with acks=1 when the leader is alone.
ALONE_COUNT: Final = 25


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was done or observed, `seconds` after the beginning."""

    seconds: float
    name: str
    text: str
    isr: tuple[int, ...] = ()
    facts: dict[str, int] = field(default_factory=dict)


class Writer:
    """One producer that sends a record every RECORD_INTERVAL_S and counts what is acknowledged."""

    def __init__(self, stage: Stage, acks: str) -> None:
        self.acks = acks
        self.sent_count = 0
        self.acknowledged_count = 0
        self.failures: list[str] = []
        self.longest_wait_s = 0.0
        self.offsets: list[int] = []
        self._stop = threading.Event()
        self._config = {
            "bootstrap.servers": stage.bootstrap,
            "acks": acks,
            "linger.ms": 0,
            "log_level": 0,
        }
        self._thread = threading.Thread(target=stage.call, args=(self._work,))
        self._thread.start()

    @property
    def waiting_count(self) -> int:
        """Records without an answer so far."""
        return self.sent_count - self.acknowledged_count - len(self.failures)

    def wait_for_more(self, count: int) -> None:
        """Return when so many further records are acknowledged."""
        goal = self.acknowledged_count + count
        wait_until(
            lambda: self.acknowledged_count >= goal,
            what=f"{count} records more with acks={self.acks}",
            deadline_s=DEADLINE_S,
        )

    def finish(self) -> None:
        """Send no more; everything that was sent is answered."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        producer = Producer(self._config)
        while not self._stop.wait(RECORD_INTERVAL_S):
            value = b"%s-%d" % (self.acks.encode(), self.sent_count)
            producer.produce(TOPIC, value, partition=0, on_delivery=self._report(time.monotonic()))
            self.sent_count += 1
            producer.poll(0)
        producer.flush(DEADLINE_S)

    def _report(self, sent_s: float) -> Callable[[Any, Any], None]:
        def report(error: Any, message: Any) -> None:
            if error is not None:
                self.failures.append(error.name())
                return
            self.acknowledged_count += 1
            self.longest_wait_s = max(self.longest_wait_s, time.monotonic() - sent_s)
            self.offsets.append(message.offset())

        return report


class Story:
    """`tell` goes through it once.

    Args:
        on_event: called with each event as it happens.
    """

    def __init__(self, stage: Stage, on_event: Callable[[Event], None]) -> None:
        self._stage = stage
        self._on_event = on_event
        self._begin_s = time.monotonic()

    def tell(self) -> None:
        """Do all of it; raises TimeoutError when something does not follow."""
        self._prepare()
        self._cut_link()
        self._two_out()
        self._wait_for_the_leader()
        self._two_out(again=True)
        self._elect_uncleanly()

    # -- 1: one way is cut -----------------------------------------------------------------------

    def _prepare(self) -> None:
        replicas = {0: list(BROKER_IDS)}
        topic = NewTopic(TOPIC, replica_assignment=replicas, configs={"min.insync.replicas": "2"})
        self._admin(lambda admin: admin.create_topics([topic]))
        self._wait_isr({1, 2, 3})
        self._happened("created", "three replicas in sync, broker 1 leads; min.insync.replicas=2")

    def _cut_link(self) -> None:
        stage = self._stage
        none, one, every = writers = [Writer(stage, acks) for acks in ("0", "1", "all")]
        try:
            for writer in writers:
                writer.wait_for_more(ENOUGH)
            self._happened("writing", "three producers write: acks=0, acks=1, acks=all")
            before = [writer.acknowledged_count for writer in writers]
            stage.cut(LEADER, CUT_OFF)
            self._happened(
                "cut",
                f"nothing that broker {LEADER} sends to broker {CUT_OFF} arrives any more; broker "
                f"{CUT_OFF} keeps its link to the controllers",
            )
            one.wait_for_more(ENOUGH)
            self._wait(lambda: every.waiting_count >= ENOUGH, "acks=all stalls")
            self._happened(
                "stalled",
                f"acks=0: {none.acknowledged_count - before[0]} sent since then, acks=1: "
                f"{one.acknowledged_count - before[1]} acknowledged, acks=all: waits with "
                f"{every.waiting_count} records",
                waiting=every.waiting_count,
                unaffected=none.acknowledged_count - before[0],
                going_on=one.acknowledged_count - before[1],
            )
            self._wait_isr({1, 2})
            self._happened("shrunk", self._said(LEADER, "proposing ISR", "1,2 instead of"))
            self._wait(lambda: every.waiting_count < ENOUGH, "acks=all catches up")
            every.wait_for_more(ENOUGH)
            self._happened(
                "goes-on",
                f"acks=all goes on with two in sync; one record had waited "
                f"{every.longest_wait_s:.1f} s",
            )
            stage.mend(LEADER, CUT_OFF)
            self._happened("mended", "the link is whole again")
            self._wait_isr({1, 2, 3})
            self._happened("rejoined", self._said(LEADER, "proposing ISR", "instead of 1,2 "))
        finally:
            for writer in writers:
                writer.finish()
        self._happened(
            "balance",
            "; ".join(
                f"acks={writer.acks}: {writer.sent_count} sent, {writer.acknowledged_count} "
                f"acknowledged, longest wait {writer.longest_wait_s:.1f} s"
                for writer in writers
            ),
            refused=sum(len(writer.failures) for writer in writers),
            missing=sum(
                writer.acknowledged_count - self._count(b"%s-" % writer.acks.encode())
                for writer in (one, every)
            ),
        )

    # -- 2: too few in sync ----------------------------------------------------------------------

    def _two_out(self, *, again: bool = False) -> None:
        for broker_id in (CUT_OFF, 2):
            self._stage.kill(broker_id)
            self._wait(lambda gone=broker_id: gone not in self._isr(), f"{broker_id} leaves")
        self._happened("two-out", f"brokers {CUT_OFF} and 2 are killed")
        refused = self._send_once("all")
        seen = len(self._read())
        alone = self._send_alone()
        self._happened(
            "too-few",
            f"acks=all is answered {refused}; consumers read on: {seen} records. {ALONE_COUNT} "
            f"records with acks=1 are taken at {alone[0]} to {alone[-1]} by broker {LEADER} alone, "
            "where no consumer sees them yet",
            refused=int(refused == "NOT_ENOUGH_REPLICAS"),
            read=seen,
            first=alone[0],
            last=alone[-1],
            visible=len(self._read()) - seen,
        )
        self._stage.kill(LEADER)
        for broker_id in (2, CUT_OFF):
            self._stage.restart(broker_id)
        self._wait(self._is_without_leader, "no leader while two brokers serve")
        state = self._partition()
        self._happened(
            "no-leader-again" if again else "no-leader",
            f"broker {LEADER} is killed, brokers 2 and {CUT_OFF} are back: no leader, eligible "
            f"are {list(state.eligible_leader_replicas)}, last known "
            f"{list(state.last_known_eligible_leader_replicas)}; unclean election is off",
        )

    def _send_once(self, acks: str) -> str:
        """The error that a producer gets that does not retry."""
        told: list[str] = []

        def send() -> None:
            producer = Producer(
                {
                    "bootstrap.servers": self._stage.bootstrap,
                    "acks": acks,
                    "retries": 0,
                    "message.timeout.ms": ANSWER_MS,
                    "log_level": 0,
                }
            )
            producer.produce(
                TOPIC,
                b"once",
                partition=0,
                on_delivery=lambda error, _: told.append(error.name() if error else "NONE"),
            )
            producer.flush(DEADLINE_S)

        self._stage.call(send)
        return told[0]

    def _send_alone(self) -> list[int]:
        """Records that only the leader has; their offsets."""
        offsets: list[int] = []

        def send() -> None:
            producer = Producer(
                {"bootstrap.servers": self._stage.bootstrap, "acks": 1, "log_level": 0}
            )
            for number in range(ALONE_COUNT):
                producer.produce(
                    TOPIC,
                    b"alone-%d" % number,
                    partition=0,
                    on_delivery=lambda error, message: (
                        offsets.append(message.offset()) if error is None else None
                    ),
                )
            producer.flush(DEADLINE_S)

        self._stage.call(send)
        assert len(offsets) == ALONE_COUNT, "acks=1 needs the leader only"
        return sorted(offsets)

    # -- 3: unclean election, off and on ---------------------------------------------------------

    def _wait_for_the_leader(self) -> None:
        self._stage.restart(LEADER)
        self._wait(lambda: self._partition().leader == LEADER, f"{LEADER} leads again")
        self._wait_isr({1, 2, 3})
        self._happened(
            "waited",
            f"off: the partition waited for broker {LEADER}; it is back, leads, and the others "
            "have what it has",
            alone=self._count(b"alone-"),
        )

    def _elect_uncleanly(self) -> None:
        topic = ConfigResource(ConfigResourceType.TOPIC, TOPIC)
        change = ConfigChange("unclean.leader.election.enable", "true")
        self._admin(lambda admin: admin.alter_configs({topic: [change]}))
        self._happened("allowed", "on: unclean.leader.election.enable=true for the topic")
        self._wait(lambda: self._partition().leader in (2, CUT_OFF), "an unclean leader")
        leader = self._partition().leader
        self._wait(lambda: self._find(leader, "UNCLEAN LEADER ELECTION"), "it says so")
        self._happened("unclean", self._said(leader, "UNCLEAN LEADER ELECTION"), leader=leader)
        self._stage.restart(LEADER)
        self._wait_isr({1, 2, 3})
        self._wait(lambda: self._find(LEADER, f"{TOPIC}-0: cut from"), "the old leader is cut")
        self._happened("cut-back", self._said(LEADER, f"{TOPIC}-0: cut from"))
        lost_count = 2 * ALONE_COUNT - self._count(b"alone-")
        self._happened(
            "told",
            f"the {lost_count} records that broker {LEADER} had taken alone are gone; what was "
            "acknowledged with acks=all is all there",
            lost=lost_count,
        )

    # -- looking ---------------------------------------------------------------------------------

    def _happened(self, name: str, text: str, **facts: int) -> None:
        try:
            isr = tuple(sorted(self._isr()))
        except (KafkaError, TimeoutError):
            isr = ()
        self._on_event(Event(time.monotonic() - self._begin_s, name, text, isr, facts))

    def _admin(self, work: Callable[[Admin], Any]) -> Any:
        async def run() -> Any:
            async with Admin(
                self._stage.bootstrap,
                request_timeout_ms=ANSWER_MS,
                default_api_timeout_ms=2 * ANSWER_MS,
            ) as admin:
                return await work(admin)

        return self._stage.call(asyncio.run, run())

    def _partition(self) -> PartitionDescription:
        described = self._admin(lambda admin: admin.describe_topics([TOPIC]))
        partition: PartitionDescription = described[TOPIC].partitions[0]
        return partition

    def _isr(self) -> set[int]:
        return set(self._partition().isr)

    def _wait(self, condition: Callable[[], Any], what: str) -> None:
        def met() -> bool:
            try:
                return bool(condition())
            except (KafkaError, IndexError):
                return False

        wait_until(met, what=what, deadline_s=DEADLINE_S)

    def _wait_isr(self, wanted: set[int]) -> None:
        self._wait(lambda: self._isr() == wanted, f"the ISR {sorted(wanted)}")

    def _is_without_leader(self) -> bool:
        """The last leader is fenced, the two others serve, and no broker leads."""
        described = self._admin(lambda admin: admin.describe_cluster(include_fenced_brokers=True))
        serving = {broker.node_id for broker in described.brokers if not broker.fenced}
        return serving == {2, CUT_OFF} and self._partition().leader == -1

    def _find(self, broker_id: int, *words: str) -> str:
        """The last line of a broker's log with all these words; empty when there is none."""
        lines = [
            line
            for line in self._stage.log_lines(broker_id)
            if TOPIC in line and all(word in line for word in words)
        ]
        return lines[-1] if lines else ""

    def _said(self, broker_id: int, *words: str) -> str:
        line = self._find(broker_id, *words)
        assert line, f"broker {broker_id} has not said: {words}"
        return f"broker {broker_id} says: {line}"

    def _read(self) -> list[bytes]:
        """Everything that consumers see now."""

        def read() -> list[bytes]:
            consumer = Consumer(
                {
                    "bootstrap.servers": self._stage.bootstrap,
                    "group.id": "unused",
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )
            where = TopicPartition(TOPIC, 0, 0)
            try:
                _, end_offset = consumer.get_watermark_offsets(where, timeout=30, cached=False)
                consumer.assign([where])
                values: list[bytes] = []
                while len(values) < end_offset:
                    for message in consumer.consume(end_offset - len(values), 1.0):
                        if message.error() is None:
                            values.append(message.value() or b"")
                return values
            finally:
                consumer.close()

        return self._stage.call(read)

    def _count(self, prefix: bytes) -> int:
        """How many records that begin so consumers see."""
        return sum(value.startswith(prefix) for value in self._read())
