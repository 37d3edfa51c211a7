"""Nodes and commands run as a user would, to see how they end and what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from moldau.node import foreground
from moldau.runtime.stop_signals import StopSignals
from tests.kit import Verdict
from tests.kit.commands import Ended, run_here
from tests.kit.waiting import until

END_DEADLINE_S = 120

SLOW_NODE = re.compile(
    r"^moldau: no broker can be reached: \S+: no answer in time(; \S+: no answer in time)*\n", re.M
)
"""Where the machine is so busy that a connection takes more than 1.5 s, a command warns, and goes
on: no test here has a node that does not answer at all.
"""

LEADER_ELECTED_JUST_NOW = (KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION)


def properties(home: Path, **changed: str | None) -> Path:
    """Write a config for one combined node; `None` leaves a key out, `_` stands for a dot."""
    values: dict[str, str | None] = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
        "log.dirs": str(home / "data"),
        **{key.replace("_", "."): value for key, value in changed.items()},
    }
    path = home / "server.properties"
    path.write_text("".join(f"{k}={v}\n" for k, v in values.items() if v is not None))
    return path


def run_node(config: Path, *arguments: str, format_if_needed: bool = True) -> Ended:
    """Run a node in this process that is expected to end by itself."""
    options = ["--announce", *(["--format-if-needed"] if format_if_needed else []), *arguments]

    def node() -> NoReturn:
        sys.exit(foreground.run_node([str(config), *options], StopSignals()))

    return run_here(program=node)


def run_cli(
    *arguments: object,
    given: bytes = b"",
    environ: Mapping[str, str] | None = None,
    **streams: int,
) -> Ended:
    """Run the `moldau` command in this process; what it says of a slow node is left out."""
    ended = run_here(*arguments, given=given, environ=environ, **streams)
    return ended._replace(errors=without_slow_node(ended.errors))


def format_apart(config: Path, *options: str) -> None:
    """`moldau storage format` by its own process, where other threads work in this one: a
    command that runs here takes their streams.
    """
    command = [sys.executable, "-m", "moldau", "storage", "format", "--config", str(config)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def without_slow_node(errors: str) -> str:
    return SLOW_NODE.sub("", errors)


class Writer:
    """An idempotent librdkafka producer that remembers what was acknowledged."""

    def __init__(self, bootstrap: str, topic: str, **config: Any) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 60_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
                **config,
            }
        )
        self._topic = topic
        self.sent_count = 0
        self.acknowledged: dict[bytes, int] = {}
        self.refused: list[Any] = []

    def send(self, count: int, *, size_bytes: int = 100) -> None:
        """Hand over so many further records."""
        for _ in range(count):
            value = b"%d:" % self.sent_count
            self._producer.produce(
                self._topic, value.ljust(size_bytes, b"."), partition=0, on_delivery=self._report
            )
            self.sent_count += 1
            self._producer.poll(0)

    def poll(self) -> int:
        """Serve callbacks; how many records are acknowledged so far."""
        self._producer.poll(0.01)
        return len(self.acknowledged)

    def flush(self, timeout_s: float = 60.0) -> None:
        """Wait until every record was acknowledged or refused."""
        assert self._producer.flush(timeout_s) == 0

    def _report(self, error: Any, message: Any) -> None:
        if error is not None:
            self.refused.append(error)
            return
        self.acknowledged[message.value()] = message.offset()


def watermarks(consumer: Consumer, where: TopicPartition) -> tuple[int, int]:
    """Where a partition begins and ends. Asked again while its leader, elected a moment ago, does
    not know of it yet, or not its high watermark (KIP-207).
    """
    found: list[tuple[int, int]] = []

    def answered() -> bool:
        try:
            found.append(consumer.get_watermark_offsets(where, timeout=20, cached=False))
        except KafkaException as error:
            if error.args[0].code() not in LEADER_ELECTED_JUST_NOW:
                raise
        return bool(found)

    until(answered, what=f"the watermarks of {where.topic}-{where.partition}")
    return found[0]


def read_all(bootstrap: str, topic: str, *, partition: int = 0) -> list[bytes]:
    """Every value of a partition, up to its end now."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        where = TopicPartition(topic, partition)
        low, high = watermarks(consumer, where)
        consumer.assign([TopicPartition(topic, partition, low)])
        values: list[bytes] = []
        while low + len(values) < high:
            # Asked for no more than there is: this call waits until it has all it wants.
            messages = consumer.consume(min(10_000, high - low - len(values)), timeout=30)
            if not messages:
                raise TimeoutError(f"{len(values)} of {high - low} records, then nothing")
            for message in messages:
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                values.append(message.value() or b"")
        return values
    finally:
        consumer.close()


def check_read(bootstrap: str, topic: str, expected: Iterable[bytes]) -> None:
    """The first partition has these values, once and in this order. Raises: Verdict: it has not"""
    wanted, values = [*expected], read_all(bootstrap, topic)
    if values != wanted:
        lost, added = Counter(wanted) - Counter(values), Counter(values) - Counter(wanted)
        raise Verdict(
            f"{topic}: {lost.total()} lost {sorted(lost)[:3]}, {added.total()} too many "
            f"{sorted(added)[:3]}, of {len(wanted)}{'' if lost or added else ': in another order'}"
        )
