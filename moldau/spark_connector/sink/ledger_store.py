"""The ledger topic: taken, read to its end, and written in the ledger's own transaction.

Owns the topic's making and checking, one transactional producer at a time, and how far the topic
was read; what was read is an index that several stores may share, one after the other. A record is
the decision about one batch of a query: `core.commit_protocol` makes it. Invariants: what is read
holds everything that was committed before the taking, and nothing that was not; a write counts only
when its transaction was committed under the epoch of the last taking.

Several sinks share the topic. A transaction that another sink's dead driver has left open holds
back what `read_committed` shows, so that one's own newest record may be hidden: reading goes to the
end that it had at the taking and waits for it, and ledger transactions time out soon.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from moldau.client import (
    AuthorizationFailed,
    BrokerError,
    ConfigResource,
    ConfigResourceType,
    InvalidRecord,
    KafkaError,
    NewTopic,
    OffsetOutOfRange,
    OffsetSpec,
    ProducerFenced,
    RecordTooLarge,
    RequestTimeout,
    TopicAlreadyExists,
    TopicDescription,
    TopicPartition,
    TransactionAbortable,
    UnknownTopicOrPartition,
    sync,
)
from moldau.spark_connector.core.commit_protocol import LedgerView, WriteLedger
from moldau.spark_connector.core.ledger import Batch, LedgerIndex, SinkRecord, encode, finished_key
from moldau.spark_connector.errors import LedgerBusy, LedgerUnusable
from moldau.spark_connector.sink.options import SinkOptions

_log: Final = logging.getLogger(__name__)

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A dead driver's ledger transaction holds back other sinks' for so long at most."""
CLOSE_MS: Final = 1_000
SPREAD_MS: Final = 10_000
"""How long it may take until every broker knows a new topic."""
SPREAD_PAUSE_S: Final = 0.1
POLL_MS: Final = 200
MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
MAX_TOLD: Final = 1_000
"""A plan names so many other streaming queries of a sink; for further ones tasks read the ledger.
"""

TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(MAX_VALUE_BYTES),
    # Compaction leaves the segment that is written alone: small ones keep the topic short.
    "segment.bytes": str(16 * 1024 * 1024),
}


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """What a ledger said when the topic of that id was read, to before offset `read_to`."""

    view: LedgerView
    topic_id: uuid.UUID
    read_to: int


@dataclass(slots=True)
class LedgerReading:
    """What has been read of a ledger topic, from its beginning on, and how far."""

    index: LedgerIndex = field(default_factory=LedgerIndex)
    topic_id: uuid.UUID | None = None
    read_to: int | None = None


class TimeLimit:
    """So many milliseconds, from its making or the last `begin` on."""

    def __init__(self, limit_ms: float) -> None:
        self._limit_s = limit_ms / 1e3
        self.begin()

    def begin(self) -> None:
        """All of the time is left again."""
        self._end_s = time.monotonic() + self._limit_s

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._end_s


class LedgerStore:
    """The ledger of one sink; `close` it.

    Args:
        query_id: of a batch write: of the other queries only this one is of interest. None: all
            streaming queries are.
        known: what is known already of this sink, and of which state of the topic.
        reading: what was read already, of all sinks; the store reads on in it.
    """

    def __init__(
        self,
        options: SinkOptions,
        sink_id: str,
        admin: sync.Admin,
        *,
        query_id: str | None = None,
        known: KnownLedger | None = None,
        reading: LedgerReading | None = None,
    ) -> None:
        self._options = options
        self._sink_id = sink_id
        self._query_id = query_id
        self._admin = admin
        self._partition = TopicPartition(options.ledger_topic, 0)
        self._limit_ms = admin_limit_ms(options)
        self._reading = reading or _reading_of(known, sink_id)
        self._is_partial = known is not None
        self._producer: sync.Producer | None = None

    def close(self) -> None:
        """Give up the taking; a transaction that is open is aborted."""
        self._drop_producer()

    def known(self, record: SinkRecord) -> KnownLedger:
        """What has been read of this sink, with its record as it was written since."""
        reading = self._reading
        assert reading.topic_id is not None, "taken"
        assert reading.read_to is not None
        return KnownLedger(replace(self._view(), record=record), reading.topic_id, reading.read_to)

    # -- the topic -------------------------------------------------------------------------------

    def prepare_topic(self) -> None:
        """Make the topic where there is none; refuse one that cannot keep a ledger. Raises:
        LedgerUnusable: several partitions, or records that do not stay
        """
        name = self._options.ledger_topic
        try:
            described = self._admin.describe_topics([name])[name]
        except UnknownTopicOrPartition:
            with contextlib.suppress(TopicAlreadyExists):
                self._admin.create_topics([NewTopic(name, 1, configs=TOPIC_CONFIGS)])
                _log.info("made the ledger topic %s", name)
            described = self._described()
        if len(described.partitions) != 1:
            raise LedgerUnusable(
                f"ledger topic {name} has {len(described.partitions)} partitions: a ledger has "
                "one, or its order is lost. Name another topic with the option ledgerTopic"
            )
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        try:
            policy = self._admin.describe_configs([resource])[resource].get("cleanup.policy")
        except AuthorizationFailed as error:
            _log.warning("whether the ledger topic is compacted cannot be seen: %s", error)
            return
        if policy is not None and (policy.value or "").strip() != "compact":
            raise LedgerUnusable(
                f"ledger topic {name} has cleanup.policy={policy.value}: with that, decisions are "
                "deleted in time. Set it to compact, or name another topic with ledgerTopic"
            )

    def _described(self) -> TopicDescription:
        """The topic, which exists: the controller may know it before each of the brokers does.
        Raises: LedgerUnusable: it is not
        """
        name = self._partition.topic
        limit = TimeLimit(min(self._limit_ms, SPREAD_MS))
        while True:
            try:
                return self._admin.describe_topics([name])[name]
            except UnknownTopicOrPartition:
                if limit.is_over:
                    raise _not_as_it_was(name, "it is gone") from None
                time.sleep(SPREAD_PAUSE_S)

    # -- reading ---------------------------------------------------------------------------------

    def take(self, *, is_fencing: bool) -> LedgerView:
        """Shut out other writers, then read what is new.

        Raises:
            LedgerBusy: another sink's transaction hides the end for too long.
            LedgerUnusable: the topic is not what it was.
            LedgerUnreadable: a record that cannot be understood.
            KafkaError: the cluster.
        """
        if is_fencing:
            self._drop_producer()
            self._producer = sync.Producer(
                config=self._options.producer_config(
                    transactional_id=f"{self._sink_id}.ledger",
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
                    max_request_size=MAX_VALUE_BYTES,
                    linger_ms=0,
                )
            )
            self._producer.flush()  # starts it: without, closing it leaves a task behind
            self._producer.init_transactions()
        self._read(self._reading)
        return self._view()

    def elsewhere(self, query_id: str) -> tuple[tuple[str, Batch], ...]:
        """Where a streaming query has written under other sinks; reads the whole topic when only
        this sink's part is known. Raises as `take`.
        """
        return tuple(self._whole().elsewhere(self._sink_id, query_id))

    def whole(self) -> LedgerIndex:
        """Everything that the topic holds now. Raises as `take`."""
        self._read(self._reading)
        return self._whole()

    def _whole(self) -> LedgerIndex:
        if not self._is_partial:
            return self._reading.index
        reading = LedgerReading(topic_id=self._reading.topic_id)
        self._read(reading)
        return reading.index

    def _view(self) -> LedgerView:
        """What is known of this sink. Raises: LedgerUnreadable."""
        index = self._reading.index
        record = index.record(self._sink_id)
        if self._query_id is not None:
            mine = index.finished(self._sink_id, self._query_id)
            return LedgerView(record, {} if mine is None else {self._query_id: mine})
        finished, is_whole = index.streams(self._sink_id, MAX_TOLD)
        return LedgerView(record, finished, is_whole)

    def _read(self, reading: LedgerReading) -> None:
        name = self._partition.topic
        topic_id = self._described().topic_id
        if reading.topic_id not in (None, topic_id):
            raise _not_as_it_was(name, "it was made anew")
        reading.topic_id = topic_id
        end = self._admin.list_offsets({self._partition: OffsetSpec.LATEST})
        end_offset = end[self._partition].offset
        read_to = reading.read_to
        if read_to is not None and read_to > end_offset:
            raise _not_as_it_was(name, f"it ends at {end_offset}, and was read to {read_to} before")
        if read_to == end_offset:
            return
        with sync.Consumer(
            config=self._options.consumer_config(
                isolation_level="read_committed",
                auto_offset_reset="none" if read_to is not None else "earliest",
            )
        ) as consumer:
            consumer.assign([self._partition])
            if read_to is None:
                consumer.seek_to_beginning(self._partition)
            else:
                consumer.seek(self._partition, read_to)
            reading.read_to = _read_on(
                consumer, self._partition, end_offset, self._limit_ms, reading.index
            )

    # -- writing ---------------------------------------------------------------------------------

    def write(self, step: WriteLedger) -> bool:
        """Whether the record is committed; False when it is not, or that is not known. Raises:
        KafkaError: what no other attempt helps against
        """
        changes: dict[str, bytes | None] = {}
        if step.finished is not None:
            record = SinkRecord(self._sink_id, step.record.driver, step.finished)
            changes[finished_key(self._sink_id, step.finished.query_id)] = encode(record)
        changes[self._sink_id] = None if step.is_tombstone else encode(step.record)
        return self.change(changes)

    def change(self, changes: Mapping[str, bytes | None]) -> bool:
        """Write new values, None for tombstones, in one transaction of the last taking: whether it
        is committed, as for `write`. Raises: KafkaError: what no other attempt helps against
        """
        producer = self._producer
        if producer is None:
            return False
        try:
            producer.begin_transaction()
            for key, value in changes.items():
                producer.send_nowait(self._partition.topic, value, key=key.encode(), partition=0)
            producer.commit_transaction()
        except (ProducerFenced, RequestTimeout) as error:
            _log.info("the ledger's write is not known to be committed: %s", error)
            self._drop_producer()
            return False
        except TransactionAbortable as error:
            self._drop_producer()
            if isinstance(error.__cause__, AuthorizationFailed | RecordTooLarge | InvalidRecord):
                raise error.__cause__ from error
            _log.info("the ledger's write was not committed: %s", error)
            return False
        except BrokerError as error:
            # Another driver has taken the ledger while the commit was under way: its abort came
            # first.
            if error.code.name != "INVALID_TXN_STATE":
                raise
            _log.info("the ledger's write was aborted: %s", error)
            self._drop_producer()
            return False
        for key, value in changes.items():
            self._reading.index.take(key.encode(), value)
        return True

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError):
                producer.close(timeout_ms=CLOSE_MS)


def _reading_of(known: KnownLedger | None, sink_id: str) -> LedgerReading:
    if known is None:
        return LedgerReading()
    index = LedgerIndex()
    driver = ""
    if known.view.record is not None:
        driver = known.view.record.driver
        index.take(sink_id.encode(), encode(known.view.record))
    for query_id, batch in known.view.finished.items():
        key = finished_key(sink_id, query_id)
        index.take(key.encode(), encode(SinkRecord(sink_id, driver, batch)))
    return LedgerReading(index, known.topic_id, known.read_to)


def _read_on(
    consumer: sync.Consumer,
    partition: TopicPartition,
    end_offset: int,
    limit_ms: float,
    index: LedgerIndex,
) -> int:
    """Read from the consumer's position to an end, into the index; where the reading has ended.

    Raises:
        LedgerBusy: nothing has come for so long.
        LedgerUnusable: the topic has lost records that it had.
    """
    limit = TimeLimit(limit_ms)
    read_to = consumer.position(partition)
    while True:
        position = consumer.position(partition)
        if position >= end_offset:
            return position
        if position > read_to:
            read_to = position
            limit.begin()
        if limit.is_over:
            raise LedgerBusy(
                f"ledger topic {partition.topic} cannot be read beyond offset {position} of "
                f"{end_offset}: for {limit_ms:.0f} ms nothing came. Another sink's transaction "
                "has been open there, or the partition's leader serves no fetches. Ledger "
                f"transactions end within {TRANSACTION_TIMEOUT_MS} ms by themselves; "
                "`kafka-transactions find-hanging` finds others"
            )
        try:
            polled = consumer.poll_arrow(timeout_ms=POLL_MS)
        except OffsetOutOfRange as error:
            raise _not_as_it_was(partition.topic, str(error)) from None
        if polled.num_rows:
            columns = [polled.column(name).to_pylist() for name in ("key", "value", "offset")]
            for key, value, log_offset in zip(*columns, strict=True):
                if key is not None:
                    index.take(key, value, log_offset)


def newest_record(options: SinkOptions, sink_id: str, known: KnownLedger) -> SinkRecord | None:
    """The sink's newest record, also one whose transaction has not ended or was aborted: its writer
    has taken the ledger. One client and four requests, for tasks. Raises as `LedgerStore.take`.
    """
    partition = TopicPartition(options.ledger_topic, 0)
    reading = _reading_of(known, sink_id)
    config = options.consumer_config(isolation_level="read_uncommitted", auto_offset_reset="none")
    with sync.Consumer(config=config) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, known.read_to)
        end_offset = consumer.end_offsets([partition])[partition]
        _read_on(consumer, partition, end_offset, admin_limit_ms(options), reading.index)
    return reading.index.record(sink_id)


def _not_as_it_was(topic: str, problem: str) -> LedgerUnusable:
    return LedgerUnusable(
        f"ledger topic {topic} has lost what was decided: {problem}. Compare the output with the "
        "source, and go on with a new sinkId"
    )


def admin_limit_ms(options: SinkOptions) -> float:
    """How long one call to the cluster may take, all tries together."""
    return float(options.admin_config().default_api_timeout_ms)
