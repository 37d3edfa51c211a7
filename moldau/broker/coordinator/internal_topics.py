"""The topics that coordinators keep their state in: created when a request first needs one.

Owns their settings (`offsets.topic.*`, `transaction.state.log.*`), and at most one creation of each
at a time. Must not wait for them: the client gets an error to try again, as by Apache Kafka.
Invariant: they are always created with the settings below, never with those of ordinary topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from moldau.broker.lifecycle.controller_channel import ControllerChannel, ControllerUnavailable
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

if TYPE_CHECKING:
    from moldau.config import NodeConfig
    from moldau.runtime.clock import Clock

logger = logging.getLogger(__name__)

CREATE_TIMEOUT_MS: Final = 30_000
RETRY_AFTER_MS: Final = 500
"""The pause after a refusal: clients try several times a second."""
BROKER_PRINCIPAL: Final = "User:ANONYMOUS"


_TOPICS: Final = {
    CONSUMER_OFFSETS.topic: (
        "offsets.topic.num.partitions",
        "offsets.topic.replication.factor",
        {"cleanup.policy": "compact", "compression.type": "producer"},
        {"segment.bytes": "offsets.topic.segment.bytes"},
    ),
    TRANSACTION_STATE.topic: (
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
        },
        {
            "min.insync.replicas": "transaction.state.log.min.isr",
            "segment.bytes": "transaction.state.log.segment.bytes",
        },
    ),
}
"""Keys of the partition count and the replication factor, fixed settings, and settings by key."""


def creatable_topic(values: NodeConfig, topic: str) -> CreatableTopic | None:
    """The request to create an internal topic; None for any other topic.

    Args:
        values: the node's configuration.
    """
    if topic not in _TOPICS:
        return None
    count_key, factor_key, fixed, configured = _TOPICS[topic]
    configs = fixed | {name: str(values[key]) for name, key in configured.items()}
    return CreatableTopic(
        name=topic,
        num_partitions=values[count_key],
        replication_factor=values[factor_key],
        configs=[CreatableTopicConfig(name=name, value=configs[name]) for name in sorted(configs)],
    )


@dataclass(slots=True, eq=False)
class InternalTopics:
    """Creates them through the controller; `_start` runs the creation."""

    _values: NodeConfig
    _controller: ControllerChannel
    _clock: Clock
    _start: Callable[[Coroutine[object, object, None]], object]
    _under_way: set[str] = field(default_factory=set)
    _not_before_ms: dict[str, float] = field(default_factory=dict)
    _problems: dict[str, str] = field(default_factory=dict)

    def ensure(self, topic: str) -> None:
        """Begin to create a missing topic, unless that is under way or was refused just now."""
        now_ms = self._clock.monotonic_ms()
        if topic in self._under_way or now_ms < self._not_before_ms.get(topic, now_ms):
            return
        creatable = creatable_topic(self._values, topic)
        assert creatable is not None, topic
        self._under_way.add(topic)
        self._start(self._create(creatable))

    def problem(self, topic: str) -> str:
        """Why a missing topic is not there yet."""
        problem = self._problems.get(topic)
        return f"{topic} cannot be created: {problem}" if problem else f"{topic} is being created"

    async def _create(self, creatable: CreatableTopic) -> None:
        topic = creatable.name
        request = CreateTopicsRequest(topics=[creatable], timeout_ms=CREATE_TIMEOUT_MS)
        try:
            response = await self._controller.send(
                request, BROKER_PRINCIPAL, timeout_ms=CREATE_TIMEOUT_MS
            )
            result = response.topics[0]
            error, why = ErrorCode.of(result.error_code), result.error_message
        except ControllerUnavailable as problem:
            error, why = problem.error, str(problem)
        finally:
            self._under_way.discard(topic)
            self._not_before_ms[topic] = self._clock.monotonic_ms() + RETRY_AFTER_MS
        if error is ErrorCode.NONE:
            self._problems.pop(topic, None)
            logger.debug(
                "%s: created with %d partitions, %d replicas each",
                topic,
                creatable.num_partitions,
                creatable.replication_factor,
            )
        elif error is not ErrorCode.TOPIC_ALREADY_EXISTS:
            reason = f"{error.name}: {why}"
            if error is ErrorCode.INVALID_REPLICATION_FACTOR:
                reason += f" ({_TOPICS[topic][1]}={creatable.replication_factor})"
            self._problems[topic] = reason
            logger.warning("%s cannot be created: %s", topic, reason)
