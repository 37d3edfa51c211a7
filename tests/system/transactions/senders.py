"""Transactional producers behind one face: confluent-kafka's, and what each of them may raise.

Owns the face `Sender`, and how librdkafka's errors become "abort" or "this producer is done for".
Must not: decide what is sent, or retry what librdkafka retries itself. Invariant: a send is
acknowledged in the history only after its delivery report said so, without an error.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.kit.servers import connecting
from tests.system.transactions.history import History, OffsetCommit, Send

#: One call of librdkafka; it is repeated until the whole deadline is over.
CALL_S: Final = 5.0
#: Longer than any fault.
DEADLINE_S: Final = 120.0
#: When a call is given up that its own limit does not end: librdkafka's issues 5456 and 5511.
STUCK_S: Final = DEADLINE_S + 10.0
#: What is left open is aborted by its coordinator after this time.
TRANSACTION_TIMEOUT_MS: Final = 20_000
LONGEST_FILLER: Final = 40


class MustAbort(Exception):
    """The transaction cannot be committed; the producer can go on after an abort."""


class Broken(Exception):
    """The producer can do nothing any more."""


def encode(value: str) -> bytes:
    """The bytes of a value: nothing else may ever be read for it."""
    head = value.encode()
    check = zlib.crc32(head)
    return head + b"|" + b"%08x" % check * (1 + check % LONGEST_FILLER)


def decode(data: bytes | None) -> str:
    """The value, or what was read in its place, which no producer sent."""
    value = (data or b"").split(b"|", 1)[0].decode(errors="replace")
    return value if encode(value) == data else f"altered: {data!r}"


class Sender(Protocol):
    """One producer's life."""

    def open(self) -> None:
        """Become the owner of the transactional id. Raises: Broken."""

    def begin(self) -> None:
        """Begin a transaction. Raises: MustAbort, Broken."""

    def send(self, send: Send) -> None:
        """Send a record; its acknowledgement is written into it, now or later."""

    def send_offsets(self, commits: Sequence[OffsetCommit], consumer: Consumer) -> None:
        """Make a group's offsets part of the transaction."""

    def commit(self) -> None:
        """Returns when it is committed. Raises: MustAbort, Broken (then the outcome is unknown)."""

    def abort(self) -> None:
        """Returns when it is aborted. Raises: Broken."""

    def close(self) -> None:
        """Let go of everything, without a word to the cluster."""


class ConfluentSender:
    """confluent-kafka's producer, with librdkafka's own defaults where they matter."""

    def __init__(
        self, bootstrap: str, transactional_id: str, process: str, history: History
    ) -> None:
        self._history = history
        self._id, self._process = transactional_id, process
        self._producer: Producer | None = Producer(
            {
                **connecting(bootstrap),
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "message.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "linger.ms": 2,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
            }
        )

    def open(self) -> None:
        with self._history.opening(self._id, self._process):
            self._call(partial(self._it.init_transactions, CALL_S))

    def begin(self) -> None:
        self._call(self._it.begin_transaction)

    def send(self, send: Send) -> None:
        try:
            self._it.produce(
                send.log.topic,
                encode(send.value),
                partition=send.log.partition,
                on_delivery=partial(self._delivered, send),
            )
            self._it.poll(0)
        except (KafkaException, BufferError) as error:
            raise MustAbort(f"produce: {error}") from None

    def send_offsets(self, commits: Sequence[OffsetCommit], consumer: Consumer) -> None:
        offsets = [
            TopicPartition(each.log.topic, each.log.partition, each.next_offset) for each in commits
        ]
        metadata = consumer.consumer_group_metadata()
        call = partial(self._it.send_offsets_to_transaction, offsets, metadata, CALL_S)
        ended: Future[None] = Future()
        threading.Thread(target=self._call_into, args=(call, ended), daemon=True).start()
        try:
            ended.result(STUCK_S)
        except TimeoutError:
            raise Broken("librdkafka does not return from send_offsets_to_transaction") from None

    def _call_into(self, function: Callable[[], Any], ended: Future[None]) -> None:
        try:
            self._call(function)
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            ended.set_exception(error)
        else:
            ended.set_result(None)

    def commit(self) -> None:
        self._call(partial(self._it.commit_transaction, CALL_S))

    def abort(self) -> None:
        try:
            self._call(partial(self._it.abort_transaction, CALL_S))
        except MustAbort as error:
            raise Broken(f"abort: {error}") from None

    def close(self) -> None:
        self._producer = None

    @property
    def _it(self) -> Producer:
        assert self._producer is not None, "not closed"
        return self._producer

    def _delivered(self, send: Send, error: Any, message: Any) -> None:
        if error is None:
            send.offset = message.offset() if message.offset() >= 0 else None
            send.ended = self._history.now()

    def _call(self, function: Callable[[], Any]) -> None:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                function()
            except KafkaException as caught:
                error = caught.args[0]
                if error.txn_requires_abort():
                    raise MustAbort(str(error)) from None
                if not error.retriable() or time.monotonic() >= end:
                    raise Broken(str(error)) from None
            else:
                return
