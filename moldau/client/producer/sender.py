"""Takes batches to the leaders of their partitions, up to `max.in.flight` requests per node.

Owns Produce requests from drain to answer, their messages and versions, and the notice to waiting
callers. Must not decide what an error means for a batch (`core/results.py`) nor what a transaction
allows (`transactions.py`). Invariants: a batch that was drained comes back to `Results` exactly
once, also when its request fails or the answer leaves it out; until it is stopped, there is always
a next turn, or an answer or a caller that asks for one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, cast
from uuid import UUID

from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.errors import KafkaError
from moldau.client.producer.appender import Appender
from moldau.client.producer.core.accumulator import NEVER
from moldau.client.producer.core.batch import Outcome, ProducerBatch
from moldau.client.producer.core.queues import PartitionQueue
from moldau.client.producer.core.results import Results
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode, LocalProtocolError
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from moldau.protocol.records import Codec
from moldau.protocol.schema import Message
from moldau.protocol.types import ZERO_UUID
from moldau.runtime.clock import TimerHandle
from moldau.runtime.connection import Connection, RequestTimedOut, UnsupportedByPeer
from moldau.runtime.fault_words import words_of
from moldau.runtime.signal import Signal

_LOG: Final = logging.getLogger(__name__)


UNWRITABLE_PAUSE_MS: Final = 2.0
"""When to look again at a connection that takes no more bytes (acks=0)."""

FIRST_WITH_ZSTD: Final = 7
FIRST_WITH_TOPIC_IDS: Final = 13


class Sender:
    """Works in turns of the loop, not in a task: usually a turn sends a single request.
    States: new → running → stopped, or failed by a bug. `refusing` is called when records may be
    refused from now on, since batches were failed.
    """

    def __init__(
        self, client: ClusterClient, appender: Appender, refusing: Callable[[], object]
    ) -> None:
        accumulator, config = appender.accumulator, appender.accumulator.config
        self.results: Results = Results(accumulator)
        self.results.trouble = client.trouble
        self.failure: BaseException | None = None
        self._client = client
        self._accumulator = accumulator
        self._config = config
        self._acks = config.required_acks
        self._clock = client.clock
        self._appender = appender
        appender.wake = self.wake
        appender.wake_by = self.wake_by
        self._refusing = refusing
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_stopping = False
        self._is_woken = False
        self._next_turn_ms = NEVER
        self._timer: TimerHandle | None = None
        self._timer_due_ms = NEVER
        self._in_flight: dict[int, int] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._not_before_ms: dict[int, float] = {}
        self._flushes: list[_Flush] = []
        self._landed = Signal(client.clock)

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        assert self._loop is None
        self._loop = asyncio.get_running_loop()
        self.wake()

    async def stop(self) -> None:
        """Send nothing more. Requests under way are not waited for."""
        self._is_stopping = True
        for connecting in list(self._connecting.values()):
            connecting.cancel()
        self._cancel_timer()
        await asyncio.gather(*self._connecting.values(), return_exceptions=True)

    def _failed(self, failure: Exception) -> None:
        """Fail all batches after a bug, so that no caller waits forever."""
        self.failure = failure
        self._cancel_timer()
        _LOG.error("the producer has failed", exc_info=failure)
        error = KafkaError(f"the producer has failed: {failure!r}")
        error.__cause__ = failure
        self._refusing()
        self._appender.fail_all(error)
        self.results.fail_all(error)
        self._appender.refused(error)
        self.announce()

    # -- for the producer and its transactions ---------------------------------------------------

    def wake(self) -> None:
        """Look at all batches again, soon."""
        if not self._is_woken and self._loop is not None:
            self._is_woken = True
            self._loop.call_soon(self._turn)

    def wake_by(self, due_ms: float) -> None:
        """Look at all batches at that time at the latest."""
        if due_ms < self._next_turn_ms:
            self.wake()

    async def flush(self) -> None:
        """Send all batches without waiting for `linger.ms`, and wait until they have ended."""
        accumulator = self._accumulator
        if not accumulator.incomplete or self.failure is not None:
            return
        flush = _Flush(set(accumulator.incomplete))
        self._flushes.append(flush)
        accumulator.hurries += 1
        self.wake()
        try:
            await flush.done
        finally:
            accumulator.hurries -= 1
            self._flushes.remove(flush)

    def fail_waiting(self, error: KafkaError) -> None:
        """Fail every record that is not on the wire, also those that wait to be sent again, for a
        topic or for room.
        """
        self._refusing()
        self._appender.fail_all(error)
        self.results.fail_waiting(error)
        self.wake()

    @property
    def has_in_flight(self) -> bool:
        return self._accumulator.has_in_flight

    @property
    def needs_new_epoch(self) -> bool:
        return self._accumulator.needs_new_epoch

    async def in_flight_done(self) -> None:
        while self._accumulator.has_in_flight:
            await self._landed.wait(None)

    # -- turns -----------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._is_woken = False
        self._next_turn_ms = NEVER  # a call of `wake` during the turn gets another one
        if self._is_stopping or self.failure is not None:
            return
        try:
            self._plan(self._step(self._clock.monotonic_ms()))
        except Exception as failure:  # noqa: BLE001 - callers wait for batches
            self._failed(failure)

    def _plan(self, due_ms: float) -> None:
        """Plan the next turn for that time, or sooner when a timer runs already."""
        self._next_turn_ms = due_ms
        if due_ms >= self._timer_due_ms:
            return
        self._cancel_timer()
        self._timer_due_ms = due_ms
        delay_ms = max(due_ms - self._clock.monotonic_ms(), 0.0)
        self._timer = self._clock.call_later(delay_ms, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        self._timer_due_ms = NEVER
        self.wake()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_due_ms = NEVER

    def _step(self, now_ms: float) -> float:
        accumulator = self._accumulator
        next_ms = self._appender.expire_held(now_ms)
        if accumulator.expiry_ms() <= now_ms:
            self.results.expire(now_ms)
        ready = accumulator.ready(now_ms)
        next_ms = min(next_ms, ready.next_ms)
        for node_id in ready.due:
            next_ms = min(next_ms, self._serve(node_id, ready.by_leader[node_id], now_ms))
        if ready.leaderless:
            self._client.updates.request()
        self.announce()
        return next_ms

    def _serve(self, node_id: int, queues: list[PartitionQueue], now_ms: float) -> float:
        """Send the batches that may go to a node; returns when to look at it again."""
        most = self._config.max_in_flight_requests_per_connection
        served = queues
        not_before_ms = self._not_before_ms.get(node_id, 0.0)
        if not_before_ms > now_ms:
            return not_before_ms
        while self._in_flight.get(node_id, 0) < most:
            connection = self._client.ready(node_id)
            self._accumulator.node_ready(node_id, connection is not None, now_ms)
            if connection is None:
                self._connect(node_id)
                break
            if self._acks == 0 and not connection.is_writable:
                # Nothing else limits requests without answers.
                return now_ms + UNWRITABLE_PAUSE_MS
            batches = self._accumulator.drain(queues, self._config.max_request_size, now_ms)
            if not batches:
                break
            self._send(node_id, connection, batches, now_ms)
            queues = [queue for queue in queues if queue.waiting]
            if not queues:
                # What is still being filled has its own time; without acknowledgements (acks=0) no
                # answer has it looked at.
                filling = [queue for queue in served if queue.filling is not None]
                return min(map(self._accumulator.due_ms, filling), default=NEVER)
        return NEVER

    def _connect(self, node_id: int) -> None:
        if node_id not in self._connecting and not self._is_stopping:
            task = asyncio.create_task(self._connected(node_id))
            self._connecting[node_id] = task

    async def _connected(self, node_id: int) -> None:
        """Wait until a node takes requests. The batches wait within their own time limits; an error
        that is not retriable fails them at once.
        """
        try:
            await self._client.connection(node_id)
            self._not_before_ms.pop(node_id, None)
        except (KafkaError, OSError, LocalProtocolError) as error:
            now_ms = self._clock.monotonic_ms()
            self._not_before_ms[node_id] = now_ms + self._config.retry_backoff_ms
            if isinstance(error, KafkaError) and not error.retriable:
                self.results.fail_node(node_id, error)
            self._client.updates.request()
        finally:
            del self._connecting[node_id]
            self.wake()

    # -- requests --------------------------------------------------------------------------------

    def _send(
        self, node_id: int, connection: Connection, batches: list[ProducerBatch], now_ms: float
    ) -> None:
        config = self._config
        identity = self._accumulator.identity
        try:
            call = _produce_call(
                connection,
                batches,
                acks=self._acks,
                timeout_ms=config.request_timeout_ms,
                transactional_id=config.transactional_id,
                highest_version=None if identity is None else identity.highest_produce_version,
            )
            if self._acks == 0:
                connection.send_and_forget(call.request, api_version=call.version)
                for batch in batches:
                    self.results.acknowledged(batch)
                return
            # A batch is sent again only after its answer, or after its connection's end.
            answer = connection.submit(
                call.request,
                api_version=call.version,
                timeout_ms=config.request_timeout_ms,
                keeps_records=True,
            )
        except UnsupportedByPeer as error:
            self._refuse(batches, ErrorCode.UNSUPPORTED_VERSION, str(error), now_ms)
        except LocalProtocolError as error:
            self._refuse(batches, ErrorCode.INVALID_REQUEST, str(error), now_ms)
        except OSError as error:
            self._refuse(batches, ErrorCode.NETWORK_EXCEPTION, words_of(error), now_ms)
            self._client.updates.request()
        else:
            self._in_flight[node_id] = self._in_flight.get(node_id, 0) + 1
            answer.add_done_callback(partial(self._answered, node_id, call))

    def _refuse(
        self, batches: Iterable[ProducerBatch], code: ErrorCode, message: str, now_ms: float
    ) -> None:
        for batch in batches:
            self.results.refused(batch, code, message, now_ms)

    def _answered(self, node_id: int, call: ProduceCall, answer: asyncio.Future[Message]) -> None:
        self._in_flight[node_id] -= 1
        now_ms = self._clock.monotonic_ms()
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or error is not None:
            code = ErrorCode.NETWORK_EXCEPTION
            if isinstance(error, RequestTimedOut):
                code = ErrorCode.REQUEST_TIMED_OUT
            self._refuse(
                call.batches.values(),
                code,
                "cancelled" if error is None else words_of(error),
                now_ms,
            )
            self._client.updates.request()
        else:
            self._take_answer(node_id, call, cast("ProduceResponse", answer.result()), now_ms)
        self.announce()
        if self._landed.waiters and not self._accumulator.has_in_flight:
            self._landed.set()
        self.wake()

    def _take_answer(
        self, node_id: int, call: ProduceCall, response: ProduceResponse, now_ms: float
    ) -> None:
        by_id = call.version >= FIRST_WITH_TOPIC_IDS
        left = dict(call.batches)
        answers: list[tuple[ProducerBatch, PartitionProduceResponse]] = []
        leaders: list[tuple[str, int, int, int]] = []
        for topic in response.responses:
            topic_key: str | UUID = topic.topic_id if by_id else topic.name
            for entry in topic.partition_responses:
                batch = left.pop((topic_key, entry.index), None)
                if batch is None:
                    continue
                answers.append((batch, entry))
                leader = entry.current_leader
                if leader.leader_id >= 0 and leader.leader_epoch >= 0:
                    leaders.append(
                        (batch.topic, batch.partition, leader.leader_id, leader.leader_epoch)
                    )
        if response.throttle_time_ms > 0:
            self._client.throttled(node_id, response.throttle_time_ms)
        if leaders:
            self._client.learn_leaders(leaders, response.node_endpoints)
        is_stale = bool(left)
        for batch, entry in answers:
            code = ErrorCode.of(entry.error_code)
            if code is ErrorCode.NONE:
                self.results.acknowledged(
                    batch,
                    base_offset=entry.base_offset,
                    log_append_time_ms=entry.log_append_time_ms,
                )
                continue
            is_stale = is_stale or code.invalidates_metadata
            errors = {
                each.batch_index: each.batch_index_error_message for each in entry.record_errors
            }
            self.results.refused(batch, code, entry.error_message, now_ms, record_errors=errors)
        missing = "the broker's answer does not mention the partition"
        self._refuse(left.values(), ErrorCode.NETWORK_EXCEPTION, missing, now_ms)
        if is_stale:
            self._client.updates.request()

    # -- notifying -------------------------------------------------------------------------------

    def announce(self) -> None:
        """Tell waiting callers which batches have ended, and whether there is room now: memory also
        comes back without an outcome, with a batch that had expired on the wire.
        """
        accumulator = self._accumulator
        if accumulator.finished or accumulator.replaced:
            self._announce_outcomes()
        self._appender.room_changed()

    def _announce_outcomes(self) -> None:
        accumulator = self._accumulator
        finished, accumulator.finished = accumulator.finished, []
        replaced, accumulator.replaced = accumulator.replaced, []
        for flush in self._flushes:
            for outcome in replaced:
                flush.replace(outcome)
            flush.discard(finished)
        for outcome in finished:
            for index, waiter in outcome.take_waiters():
                try:
                    waiter(outcome, index)
                except Exception:  # noqa: BLE001 - the application's callback; others still run
                    _LOG.exception("a delivery callback has failed")


class _Flush:
    """The outcomes that one call of `flush` waits for."""

    __slots__ = ("done", "left")

    def __init__(self, left: set[Outcome]) -> None:
        self.left = left
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def replace(self, outcome: Outcome) -> None:
        if outcome in self.left:
            self.left.discard(outcome)
            self.left.update(part for part in outcome.parts() if not part.is_done)

    def discard(self, finished: Iterable[Outcome]) -> None:
        self.left.difference_update(finished)
        if not self.left and not self.done.done():
            self.done.set_result(None)


# -- Produce requests (v3-v13) -------------------------------------------------------------------


@dataclass(slots=True)
class ProduceCall:
    """One request and the batches in it, by topic (name, or id from v13 on) and partition."""

    request: ProduceRequest
    version: int
    batches: dict[tuple[str | UUID, int], ProducerBatch]


def _produce_call(
    connection: Connection,
    batches: Iterable[ProducerBatch],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None,
    highest_version: int | None,
) -> ProduceCall:
    """A request with one batch per partition, in the highest version that can express it. Raises:
    UnsupportedByPeer when the broker serves none.
    """
    version = connection.best_version(ApiKey.PRODUCE, ProduceRequest, max_version=highest_version)
    by_topic: dict[str, list[ProducerBatch]] = {}
    for batch in batches:
        by_topic.setdefault(batch.topic, []).append(batch)
        header = batch.header
        if version < FIRST_WITH_ZSTD and header is not None and header.codec is Codec.ZSTD:
            raise UnsupportedByPeer(
                f"{connection.host}:{connection.port} takes no zstd: it serves Produce up to "
                f"version {version}, {FIRST_WITH_ZSTD} is needed"
            )
    # The topic whose leader is asked: by its name another one could be meant by now.
    ids = {topic: of_topic[0].sent_topic_id for topic, of_topic in by_topic.items()}
    if ZERO_UUID in ids.values():
        version = min(version, FIRST_WITH_TOPIC_IDS - 1)
    topics: list[TopicProduceData] = []
    sent: dict[tuple[str | UUID, int], ProducerBatch] = {}
    for topic, of_topic in by_topic.items():
        data = TopicProduceData(
            partition_data=[
                PartitionProduceData(index=batch.partition, records=batch.encoded)
                for batch in of_topic
            ]
        )
        key: str | UUID = topic
        if version >= FIRST_WITH_TOPIC_IDS:
            key = data.topic_id = ids[topic]
        else:
            data.name = topic
        for batch in of_topic:
            sent[key, batch.partition] = batch
        topics.append(data)
    request = ProduceRequest(
        transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=topics
    )
    return ProduceCall(request, version, sent)
