"""What a consumer consists of, put together from its settings, and taken apart again.

Owns the wiring and the order of closing. Must not contain rules of its own. Invariant: after
`close` no task, connection or fetch session of the consumer is left.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final

from moldau.client.cluster.cluster_client import ClientPorts, ClusterClient
from moldau.client.config.consumer import BY_DURATION, ConsumerConfig, duration_ms
from moldau.client.consumer.coordinator import GroupCoordinator
from moldau.client.consumer.core.chunks import Deserialize, ReadOptions
from moldau.client.consumer.core.faults import RecordDeserializationError
from moldau.client.consumer.core.fetch_buffer import FetchBuffer
from moldau.client.consumer.core.offset_reset import OffsetReset, ResetKind
from moldau.client.consumer.core.partition_records import PartitionRecords
from moldau.client.consumer.core.subscription_state import SubscriptionState
from moldau.client.consumer.epoch_ends import EpochEnds
from moldau.client.consumer.fetch_responses import FetchResponses
from moldau.client.consumer.fetcher import Fetcher, FetchSettings
from moldau.client.consumer.list_offsets import OffsetLookup
from moldau.client.consumer.positions import Positions
from moldau.client.consumer.rebalance_listener import RebalanceListener
from moldau.client.consumer.signal import Signal
from moldau.client.errors import KafkaError, NoBrokerAvailable, error_for
from moldau.client.records import ConsumerRecord
from moldau.client.serialization import DeserializerLike, deserialize_function
from moldau.protocol.errors import ErrorCode
from moldau.runtime.clock import Clock, SystemClock

_log: Final = logging.getLogger(__name__)

REFUSED_TOPIC: Final = frozenset(
    (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION)
)
"""Answers about a topic that no waiting helps against: the next poll raises them."""

SESSION_END_MS: Final = 1_000.0
"""How long closing waits for brokers to forget the fetch sessions: they age by themselves."""


class ConsumerParts:
    """The parts, wired. `settled` is set when positions have been found out; `is_closed` when
    the group has been left: its listeners may still call the consumer before that.
    """

    def __init__(
        self,
        config: ConsumerConfig,
        options: ReadOptions,
        ports: ClientPorts,
        on_attention: Callable[[], None],
    ) -> None:
        self.clock: Clock = ports.clock or SystemClock()
        source = ports.source or random.Random()
        self.client: ClusterClient = ClusterClient(
            config,
            network=ports.network,
            clock=self.clock,
            source=source,
            allow_auto_topic_creation=config.allow_auto_create_topics,
        )
        self.read_committed: bool = options.read_committed
        self.signal: Signal = Signal(self.clock)
        self.settled: Signal = Signal(self.clock)
        self.buffer: FetchBuffer = FetchBuffer(config.fetch_buffer_bytes)
        self._on_attention = on_attention
        self._config = config
        self.is_closed: bool = False
        self._unreached_since_ms: float | None = None
        memory = self.buffer.memory
        self.subscription: SubscriptionState[RebalanceListener] = SubscriptionState(
            offset_reset(config.auto_offset_reset),
            lambda name: PartitionRecords(name, options, memory),
        )
        self.lookup: OffsetLookup = OffsetLookup(self.client, read_committed=options.read_committed)
        self.group: GroupCoordinator | None = None
        if config.group_id is not None:
            self.group = GroupCoordinator(
                self.client, config, self.subscription, clock=self.clock, source=source
            )
            self.group.on_attention(on_attention)
            self.group.set_progress(self.buffer.progress)
        self.positions: Positions = Positions(
            self.client,
            self.subscription,
            self.lookup,
            EpochEnds(self.client),
            self.group,
            self.clock,
            retry_backoff_ms=config.retry_backoff_ms,
            on_news=self._positions_found,
        )
        responses = FetchResponses(
            self.subscription,
            self.buffer,
            read_committed=options.read_committed,
            retry_backoff_ms=config.retry_backoff_ms,
            preferred_lease_ms=config.metadata_max_age_ms,
        )
        self.fetcher: Fetcher = Fetcher(
            self.client,
            self.subscription,
            self.buffer,
            responses,
            fetch_settings(config),
            self.clock,
            self.signal.set,
        )
        self.client.on_update(self._metadata_updated)
        self.subscription.on_change = self._assignment_changed

    def want_topics(self) -> None:
        """Have the metadata of everything that is read, and nothing else, kept fresh."""
        subscription = self.subscription
        if subscription.pattern is not None and self._config.group_protocol == "classic":
            return
        assigned = {name.topic for name in subscription.assignment()}
        self.client.want(subscription.topics | assigned)

    def raise_refusal(self, now_ms: float) -> float | None:
        """Raise what no waiting helps against, or what was waited for too long.

        Returns how long a poll may wait until it has to ask again; None for as long as it likes.

        Raises:
            NoBrokerAvailable: the cluster was not reached within `default.api.timeout.ms` of the
                first poll.
            KafkaError: what the cluster has against this client, or against a topic.
        """
        if self.fetcher.refusal is not None:
            refusal, self.fetcher.refusal = self.fetcher.refusal, None
            raise refusal
        metadata = self.client.metadata
        for topic, code in metadata.topic_errors.items():
            if code in REFUSED_TOPIC and topic in self._topics():
                self.client.request_update()
                raise error_for(code, None, f"topic {topic}")
        if metadata.brokers:
            self._unreached_since_ms = None
            return None
        limit_ms = self._config.default_api_timeout_ms
        if self._unreached_since_ms is None:
            self._unreached_since_ms = now_ms
        left_ms = self._unreached_since_ms + limit_ms - now_ms
        if left_ms > 0:
            return left_ms
        self._unreached_since_ms = None
        raise NoBrokerAvailable(
            f"no broker of {', '.join(self._config.addresses)} was reached within {limit_ms} ms: "
            "see whether bootstrap.servers is right and the brokers run"
        )

    def _topics(self) -> set[str]:
        assigned = {name.topic for name in self.subscription.assignment()}
        return self.subscription.subscription() | assigned

    async def close(self, timeout_ms: float, *, commits: bool) -> None:
        """Leave the group, end the fetch sessions, close the connections, in this order.

        Args:
            commits: whether `enable.auto.commit` commits once more.
        """
        deadline_ms = self.clock.monotonic_ms() + timeout_ms
        failure: BaseException | None = None
        try:
            if self.group is not None:
                await self.group.close(deadline_ms, commits=commits)
        except KafkaError as error:
            failure = error
        finally:
            self.is_closed = True
            left_ms = max(deadline_ms - self.clock.monotonic_ms(), 0.0)
            try:
                await self.fetcher.end_sessions(min(left_ms, SESSION_END_MS))
            finally:
                await self.client.close()
                await self.fetcher.join()
                await self.positions.close()
                self.subscription.assign_from_group([])
                self.signal.set()
                self.settled.set()
        if failure is not None:
            raise failure

    def _positions_found(self) -> None:
        self.settled.set()
        self.fetcher.look()
        self.signal.set()

    def _assignment_changed(self) -> None:
        if not self.is_closed:
            self.want_topics()
            self.positions.leaders_changed()
            self.fetcher.changed()
            self._on_attention()

    def _metadata_updated(self) -> None:
        self.positions.leaders_changed()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        self.fetcher.look()
        # A topic that is refused, a position to be validated: the next poll has to look.
        if self.subscription.unsettled.any or self.client.metadata.topic_errors:
            self._on_attention()


def build(
    config: ConsumerConfig,
    key_deserializer: DeserializerLike | None,
    value_deserializer: DeserializerLike | None,
    ports: ClientPorts,
    on_attention: Callable[[], None],
) -> ConsumerParts:
    """The parts for these settings. Connects to nothing."""
    options = ReadOptions(
        check_crcs=config.check_crcs,
        read_committed=config.isolation_level == "read_committed",
        deserialize=_deserialize(key_deserializer, value_deserializer),
    )
    return ConsumerParts(config, options, ports, on_attention)


def offset_reset(text: str) -> OffsetReset:
    """The strategy that `auto.offset.reset` names."""
    if text.startswith(BY_DURATION):
        duration = duration_ms(text.removeprefix(BY_DURATION))
        assert duration is not None, "the settings are checked"
        return OffsetReset(ResetKind.BY_DURATION, duration)
    return OffsetReset(ResetKind(text))


def fetch_settings(config: ConsumerConfig) -> FetchSettings:
    """The keys that fetches are made of."""
    return FetchSettings(
        min_bytes=config.fetch_min_bytes,
        max_bytes=config.fetch_max_bytes,
        max_wait_ms=config.fetch_max_wait_ms,
        max_partition_bytes=config.max_partition_fetch_bytes,
        read_committed=config.isolation_level == "read_committed",
        rack_id=config.client_rack,
        request_timeout_ms=config.request_timeout_ms,
        retry_backoff_ms=config.retry_backoff_ms,
        retry_backoff_max_ms=config.retry_backoff_max_ms,
    )


def _deserialize(
    key_deserializer: DeserializerLike | None, value_deserializer: DeserializerLike | None
) -> Deserialize | None:
    key_of = deserialize_function(key_deserializer)
    value_of = deserialize_function(value_deserializer)
    if key_of is None and value_of is None:
        return None

    def deserialize(record: ConsumerRecord) -> None:
        part = "key"
        try:
            key = record.key
            if key_of is not None and key is not None:
                key = key_of(record.topic, key)
            part = "value"
            if value_of is not None and record.value is not None:
                record.value = value_of(record.topic, record.value)
            record.key = key
        except Exception as error:
            raise RecordDeserializationError(record, part, error) from error

    return deserialize
