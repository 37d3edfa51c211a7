"""Sends the flights, a transaction at a time, at a steady pace.

Owns the transactional producer. Must not know who is killed. Invariant: a transaction whose end is
an abort is sent again as a whole, and the next one begins only after it has committed; so `flights`
and `audit` have all of it or nothing, each flight once, in the order of its key.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence

from demo.story_data import AUDIT, FLIGHTS, Flight, audit_of, transactions
from moldau.client import KafkaError, TransactionAbortable
from moldau.client.sync import Producer

TRANSACTIONAL_ID = "flights-feed"
END_S = 120.0


class Feed:
    """A thread that sends; `commits` grows by each committed transaction's begin and end.

    Args:
        seconds: how long the sending shall take when nothing is in its way.
    """

    def __init__(self, bootstrap: str, records: Sequence[Flight], seconds: float) -> None:
        self.commits: list[tuple[float, float]] = []
        self.sent_count = 0
        self.aborted_count = 0
        self.error: Exception | None = None
        self._bootstrap = bootstrap
        self._transactions = list(transactions(records))
        self._interval_s = seconds / max(1, len(self._transactions))
        self._stop = threading.Event()
        self._gate = threading.Condition()
        self._allowed_count = len(self._transactions)
        self._thread = threading.Thread(target=self._work, name="feed")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def allow(self, share: float) -> None:
        """Go on to this share of the input and no further: the stage wants to see the rest sent."""
        with self._gate:
            self._allowed_count = math.ceil(share * len(self._transactions))
            self._gate.notify()

    def is_over(self) -> bool:
        """Whether everything is sent, or an error has ended it."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Wait for the end; raises what has ended it."""
        self._thread.join()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """End after the transaction at work."""
        self._stop.set()
        with self._gate:
            self._gate.notify()
        if self._thread.ident is not None:
            self._thread.join()

    def send_one(self, flight: Flight) -> None:
        """One more flight in its own transaction, after all others."""
        with self._producer() as producer, producer.transaction():
            producer.send_nowait(FLIGHTS, flight.value, key=flight.key)

    def _producer(self) -> Producer:
        return Producer(
            self._bootstrap,
            transactional_id=TRANSACTIONAL_ID,
            compression_type="lz4",
            linger_ms=5,
            max_block_ms=120_000,
            transaction_timeout_ms=60_000,
        )

    def _work(self) -> None:
        try:
            with self._producer() as producer:
                due = time.monotonic()
                for number, sent in self._transactions:
                    with self._gate:
                        self._gate.wait_for(
                            lambda n=number: n < self._allowed_count or self._stop.is_set()
                        )
                    if self._stop.wait(max(0.0, due - time.monotonic())):
                        return
                    due = max(due, time.monotonic() - self._interval_s) + self._interval_s
                    self._send(producer, number, sent)
        except KafkaError as error:
            self.error = error

    def _send(self, producer: Producer, number: int, sent: Sequence[Flight]) -> None:
        end = time.monotonic() + END_S
        while True:
            begun = time.monotonic()
            try:
                with producer.transaction():
                    for flight in sent:
                        producer.wait_for_room()
                        producer.send_nowait(FLIGHTS, flight.value, key=flight.key)
                    key, value = audit_of(number, sent)
                    producer.send_nowait(AUDIT, value, key=key)
            except TransactionAbortable:
                self.aborted_count += 1
                if time.monotonic() > end:
                    raise
                continue
            self.sent_count += len(sent)
            self.commits.append((begun, time.monotonic()))
            return
