"""A consumer of confluent-kafka in its own process, so that it can be killed.

Within one process librdkafka cannot be: dropped without being closed it often waits for itself for
ever, with its threads busy. Owns the process, and both ends of its pipes. Must not: record, or
judge. Invariant: what the consumer's callbacks get during a call, the parent's get in the
same order before the call returns.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.system.transactions.senders import Broken

ROOT: Final = Path(__file__).resolve().parents[3]
CALLBACKS: Final = ("on_assign", "on_revoke", "on_lost")


class Failure(NamedTuple):
    """A KafkaError on its way through a pipe."""

    code: int
    text: str
    is_fatal: bool

    @classmethod
    def of(cls, error: Any) -> Failure:
        """What is to be passed on of an error."""
        return cls(error.code(), error.str(), error.fatal())

    def error(self) -> KafkaError:
        """The error that it was."""
        return KafkaError(self.code, self.text, fatal=self.is_fatal)


class Received(NamedTuple):
    """A record, or an error, as confluent-kafka's Message has it."""

    of_topic: str | None
    of_partition: int
    at_offset: int | None
    content: bytes | None
    failure: Failure | None

    @classmethod
    def of(cls, message: Any) -> Received:
        """What is to be passed on of a message."""
        error = message.error()
        return cls(
            message.topic(),
            message.partition(),
            message.offset(),
            None if error is not None else message.value(),
            None if error is None else Failure.of(error),
        )

    def topic(self) -> str | None:
        return self.of_topic

    def partition(self) -> int:
        return self.of_partition

    def offset(self) -> int | None:
        return self.at_offset

    def value(self) -> bytes | None:
        return self.content

    def error(self) -> KafkaError | None:
        return None if self.failure is None else self.failure.error()


class Answer(NamedTuple):
    """What a call has come to, and what the callbacks got during it."""

    told: list[tuple[str, list[tuple[str, int]]]]
    statistics: list[str]
    result: Any = None
    failure: Failure | None = None


class MortalConsumer:
    """The face of a Consumer that is a member of a group."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._callbacks: dict[str, Callable[..., None]] = {}
        plain = dict(config)
        self._stats_cb: Callable[[str], None] | None = plain.pop("stats_cb", None)
        self._child = subprocess.Popen(
            [sys.executable, "-m", __name__],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._put(plain)

    def subscribe(self, topics: Sequence[str], **callbacks: Callable[..., None]) -> None:
        self._callbacks = callbacks
        self._call("subscribe", list(topics))

    def poll(self, timeout_s: float) -> Received | None:
        found = self._call("poll", timeout_s)
        assert found is None or isinstance(found, Received)
        return found

    def seek(self, place: TopicPartition) -> None:
        self._call("seek", (place.topic, place.partition, place.offset))

    def consumer_group_metadata(self) -> bytes:
        return bytes(self._call("consumer_group_metadata"))

    def close(self) -> None:
        """Leave the group, and end the process."""
        with contextlib.suppress(Broken):
            self._call("close")
        self.kill()

    def kill(self) -> None:
        """`kill -9`."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            assert pipe is not None, "a pipe"
            with contextlib.suppress(BrokenPipeError):
                pipe.close()  # what it has not read is of no use any more

    def _call(self, name: str, argument: Any = None) -> Any:
        """Raises: KafkaException, as the consumer does; Broken when the process has ended."""
        assert self._child.stdout is not None, "a pipe"
        try:
            self._put((name, argument))
            answer: Answer = pickle.load(self._child.stdout)
        except (EOFError, OSError):
            raise Broken(f"the consumer's process ended with {self._child.wait()}") from None
        for callback, places in answer.told:
            partitions = [TopicPartition(*each) for each in places]
            self._callbacks[callback](self, partitions)
        for text in answer.statistics:
            if self._stats_cb is not None:
                self._stats_cb(text)
        if answer.failure is not None:
            raise KafkaException(answer.failure.error())
        return answer.result

    def _put(self, item: Any) -> None:
        assert self._child.stdin is not None, "a pipe"
        pickle.dump(item, self._child.stdin)
        self._child.stdin.flush()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """The process: one consumer, until nothing more is asked."""
    told: list[tuple[str, list[tuple[str, int]]]] = []
    statistics: list[str] = []
    consumer = Consumer({**pickle.load(requests), "stats_cb": statistics.append})

    def note(name: str) -> Callable[[Consumer, list[TopicPartition]], None]:
        return lambda _, partitions: told.append(
            (name, [(each.topic, each.partition) for each in partitions])
        )

    def subscribe(topics: list[str]) -> None:
        consumer.subscribe(topics, **{name: note(name) for name in CALLBACKS})

    def poll(timeout_s: float) -> Received | None:
        message = consumer.poll(timeout_s)
        return None if message is None else Received.of(message)

    calls: dict[str, Callable[[Any], Any]] = {
        "subscribe": subscribe,
        "poll": poll,
        "seek": lambda place: consumer.seek(TopicPartition(*place)),
        "consumer_group_metadata": lambda _: consumer.consumer_group_metadata(),
        "close": lambda _: consumer.close(),
    }
    while True:
        name, argument = pickle.load(requests)
        try:
            answer = Answer(told, statistics, calls[name](argument))
        except KafkaException as error:
            answer = Answer(told, statistics, failure=Failure.of(error.args[0]))
        pickle.dump(answer, answers)
        answers.flush()
        told.clear()
        statistics.clear()


if __name__ == "__main__":
    # Under its own name, by which both ends know what they send each other.
    from tests.system.transactions import mortal_consumer

    try:
        mortal_consumer.serve(sys.stdin.buffer, sys.stdout.buffer)
    except EOFError:
        os._exit(0)  # the parent is gone: without a word to the group
