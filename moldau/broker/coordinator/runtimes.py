"""How coordinators get their runtimes.

Owns what the runtimes of one broker share. Must not know the coordinators.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.broker.coordinator.core.result import CoordinatorState
from moldau.broker.coordinator.ports import CoordinatorPartition, RuntimePorts
from moldau.broker.coordinator.replica_partitions import ReplicaPartition
from moldau.broker.coordinator.runtime import CoordinatorRuntime

if TYPE_CHECKING:
    from moldau.broker.coordinator.settings import RuntimeSettings
    from moldau.broker.coordinator.shard import Execute
    from moldau.broker.replica.replica_manager import ReplicaManager
    from moldau.protocol.coordinator_records import CoordinatorLog
    from moldau.runtime.clock import Clock
    from moldau.runtime.telemetry.metrics import Registry
    from moldau.runtime.timers import TimerWheel

StateT = TypeVar("StateT", bound=CoordinatorState)


class CoordinatorRuntimes:
    """Makes runtimes on the given ports."""

    __slots__ = ("ports",)

    def __init__(self, ports: RuntimePorts) -> None:
        self.ports = ports

    @classmethod
    def on_replicas(
        cls,
        replica_manager: ReplicaManager,
        *,
        timers: TimerWheel,
        clock: Clock,
        registry: Registry,
        start: Callable[[Coroutine[Any, Any, None]], object],
    ) -> CoordinatorRuntimes:
        """On the partitions of a broker.

        Args:
            start: runs a coroutine whose failure is told to the node.
        """

        def partition(topic: str, partition_index: int) -> CoordinatorPartition | None:
            found = replica_manager.get(topic, partition_index)
            return None if found is None else ReplicaPartition(replica_manager, found)

        return cls(
            RuntimePorts(
                broker_id=replica_manager.broker_id,
                clock=clock,
                timers=timers,
                registry=registry,
                partition=partition,
                soon=lambda function: asyncio.get_running_loop().call_soon(function),
                start=start,
            )
        )

    def make(
        self,
        log: CoordinatorLog,
        make_state: Callable[[int], StateT],
        *,
        execute: Execute,
        settings: RuntimeSettings,
    ) -> CoordinatorRuntime[StateT]:
        """A runtime for the topic of `log`."""
        return CoordinatorRuntime(
            log, make_state, execute=execute, settings=settings, ports=self.ports
        )
