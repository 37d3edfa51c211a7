"""The topics that coordinators keep their state in: made when somebody first needs one.

Owns their settings, and at most one creation of each at a time. Must not wait for them: whoever
needs one is told to ask again, as by Apache Kafka. Invariant: they are made with the settings below
whoever causes it, and never with those of ordinary topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final

from moldau.broker.lifecycle.controller_channel import ControllerChannel, ControllerUnavailable
from moldau.protocol.coordinator_records import CONSUMER_OFFSETS, TRANSACTION_STATE
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)

if TYPE_CHECKING:
    from moldau.runtime.clock import Clock

logger = logging.getLogger("moldau.broker.coordinator")

CREATE_TIMEOUT_MS: Final = 30_000
RETRY_AFTER_MS: Final = 500
"""The pause after a refusal: clients ask several times a second, and nothing changes so fast."""
SAY_AGAIN_AFTER_MS: Final = 60_000
BROKER_PRINCIPAL: Final = "User:ANONYMOUS"


def creatable_topic(values: Mapping[str, Any], topic: str) -> CreatableTopic | None:
    """How an internal topic is made; None for a topic that is none of the coordinators'.

    Args:
        values: the node's configuration.
    """
    if topic == CONSUMER_OFFSETS.topic:
        return _topic(
            topic,
            values["offsets.topic.num.partitions"],
            values["offsets.topic.replication.factor"],
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": values["offsets.topic.segment.bytes"],
            },
        )
    if topic == TRANSACTION_STATE.topic:
        return _topic(
            topic,
            values["transaction.state.log.num.partitions"],
            values["transaction.state.log.replication.factor"],
            {
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "min.insync.replicas": values["transaction.state.log.min.isr"],
                "segment.bytes": values["transaction.state.log.segment.bytes"],
                "unclean.leader.election.enable": "false",
            },
        )
    return None


def _topic(
    name: str, partition_count: int, replication_factor: int, configs: dict[str, Any]
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partition_count,
        replication_factor=replication_factor,
        configs=[
            CreatableTopicConfig(name=key, value=str(value)) for key, value in configs.items()
        ],
    )


class InternalTopics:
    """Creates them through the controller.

    Args:
        start: runs the creation.
    """

    __slots__ = (
        "_clock",
        "_controller",
        "_not_before_ms",
        "_said",
        "_start",
        "_under_way",
        "_values",
    )

    def __init__(
        self,
        values: Mapping[str, Any],
        controller: ControllerChannel,
        *,
        clock: Clock,
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._values = values
        self._controller = controller
        self._clock = clock
        self._start = start
        self._under_way: set[str] = set()
        self._not_before_ms: dict[str, float] = {}
        self._said: dict[str, tuple[str, float]] = {}

    def ensure(self, topic: str) -> None:
        """Begin to create an internal topic that the image does not have, unless it is on its way
        or was refused just now.
        """
        now_ms = self._clock.monotonic_ms()
        if topic in self._under_way or now_ms < self._not_before_ms.get(topic, now_ms):
            return
        creatable = creatable_topic(self._values, topic)
        assert creatable is not None, topic
        self._under_way.add(topic)
        self._start(self._create(creatable))

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
            logger.info(
                "%s: created with %d partitions, %d replicas each",
                topic,
                creatable.num_partitions,
                creatable.replication_factor,
            )
        elif error is not ErrorCode.TOPIC_ALREADY_EXISTS:
            self._say(topic, f"{error.name}: {why}")

    def _say(self, topic: str, problem: str) -> None:
        """Once for each reason, and again now and then: clients cause it several times a second."""
        now_ms = self._clock.monotonic_ms()
        said, said_ms = self._said.get(topic, ("", 0.0))
        if problem != said or now_ms - said_ms >= SAY_AGAIN_AFTER_MS:
            self._said[topic] = (problem, now_ms)
            logger.warning("%s cannot be created: %s", topic, problem)
