"""`Producer`: sends records and reports their delivery.

Owns the public calls, their checks, and the parts: accumulator, appender, sender, transactions,
cluster client. Must not know how any of them works. Invariants: a call that raises has sent
nothing; a record that was appended is delivered or fails, also when its caller is cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self, Unpack, cast

from moldau.client.cluster.cluster_client import ClusterClient, ClusterUser
from moldau.client.cluster.metadata_cache import TopicMetadata
from moldau.client.config.keywords import ProducerSettings
from moldau.client.config.producer import ProducerConfig
from moldau.client.errors import (
    ClientClosed,
    ConfigurationError,
    InvalidTransactionState,
    KafkaError,
    RequestTimeout,
    WrongEventLoop,
)
from moldau.client.producer.appender import Appender, Record, held_size_bytes
from moldau.client.producer.core.accumulator import Accumulator
from moldau.client.producer.core.queues import TopicQueues
from moldau.client.producer.delivery import Delivery, OnDelivery
from moldau.client.producer.partitioners import Partitioner, partitioner_of
from moldau.client.producer.record_checks import (
    HeadersLike,
    check_bytes,
    check_partition,
    check_timestamp,
    check_topic,
    checked_headers,
    serialized,
)
from moldau.client.producer.sender import Sender
from moldau.client.producer.transactions import (
    OffsetsSource,
    PreparedTransaction,
    TransactionContext,
    Transactions,
)
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata, RecordMetadata
from moldau.client.serialization import Key, SerializerLike, Value, serialize_function
from moldau.config.backoff import backoff_ms
from moldau.protocol.records import RecordHeaders
from moldau.protocol.types import TopicPartition
from moldau.runtime.ports import Ports
from moldau.runtime.shared_work import outcome_of

if TYPE_CHECKING:
    from moldau.client.arrow.sending import ArrowData, ArrowDelivery, ArrowSender

ROOM_SHARE: Final = 8
"""`wait_for_room` waits until this part of `buffer.memory` is free."""

_LOG: Final = logging.getLogger(__name__)
_running_loop = asyncio.get_running_loop


class Producer(ClusterUser, Generic[Key, Value]):
    """Sends records to topics. `async with Producer("localhost:9092") as producer: …`

    Idempotent unless that is switched off: retries neither repeat nor reorder records (KIP-98).

    The calls about transactions need a `transactional.id`. Each raises `InvalidTransactionState`
    when it is out of turn, `TransactionAbortable` when the open transaction can only be aborted
    (the producer goes on after `abort_transaction`), `ProducerFenced` when another producer has the
    transactional id, and `RequestTimeout` after `max.block.ms`. A call that was cancelled or ran
    out of time may be made again.

    Args:
        bootstrap_servers: `HOST:PORT`, several separated by commas, or a list of them.
        config: a `ProducerConfig`, or settings by name, dotted or with underscores.
        key_serializer, value_serializer: make bytes of keys and values that are not None; without
            them these are bytes already.
        partitioner: a function, or one of "default" (KIP-480, KIP-794), "murmur2", "random" and
            "round_robin"; see `moldau.client.producer.partitioners`.
        ports: clock, network and randomness of a simulation; None for the machine's own.
        settings: as in `ProducerConfig`; they win over `config`.

    Raises:
        ConfigurationError: an unknown setting, or a value that cannot be.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = "",
        *,
        config: ProducerConfig | Mapping[str, object] | None = None,
        key_serializer: SerializerLike[Key] | None = None,
        value_serializer: SerializerLike[Value] | None = None,
        partitioner: str | Partitioner | None = None,
        ports: Ports | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.config: ProducerConfig = ProducerConfig.resolve(bootstrap_servers, config, settings)
        try:
            self._key_serializer = serialize_function(key_serializer)
            self._value_serializer = serialize_function(value_serializer)
            ports = ports or Ports.of_machine()
            chosen = partitioner_of(partitioner or self.config.partitioner_class, ports.random)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from error
        self._serializes = not (self._key_serializer is None and self._value_serializer is None)
        self._client = ClusterClient(self.config, allow_auto_topic_creation=True, ports=ports)
        self._clock = self._client.clock
        self._now_ms = self._clock.now_ms
        self._parts(chosen)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Future[None] | None = None
        self._learning: dict[str, asyncio.Task[None]] = {}
        self._arrow: ArrowSender | None = None

    def _parts(self, partitioner: Partitioner | None) -> None:
        config = self.config
        self._is_transactional = config.transactional_id is not None
        #: Whether a record may be refused because of the producer's state, not its own contents.
        self._must_check = self._is_transactional
        source = self._client.random
        self._accumulator = Accumulator(
            config,
            backoff_ms=partial(
                backoff_ms,
                first_ms=config.retry_backoff_ms,
                most_ms=config.retry_backoff_max_ms,
                source=source,
            ),
            randrange=source.randrange,
        )
        self._appender = Appender(
            self._accumulator,
            self._clock,
            partitioner,
            self._learn,
            self._client.updates.used,
            self._record_refused,
        )
        self._sender = Sender(self._client, self._appender, self._check_from_now_on)
        self._transactions: Transactions | None = None
        if config.enable_idempotence:
            self._transactions = Transactions(self._client, config, self._sender)
        self._accumulator.identity = self._transactions

    # -- life ------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()

    def _start(self) -> None:
        if self._closing is not None:
            raise ClientClosed("the producer is closed; make a new one")
        if self._loop is None:
            self._loop = _running_loop()
            self._client.updates.on_update(self._metadata_changed)
            self._sender.start()
            if self._transactions is not None:
                self._transactions.start()

    def _check_from_now_on(self) -> None:
        """Check every record, since the producer has failed or its transaction has."""
        self._must_check = True

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver all records, abort an open transaction, close all connections (idempotent).

        Calls that wait for room in `buffer.memory` fail at once with `ClientClosed`. When no broker
        was ever reached, and none can be now, all records fail soon with it, which says why. When
        the call is cancelled, all records without an acknowledgement fail, and the connections are
        closed in the background.

        Args:
            timeout_ms: how long to wait for acknowledgements; records without one by then fail with
                `ClientClosed`. None: as long as the records' own time limits allow.
        """
        if self._closing is not None:
            await asyncio.wait([self._closing])
            return
        self._closing = asyncio.get_running_loop().create_future()
        self._must_check = True
        self._appender.turn_away(ClientClosed("the producer was closed before there was room"))
        limit_ms = self.config.delivery_timeout_ms if timeout_ms is None else timeout_ms
        transactions = self._transactions
        try:
            if self._loop is not None:
                if transactions is not None and self._is_transactional:
                    await transactions.close(limit_ms)
                await self._unless_hopeless(self._flush_within(timeout_ms))
                if transactions is not None and not self._is_transactional:
                    await transactions.close(limit_ms)
        finally:
            ending = asyncio.create_task(self._shut_down(self._closing))
            self._fail_all()
            await outcome_of(ending)

    async def _flush_within(self, timeout_ms: float | None) -> bool:
        try:
            async with asyncio.timeout(None if timeout_ms is None else max(timeout_ms, 0) / 1000):
                await self._sender.flush()
        except TimeoutError:
            return False
        return True

    async def _unless_hopeless(self, waiting: Coroutine[object, object, object]) -> None:
        """Wait for what comes before the end; all records fail when no broker can be reached."""
        giving_up = asyncio.create_task(self._give_up_unless_reached())
        try:
            await waiting
        finally:
            giving_up.cancel()
            await asyncio.wait([giving_up])

    async def _give_up_unless_reached(self) -> None:
        what = "the producer was closed before the record was sent"
        try:
            await self._client.reach(what, self.config.socket_connection_setup_timeout_ms)
        except KafkaError as error:
            if self._accumulator.incomplete:
                _LOG.warning("records are lost: %s", error)
            self._sender.fail_waiting(ClientClosed(str(error)))

    def _fail_all(self) -> None:
        error = ClientClosed("the producer was closed before the record was acknowledged")
        self._appender.fail_all(error)
        self._sender.results.fail_all(error)
        self._sender.announce()

    async def _shut_down(self, closing: asyncio.Future[None]) -> None:
        try:
            for task in list(self._learning.values()):
                task.cancel()
            await asyncio.gather(*self._learning.values(), return_exceptions=True)
            if self._transactions is not None:
                await self._transactions.close(0)  # what a cancelled `close` has not come to
            await self._sender.stop()
            await self._client.close()
        finally:
            closing.set_result(None)

    # -- sending ---------------------------------------------------------------------------------

    async def send(
        self,
        topic: str,
        value: Value | None = None,
        *,
        key: Key | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement.

        When cancelled before the record is in `buffer.memory`, nothing is sent; afterwards it is
        delivered all the same.

        Args:
            value: bytes, or what the value serializer takes; None is a null (a tombstone).
            key: decides on the partition, unless that is given.
            timestamp_ms: milliseconds since 1970 UTC; now when None.

        Raises:
            BufferFull: no room within `max.block.ms`.
            RecordTooLarge, SerializationError: the record cannot be sent.
            UnknownTopicOrPartition: the topic did not come up within `max.block.ms`.
            DeliveryTimeout: not acknowledged within `delivery.timeout.ms`.
            KafkaError: a broker refused it for good; ClientClosed; the transaction's errors.
        """
        self._check()
        if timestamp_ms is None:
            timestamp_ms = self._now_ms()
        else:
            check_timestamp(timestamp_ms)
        data, key_data, header_list = self._prepared(topic, value, key, headers)
        if partition is not None:
            check_partition(partition)
        record = (topic, data, key_data, header_list, partition, timestamp_ms)
        appender = self._appender
        delivery = None if appender.is_waited_for else appender.append(*record)
        return await (delivery or await self._append_with_room(record))

    async def _append_with_room(self, record: Record) -> Delivery:
        appender = self._appender
        deadline_ms = self._clock.monotonic_ms() + self.config.max_block_ms
        _, value, key, headers, _, _ = record
        needed = held_size_bytes(key, value, headers)
        needed = min(needed, self.config.buffer_memory)
        while True:
            await appender.wait_for_record(needed, deadline_ms)
            self._check()
            delivery = appender.append(*record)
            if delivery is not None:
                return delivery

    def send_nowait(
        self,
        topic: str,
        value: Value | None = None,
        *,
        key: Key | None = None,
        headers: HeadersLike = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> Delivery:
        """Hand over a record without waiting for anything; arguments as `send`.

        Args:
            on_delivery: called on the event loop when it was acknowledged or has failed.

        Returns:
            The delivery: await it, query it, or drop it.

        Raises:
            BufferFull: there is no room now; `await wait_for_room()`, then send it again.
            RecordTooLarge, SerializationError, ClientClosed, the transaction's errors.
        """
        if self._must_check or _running_loop() is not self._loop:
            self._check()
        if timestamp_ms is None:
            timestamp_ms = self._now_ms()
        else:
            check_timestamp(timestamp_ms)
        data: Any = value
        key_data: Any = key
        pairs: RecordHeaders = ()
        if self._serializes or headers:
            data, key_data, pairs = self._prepared(topic, value, key, headers)
        if partition is not None:
            check_partition(partition)
        appender = self._appender
        delivery = None
        if not appender.is_waited_for:  # else it would overtake what waits
            delivery = appender.append(topic, data, key_data, pairs, partition, timestamp_ms)
        if delivery is None:
            raise appender.buffer_full(None)
        if on_delivery is not None:
            delivery.call_when_done(on_delivery)
        return delivery

    def _prepared(
        self, topic: str, value: object, key: object, headers: HeadersLike
    ) -> tuple[bytes | None, bytes | None, RecordHeaders]:
        """Serialize and check; any thread may call it, since it touches no state."""
        if self._key_serializer is not None and key is not None:
            key = serialized(self._key_serializer, topic, key, "key")
        if self._value_serializer is not None and value is not None:
            value = serialized(self._value_serializer, topic, value, "value")
        check_bytes(key, value)
        checked = checked_headers(headers) if headers else ()
        return cast("bytes | None", value), cast("bytes | None", key), checked

    async def send_arrow(
        self, topic: str | None, data: ArrowData, *, partition: int | None = None
    ) -> ArrowDelivery:
        """Send all rows of a pyarrow Table or RecordBatch and wait for every acknowledgement.

        No Python object per row is made. Columns: `value`; optional `key`, `headers`, `timestamp`,
        `partition`, `topic` (Spark's schema for Kafka). It waits for room slice by slice, for each
        at most `max.block.ms`.

        Args:
            topic: for all rows; None: the column `topic` says it.
            partition: for all rows; None: the column, or the partitioner.

        Raises:
            ArrowMissing: pyarrow is not installed.
            SerializationError: the columns are not such.
            KafkaError: as `send`; the first error, when everything else has ended.
        """
        self._check()
        if self._arrow is None:
            from moldau.client.arrow.sending import ArrowSender

            self._arrow = ArrowSender(self._appender, self._topic, self._check)
        return await self._arrow.send(topic, data, partition)

    async def wait_for_room(self) -> None:
        """Wait until `send_nowait` has room: an eighth of `buffer.memory`. Records that the caller
        sends before it awaits anything else are not refused because other calls wait behind it.

        Raises:
            BufferFull: not within `max.block.ms`.
            KafkaError: the producer takes no more records: ClientClosed; the transaction's errors.
        """
        self._check()
        needed = max(self.config.buffer_memory // ROOM_SHARE, 1)
        deadline_ms = self._clock.monotonic_ms() + self.config.max_block_ms
        await self._appender.wait_for_bytes(needed, deadline_ms)
        self._appender.let_pass()

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until all records handed over so far were acknowledged or have failed.

        They are sent at once, without waiting for `linger.ms`. The deliveries report failures.

        Args:
            timeout_ms: None: as long as the records' own time limits allow.

        Raises:
            RequestTimeout: not within `timeout_ms`; they are still on their way.
        """
        self._check_usable()
        if not await self._flush_within(timeout_ms):
            raise RequestTimeout(
                f"flush: not everything was acknowledged within {timeout_ms} ms; it goes on"
            )

    async def partitions_for(self, topic: str) -> list[int]:
        """The partitions of a topic, ascending.

        Raises:
            UnknownTopicOrPartition: it did not come up within `max.block.ms`.
        """
        self._check_usable()
        check_topic(topic)
        return sorted((await self._described(topic)).partitions)

    # -- transactions ----------------------------------------------------------------------------

    def transaction(self) -> TransactionContext:
        """A transaction around a block: `async with producer.transaction(): …`.

        Committed at the end of the block, aborted when the block raises or is cancelled. The first
        one calls `init_transactions`. A transaction that was ended or prepared within the block is
        left as it is.

        Raises:
            TransactionAbortable: at the end of the block: it could not be committed, and was
                aborted; the next one may succeed.
        """
        return TransactionContext(self._of("transaction()"))

    async def init_transactions(
        self, *, keep_prepared_transaction: bool = False
    ) -> PreparedTransaction | None:
        """Fence every other producer of the transactional id, and get a producer id.

        Args:
            keep_prepared_transaction: do not abort a transaction that the previous producer left
                prepared, but take it over (KIP-939): it is returned, and waits for
                `complete_transaction`. Needs brokers that know two-phase commit, and
                `transaction.two.phase.commit.enable`.

        Raises:
            TransactionalIdAuthorizationFailed: not permitted; may be called again.
            UnsupportedByBroker: two-phase commit is not known to the brokers.
        """
        return await self._of("init_transactions()").initialize(
            keep_prepared=keep_prepared_transaction
        )

    def begin_transaction(self) -> None:
        """Open a transaction; everything sent from now on is part of it."""
        self._of("begin_transaction()").begin()

    async def commit_transaction(self) -> None:
        """Flush, and make everything sent since `begin_transaction` visible, all at once.

        Raises:
            TransactionAbortable: a record or the offsets could not be written: abort. A call that
                raised SerializationError, or BufferFull at once, has not spoilt the transaction.
        """
        await self._of("commit_transaction()").commit()

    async def abort_transaction(self) -> None:
        """Abort everything sent since `begin_transaction`; unsent records fail with
        `TransactionAborted`.

        Raises:
            InvalidTransactionState: also after a commit whose outcome is unknown: commit again.
        """
        await self._of("abort_transaction()").abort()

    async def send_offsets(
        self,
        offsets: OffsetsSource | Mapping[TopicPartition, OffsetAndMetadata | int],
        group: ConsumerGroupMetadata | str | None = None,
    ) -> None:
        """Commit a consumer's positions as part of the open transaction (KIP-447).

        Args:
            offsets: the consumer, whose positions and membership are used, so that one that has
                lost its partitions cannot commit them; or the next offset to read per partition.
            group: with offsets, `consumer.group_metadata()`, or a bare group id, which protects
                from nothing.

        Raises:
            TransactionAbortable: the group has moved on (its code is ILLEGAL_GENERATION,
                UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or STALE_MEMBER_EPOCH), or it is not
                permitted.
            TypeError, ValueError: a group without offsets, or offsets without a group.
        """
        await self._of("send_offsets()").send_offsets(offsets, group)

    async def prepare_transaction(self) -> PreparedTransaction:
        """Flush, and keep the transaction open for an outcome that is decided elsewhere (KIP-939).

        It does not time out. Store what is returned together with the decision: after a crash
        `init_transactions(keep_prepared_transaction=True)` and `complete_transaction` end it.

        Raises:
            InvalidTransactionState: also without `transaction.two.phase.commit.enable`.
        """
        return await self._of("prepare_transaction()").prepare()

    async def hand_over_transaction(self) -> PreparedTransaction:
        """Flush, and leave the transaction to another process, which ends it with
        `Admin.end_transaction` before `transaction.timeout.ms` is over.

        For applications that decide about the work of many producers at once, on brokers without
        two-phase commit. Closing this producer leaves the transaction open; `complete_transaction`
        would end it from here.
        """
        return await self._of("hand_over_transaction()").prepare(is_handed_over=True)

    async def complete_transaction(self, prepared: PreparedTransaction) -> bool:
        """End the prepared transaction: commit it if it is `prepared`, else abort it (KIP-939).

        Args:
            prepared: what was last stored with a decision to commit.

        Returns:
            Whether it was committed.
        """
        return await self._of("complete_transaction()").complete(prepared)

    def _of(self, call: str) -> Transactions:
        if self._transactions is None:
            raise InvalidTransactionState(
                f"{call}: this producer is not transactional; give it a transactional.id"
            )
        self._check_usable()
        return self._transactions

    # -- checks ----------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._closing is not None:
            raise ClientClosed("the producer is closed; make a new one")
        if _running_loop() is not self._loop:
            if self._loop is not None:
                raise WrongEventLoop(
                    "this producer belongs to another event loop; make one per loop, or use "
                    "moldau.client.sync, which threads can share"
                )
            self._start()
        if self._sender.failure is not None:
            raise KafkaError(f"the producer has failed: {self._sender.failure!r}")

    def _check(self) -> None:
        self._check_usable()
        transactions = self._transactions
        if transactions is not None:
            refusal = transactions.refusal
            if refusal is not None:
                raise refusal

    def _record_refused(self, error: Exception) -> None:
        if self._transactions is not None and self._is_transactional:
            self._transactions.record_refused(error)

    # -- metadata --------------------------------------------------------------------------------

    def _learn(self, topic: str, partition_count: int = 1) -> None:
        if topic in self._learning:
            return
        task = asyncio.create_task(self._learned(topic, partition_count))
        self._learning[topic] = task

    async def _learned(self, topic: str, partition_count: int) -> None:
        try:
            await self._described(topic, partition_count)
        except KafkaError as error:
            self._appender.fail_unknown(topic, partition_count, error)
        finally:
            del self._learning[topic]
        self._take_metadata(topic)
        self._appender.learn_more(topic)
        self._sender.wake()

    async def _topic(self, topic: str, partition_count: int = 1) -> TopicQueues:
        self._appender.check_topic(topic)
        try:
            await self._described(topic, partition_count)
        except KafkaError as error:
            self._record_refused(error)
            raise
        self._take_metadata(topic)
        return self._accumulator.topics[topic]

    async def _described(self, topic: str, partition_count: int = 1) -> TopicMetadata:
        return await self._client.updates.topic(
            topic, partition_count=partition_count, timeout_ms=self.config.max_block_ms
        )

    def _metadata_changed(self) -> None:
        for topic in [*self._accumulator.topics, *self._appender.held]:
            self._take_metadata(topic)
        self._sender.wake()

    def _take_metadata(self, topic: str) -> None:
        known = self._client.metadata.topics.get(topic)
        if known is None:
            if topic not in self._client.metadata.topic_errors:
                self._accumulator.forget_topic(topic)
            return
        partitions = known.partitions
        leaders = [
            (found.leader, found.leader_epoch) if found is not None else (-1, -1)
            for found in map(partitions.get, range(max(partitions, default=-1) + 1))
        ]
        if leaders:
            self._accumulator.set_leaders(topic, leaders, known.topic_id)
            self._appender.topic_changed(topic)
