"""A transaction coordinator that says what a test scripts."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from moldau.broker.coordinator.core.result import Producer
from moldau.protocol.errors import ErrorCode
from moldau.protocol.types import TopicPartition
from tests.unit.broker.harness import BROKER_ID, DataPath


class Asked(NamedTuple):
    """One question, and the way to answer it."""

    transactional_id: str
    producer: Producer
    partitions: list[TopicPartition]
    verify_only: bool
    done: Callable[[dict[TopicPartition, ErrorCode]], None]

    def answer(self, error: ErrorCode = ErrorCode.NONE) -> None:
        self.done(dict.fromkeys(self.partitions, error))


class ScriptedCoordinator:
    """Takes the place of the coordinator that the verifier asks.

    With `reply` None a question waits in `open` until the test answers it; a list is used up,
    its last entry stays.
    """

    def __init__(self) -> None:
        self.leader: int | None = BROKER_ID
        self.reply: ErrorCode | list[ErrorCode] | None = ErrorCode.NONE
        self.asked: list[Asked] = []
        self.open: list[Asked] = []

    def leader_of(self, transactional_id: str) -> int | None:
        del transactional_id
        return self.leader

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        verify_only: bool,
        done: Callable[[dict[TopicPartition, ErrorCode]], None],
    ) -> None:
        asked = Asked(transactional_id, producer, list(partitions), verify_only, done)
        self.asked.append(asked)
        if self.reply is None:
            self.open.append(asked)
        elif isinstance(self.reply, list):
            asked.answer(self.reply.pop(0) if len(self.reply) > 1 else self.reply[0])
        else:
            asked.answer(self.reply)


def script(broker: DataPath) -> ScriptedCoordinator:
    """Have the verifier of a data path ask a scripted coordinator."""
    coordinator = ScriptedCoordinator()
    verifier: Any = broker.coordinators.verifier
    verifier._coordinator = coordinator
    return coordinator
