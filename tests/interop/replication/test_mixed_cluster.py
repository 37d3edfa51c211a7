"""An Apache Kafka 4.3 broker among ours, with our controller: each follows the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.java.tools import missing
from tests.interop.replication.clients import ConfluentWork
from tests.interop.replication.kafka_nodes import KafkaNodes
from tests.interop.replication.test_directories import assert_replicas_equal
from tests.interop.replication.three_brokers import DEADLINE_S, ThreeBrokers
from tests.kit.waiting import until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.java,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]

KAFKA_ID = 3
OURS_FIRST, KAFKA_FIRST = "led-by-us", "led-by-kafka"
TOPICS = {OURS_FIRST: [[1, KAFKA_ID, 2]], KAFKA_FIRST: [[KAFKA_ID, 1, 2]]}


def open_kafka(brokers: ThreeBrokers, home: Path) -> KafkaNodes:
    return KafkaNodes(home, brokers.bootstrap, [f"broker-{KAFKA_ID}"])


def check(home: Path, work: ConfluentWork) -> None:
    """The reader, which ran all the time, has read what was acknowledged, in place."""
    assert not work.failures, work.failures
    for number, offset in work.acknowledged[0].items():
        assert work.read[0][offset] == (offset, number)
    assert_replicas_equal(home, work.topic, len(work.read[0]))


def test_each_follows_the_other(tmp_path: Path) -> None:
    with ThreeBrokers(directory=tmp_path) as brokers:
        # Its directory and its configuration are Kafka's to take.
        assert brokers.cluster.stop(KAFKA_ID) == 0
        works = go_through_everything(brokers, tmp_path)
    for work in works:
        check(tmp_path, work)


def go_through_everything(brokers: ThreeBrokers, tmp_path: Path) -> list[ConfluentWork]:
    """Kafka follows, dies, comes back to logs that went on, leads, and leaves."""
    works = []
    with open_kafka(brokers, tmp_path) as kafka:
        for topic, assignment in TOPICS.items():
            until(
                lambda: len(brokers.admin.list_topics(timeout=20).brokers) == 3,
                what="three brokers",
                deadline_s=DEADLINE_S,
            )
            brokers.create(topic, assignment)
            works.append(ConfluentWork(brokers.bootstrap, topic, 1))
        ours_first, kafka_first = works
        with ours_first, kafka_first:
            for work in works:
                work.wait_progress("with Kafka in the ISR")
            # Ours lead what Kafka led, and it comes back with what it missed, cut where it parted.
            kafka.kill(KAFKA_ID)
            for work in works:
                until(
                    lambda topic=work.topic: brokers.leader(topic) not in (-1, KAFKA_ID),  # type: ignore[misc]
                    what=f"one of ours leads {work.topic}",
                    deadline_s=DEADLINE_S,
                )
                work.wait_progress("without Kafka")
            with open_kafka(brokers, tmp_path) as again:
                for work in works:
                    brokers.wait_in_sync(work.topic)
                brokers.elect_preferred(
                    KAFKA_FIRST, lambda: kafka_first.wait_progress("before Kafka leads again")
                )
                if brokers.leader(OURS_FIRST) != TOPICS[OURS_FIRST][0][0]:
                    # A busy machine had it fenced for a while: it would lead again, not Kafka.
                    brokers.elect_preferred(
                        OURS_FIRST, lambda: ours_first.wait_progress("under the other one of ours")
                    )
                # Kafka leads what ours led.
                leader_id = brokers.leader(OURS_FIRST)
                brokers.cluster.kill(leader_id)
                until(
                    lambda: brokers.leader(OURS_FIRST) not in (-1, leader_id),
                    what="another leader",
                    deadline_s=DEADLINE_S,
                )
                assert brokers.leader(OURS_FIRST) == KAFKA_ID
                for work in works:
                    work.wait_progress("under Kafka")
                brokers.cluster.restart(leader_id)
                for work in works:
                    brokers.wait_in_sync(work.topic)
                    work.wait_progress("with everybody")
                    work.finish_writing()
                    work.wait_read({0: max(work.acknowledged[0].values()) + 1})
                    brokers.wait_in_sync(work.topic)
                again.stop()
    return works
