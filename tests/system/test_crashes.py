"""kill -9, restarts, pauses: what was acknowledged is stored, once and in order."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from moldau.testing import Cluster
from tests.interop.topics import TopicMaker
from tests.kit import judging
from tests.kit.waiting import until
from tests.system.processes import Writer, read_all

CLEAN_MARKER = ".kafka_cleanshutdown"


def assert_nothing_lost_or_doubled(writer: Writer, read: list[bytes]) -> None:
    assert writer.refused == []
    assert len(writer.acknowledged) == writer.sent_count
    _judge(writer, read)


@judging()
def _judge(writer: Writer, read: list[bytes]) -> None:
    assert len(read) == len(set(read)), "records are there twice"
    assert [int(value.split(b":")[0]) for value in read] == list(range(writer.sent_count))
    for value, offset in writer.acknowledged.items():
        assert read[offset] == value


def test_nothing_acknowledged_is_lost_when_killed_under_load() -> None:
    with Cluster() as cluster:
        topic = TopicMaker(cluster.bootstrap_server).create()
        writer = Writer(cluster.bootstrap_server, topic, **{"compression.type": "lz4"})
        for _ in range(3):
            before = writer.poll()
            writer.send(4000)
            until(lambda before=before: writer.poll() > before + 500, what="acknowledgements")
            cluster.kill()
            writer.send(500)
            cluster.restart()
        writer.flush()
        assert_nothing_lost_or_doubled(writer, read_all(cluster.bootstrap_server, topic))


def test_killed_right_after_start_again_and_again() -> None:
    with Cluster() as cluster:
        topic = TopicMaker(cluster.bootstrap_server).create()
        writer = Writer(cluster.bootstrap_server, topic)
        writer.send(100)
        writer.flush()
        for _ in range(4):
            cluster.kill()
            cluster.node().start()
            cluster.kill()
            cluster.restart()
        writer.send(100)
        writer.flush()
        assert_nothing_lost_or_doubled(writer, read_all(cluster.bootstrap_server, topic))


def test_a_pause_delays_and_doubles_nothing() -> None:
    with Cluster() as cluster:
        topic = TopicMaker(cluster.bootstrap_server).create()
        writer = Writer(
            cluster.bootstrap_server,
            topic,
            **{"socket.timeout.ms": 1000, "request.timeout.ms": 500},
        )
        writer.send(2000)
        until(lambda: writer.poll() > 0, what="the first acknowledgement")
        cluster.pause()
        writer.send(200)
        # Long enough for requests to time out and to be sent again.
        resent = _Reconnects(writer)
        until(resent, what="the producer gives up waiting")
        cluster.resume()
        writer.flush()
        assert_nothing_lost_or_doubled(writer, read_all(cluster.bootstrap_server, topic))


class _Reconnects:
    """True after the producer was polled for longer than its request timeout."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._polls = 0

    def __call__(self) -> bool:
        self._writer.poll()
        self._polls += 1
        return self._polls > 75


def test_an_orderly_stop_leaves_a_marker_and_everything_else(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        marker = cluster.data_directory() / CLEAN_MARKER
        maker = TopicMaker(cluster.bootstrap_server)
        topic = maker.create(partitions=3, config={"retention.ms": "7654321"})
        writer = Writer(cluster.bootstrap_server, topic)
        writer.send(1000)
        writer.flush()
        assert not marker.exists()
        assert cluster.stop() == 0
        assert marker.exists()
        cluster.restart()
        assert not marker.exists()
        assert_nothing_lost_or_doubled(writer, read_all(cluster.bootstrap_server, topic))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_server})
        assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 3
        resource = ConfigResource(ResourceType.TOPIC, topic)
        config = admin.describe_configs([resource])[resource].result(10)
        assert config["retention.ms"].value == "7654321"
        # The producer goes on where it was: its id and sequence survived.
        writer.send(10)
        writer.flush()
        assert_nothing_lost_or_doubled(writer, read_all(cluster.bootstrap_server, topic))
        text = cluster.node().log_path.read_text()
        assert "recover" not in text.lower().split("restart")[-1] or "0 recovered" in text


def test_a_stop_while_clients_wait_is_quick_and_clean(tmp_path: Path) -> None:
    with Cluster(directory=tmp_path) as cluster:
        topic = TopicMaker(cluster.bootstrap_server).create()
        writer = Writer(cluster.bootstrap_server, topic)
        writer.send(5000)
        until(lambda: writer.poll() > 0, what="acknowledgements")
        assert cluster.node().stop(deadline_s=15) == 0
        cluster.restart()
        writer.flush()
        assert_nothing_lost_or_doubled(writer, read_all(cluster.bootstrap_server, topic))


def test_a_topic_deleted_before_a_kill_stays_deleted() -> None:
    with Cluster() as cluster:
        maker = TopicMaker(cluster.bootstrap_server)
        kept, gone = maker.create(), maker.create()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_server})
        admin.delete_topics([gone])[gone].result(20)
        cluster.kill()
        cluster.restart()
        listed = admin.list_topics(timeout=20).topics
        assert kept in listed
        assert gone not in listed
        until(
            lambda: (
                not [
                    path
                    for path in cluster.data_directory().iterdir()
                    if path.name.startswith(gone) and not path.name.endswith("-delete")
                ]
            ),
            what="no directory of the deleted topic",
        )
