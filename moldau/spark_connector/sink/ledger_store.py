"""The ledger topic: taken, read to its end, and written in the ledger's own transaction.

Owns the topic's making and checking, one transactional producer at a time, and how far the topic
was read. Must not decide what is written. Invariants: what is read holds everything that was
committed before the taking, and nothing that was not; a write counts only when its transaction was
committed under the epoch of the last taking.

Several sinks share the topic. A transaction that another sink's dead driver has left open holds
back what `read_committed` shows, so that one's own newest record may be hidden: reading goes to the
end that was there at the taking and waits for it, and ledger transactions time out soon.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow.compute as pc

from moldau.client import (
    AuthorizationFailed,
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
from moldau.spark_connector.core.commit_steps import LedgerView, WriteLedger
from moldau.spark_connector.core.ledger import (
    Batch,
    LedgerUnreadable,
    SinkRecord,
    decode,
    encode,
    finished_key,
)
from moldau.spark_connector.errors import LedgerBusy, LedgerUnusable
from moldau.spark_connector.options.sink_options import SinkOptions

_log: Final = logging.getLogger("moldau.spark_connector.sink")

TRANSACTION_TIMEOUT_MS: Final = 10_000
"""A dead driver's ledger transaction holds back other sinks' for so long at most."""
CLOSE_MS: Final = 1_000
SPREAD_MS: Final = 10_000
"""How long a broker may not have heard of a topic that others know."""
SPREAD_PAUSE_S: Final = 0.1
POLL_MS: Final = 200
MAX_VALUE_BYTES: Final = 8 * 1024 * 1024
MAX_FINISHED: Final = 1_000
"""So many other queries of one sink are remembered in memory, the newest."""
NAMED_PREFIX: Final = "txn:"

TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact",
    "max.message.bytes": str(MAX_VALUE_BYTES),
    # Compaction leaves the segment that is written alone: small ones keep the topic short.
    "segment.bytes": str(16 * 1024 * 1024),
}


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """What a ledger said when it was read.

    Attributes:
        read_to: behind the last offset that was read of the topic of that id.
    """

    view: LedgerView
    topic_id: uuid.UUID
    read_to: int


class LedgerStore:
    """The ledger of one sink; `close` it.

    Args:
        query_id: of a batch write: of the other queries only this one is of interest. None: all
            streaming queries are.
        known: what is known already, and of which state of the topic; nothing by default.
    """

    def __init__(
        self,
        options: SinkOptions,
        sink_id: str,
        admin: sync.Admin,
        *,
        query_id: str | None = None,
        known: KnownLedger | None = None,
    ) -> None:
        self._options = options
        self._sink_id = sink_id
        self._query_id = query_id
        self._admin = admin
        self._partition = TopicPartition(options.ledger_topic, 0)
        self._limit_ms = admin_limit_ms(options)
        self._record = known.view.record if known is not None else None
        self._finished: dict[str, Batch] = dict(known.view.finished) if known is not None else {}
        self._topic_id: uuid.UUID | None = known.topic_id if known is not None else None
        self._read_to: int | None = known.read_to if known is not None else None
        self._producer: sync.Producer | None = None

    def close(self) -> None:
        """Give up the taking; a transaction that is open is aborted."""
        self._drop_producer()

    def known(self, record: SinkRecord) -> KnownLedger:
        """What has been read, with the sink's record as it was written since."""
        assert self._topic_id is not None, "taken"
        assert self._read_to is not None
        return KnownLedger(LedgerView(record, dict(self._finished)), self._topic_id, self._read_to)

    # -- the topic -------------------------------------------------------------------------------

    def prepare_topic(self) -> None:
        """Make the topic where there is none; refuse one that cannot keep a ledger.

        Raises:
            LedgerUnusable: several partitions, or records that do not stay.
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
        """The topic, which is there: the controller may know it before each of the brokers does.

        Raises:
            LedgerUnusable: it is not.
        """
        name = self._partition.topic
        deadline_s = time.monotonic() + min(self._limit_ms, SPREAD_MS) / 1000
        while True:
            try:
                return self._admin.describe_topics([name])[name]
            except UnknownTopicOrPartition:
                if time.monotonic() >= deadline_s:
                    raise _not_as_it_was(name, "it is gone") from None
                time.sleep(SPREAD_PAUSE_S)

    # -- reading ---------------------------------------------------------------------------------

    def take(self, *, is_fencing: bool) -> LedgerView:
        """Shut out other writers, then read what is new.

        Raises:
            LedgerBusy: another sink's transaction hides the end for too long.
            LedgerUnusable: a record that cannot be understood; or the topic is not what it was.
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
        self._read()
        return LedgerView(self._record, dict(self._finished))

    def _read(self) -> None:
        name = self._partition.topic
        topic_id = self._described().topic_id
        if self._topic_id not in (None, topic_id):
            raise _not_as_it_was(name, "it was made anew")
        self._topic_id = topic_id
        end = self._admin.list_offsets({self._partition: OffsetSpec.LATEST})
        end_offset = end[self._partition].offset
        if self._read_to is not None and self._read_to > end_offset:
            raise _not_as_it_was(
                name, f"it ends at {end_offset}, and was read to {self._read_to} before"
            )
        if self._read_to == end_offset:
            return
        with sync.Consumer(
            config=self._options.consumer_config(
                isolation_level="read_committed",
                auto_offset_reset="none" if self._read_to is not None else "earliest",
            )
        ) as consumer:
            consumer.assign([self._partition])
            if self._read_to is None:
                consumer.seek_to_beginning(self._partition)
            else:
                consumer.seek(self._partition, self._read_to)
            self._read_on(consumer, end_offset)

    def _read_on(self, consumer: sync.Consumer, end_offset: int) -> None:
        deadline_s = time.monotonic() + self._limit_ms / 1000
        read_to = consumer.position(self._partition)
        while True:
            position = consumer.position(self._partition)
            if position >= end_offset:
                self._read_to = position
                return
            if position > read_to:
                read_to = position
                deadline_s = time.monotonic() + self._limit_ms / 1000
            left_ms = (deadline_s - time.monotonic()) * 1000
            if left_ms <= 0:
                raise LedgerBusy(
                    f"ledger topic {self._partition.topic} cannot be read beyond offset {position} "
                    f"of {end_offset}: for {self._limit_ms:.0f} ms nothing came. Somebody's "
                    "transaction has been open there, or the partition's leader serves no "
                    f"fetches. Ledger transactions end within {TRANSACTION_TIMEOUT_MS} ms by "
                    "themselves; `kafka-transactions find-hanging` finds others"
                )
            try:
                polled = consumer.poll_arrow(timeout_ms=min(left_ms, POLL_MS))
            except OffsetOutOfRange as error:
                raise _not_as_it_was(self._partition.topic, str(error)) from None
            if polled.num_rows:
                self._take_rows(polled)

    def _take_rows(self, rows: Any) -> None:
        """Of the records of all sinks those of this one; of its own key only the last counts."""
        keys = rows.column("key")
        own = pc.indices_nonzero(pc.equal(keys, self._sink_id.encode())).to_pylist()
        if own:
            self._record = self._decoded(rows, own[-1])
        prefix = finished_key(self._sink_id, self._query_id or "").encode()
        if self._query_id is not None:
            others = pc.equal(keys, prefix)
        else:
            others = pc.starts_with(keys, prefix)
        for row in pc.indices_nonzero(others).to_pylist():
            found = self._decoded(rows, row)
            if found is not None and found.batch is not None:
                self._remember(found.batch)

    def _remember(self, batch: Batch) -> None:
        """Streams need the other streams; a batch write is only asked for its own name."""
        if self._query_id is None and batch.query_id.startswith(NAMED_PREFIX):
            return
        self._finished.pop(batch.query_id, None)
        self._finished[batch.query_id] = batch
        while len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]

    def _decoded(self, rows: Any, row: int) -> SinkRecord | None:
        value = rows.column("value")[row].as_py()
        if value is None:
            return None
        try:
            return decode(value)
        except LedgerUnreadable as error:
            raise LedgerUnusable(
                f"ledger topic {self._partition.topic}, offset {rows.column('offset')[row]}, sink "
                f"{self._sink_id!r}: {error}. A newer release of moldau has written it, or "
                "something else has: install that release, or name another topic with ledgerTopic "
                "and a new sinkId"
            ) from None

    # -- writing ---------------------------------------------------------------------------------

    def write(self, step: WriteLedger) -> bool:
        """Whether the record is committed; False when it is not, or nobody knows.

        Raises:
            KafkaError: what no other attempt helps against.
        """
        producer = self._producer
        if producer is None:
            return False
        topic = self._partition.topic
        try:
            producer.begin_transaction()
            if step.finished is not None:
                producer.send_nowait(
                    topic,
                    encode(SinkRecord(self._sink_id, step.record.driver, step.finished)),
                    key=finished_key(self._sink_id, step.finished.query_id).encode(),
                    partition=0,
                )
            producer.send_nowait(
                topic,
                None if step.is_tombstone else encode(step.record),
                key=self._sink_id.encode(),
                partition=0,
            )
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
        if step.finished is not None:
            self._remember(step.finished)
        self._record = None if step.is_tombstone else step.record
        return True

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError):
                producer.close(timeout_ms=CLOSE_MS)


def _not_as_it_was(topic: str, problem: str) -> LedgerUnusable:
    return LedgerUnusable(
        f"ledger topic {topic} has lost what was decided: {problem}. Compare the output with the "
        "source, and go on with a new sinkId"
    )


def admin_limit_ms(options: SinkOptions) -> float:
    """How long one call to the cluster may take, all tries together."""
    return float(options.admin_config().default_api_timeout_ms)
