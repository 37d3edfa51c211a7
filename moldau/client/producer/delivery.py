"""What `send_nowait` returns: one record on its way, and its outcome.

Owns the view of one record in a batch, and nothing that has to be closed or awaited: a delivery may
be dropped at any time. Invariant: it never changes once it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Final, TypeAlias

from moldau.client.producer.core.batch import Outcome
from moldau.client.records import RecordMetadata

OnDelivery: TypeAlias = Callable[[RecordMetadata | None, Exception | None], object]
"""Called with a record's outcome: its metadata, or the error."""

_LOG: Final = logging.getLogger(__name__)


def tell(callback: OnDelivery, metadata: RecordMetadata | None, error: Exception | None) -> None:
    """Call the application's function; its exceptions are logged."""
    try:
        callback(metadata, error)
    except Exception:  # noqa: BLE001 - the application's
        _LOG.exception("a delivery callback has failed")


def when_done(outcome: Outcome, index: int) -> asyncio.Future[None]:
    """Done once record `index` has its outcome, which it must not have yet."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(_outcome: Outcome, _index: int) -> None:
        if not future.done():
            future.set_result(None)

    outcome.when_done(index, wake)
    return future


@dataclass(slots=True, eq=False, repr=False)
class Delivery:
    """A record that was handed to a producer. Await it for its `RecordMetadata`.

    Cancelling the awaiting task does not stop the record.
    """

    _outcome: Outcome
    _index: int
    _timestamp_ms: int
    _key_size: int
    _value_size: int

    def done(self) -> bool:
        """Whether the record was acknowledged or has failed."""
        outcome = self._outcome
        if outcome.is_replaced:
            outcome, _ = outcome.locate(self._index)
        return outcome.is_done

    def exception(self) -> Exception | None:
        """The error of a failed record; None when it was acknowledged.

        Raises:
            asyncio.InvalidStateError: it is not done.
        """
        outcome, index = self._outcome.locate(self._index)
        if not outcome.is_done:
            raise asyncio.InvalidStateError("the record is still on its way")
        return outcome.error if outcome.error_of is None else outcome.error_of(index)

    def result(self) -> RecordMetadata:
        """Where the acknowledged record is.

        Raises:
            asyncio.InvalidStateError: it is not done.
            KafkaError: it failed.
        """
        error = self.exception()
        if error is not None:
            # All records of a batch share one error: without this its traceback would grow.
            raise error.with_traceback(None)
        outcome, index = self._outcome.locate(self._index)
        base_offset = outcome.base_offset
        appended_ms = outcome.log_append_time_ms
        return RecordMetadata(
            outcome.topic,
            outcome.partition,
            base_offset + index if base_offset >= 0 else -1,
            self._timestamp_ms if appended_ms < 0 else appended_ms,
            self._key_size,
            self._value_size,
        )

    def call_when_done(self, callback: OnDelivery) -> None:
        """Call `callback(metadata, None)` or `callback(None, error)`, on the producer's loop."""

        def report(_outcome: Outcome, _index: int) -> None:
            error = self.exception()
            if error is None:
                tell(callback, self.result(), None)
            else:
                tell(callback, None, error)

        if self.done():
            report(self._outcome, self._index)
        else:
            self._outcome.when_done(self._index, report)

    def __await__(self) -> Generator[object, None, RecordMetadata]:
        if not self.done():
            yield from when_done(self._outcome, self._index)
        return self.result()

    def __repr__(self) -> str:
        outcome, _ = self._outcome.locate(self._index)
        state = "on its way" if not outcome.is_done else "failed" if outcome.error else "done"
        return f"<Delivery to {outcome.topic}-{outcome.partition}: {state}>"
