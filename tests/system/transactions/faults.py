"""Faults aimed at coordinators, and leaders and replicas that move while everything else goes on.

Owns who is hit, and the third lane of "everything at once". Must not: break more than one broker at
a time (see nemesis.py). Invariant: the mover has at most one reassignment under way, and waits for
its end before the next one.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from moldau.client import Admin, ElectionType, KafkaError
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.types import TopicPartition
from tests.kit.servers import plain_of
from tests.kit.waiting import until_async
from tests.system.replication.chaos_cluster import BROKER_IDS, ChaosCluster
from tests.system.replication.nemesis import Nemesis, Step
from tests.system.transactions.clients import Setting

FIND_COORDINATOR_VERSION: Final = 4
GROUP_KEY, TRANSACTION_KEY = 0, 1
ANSWER_S: Final = 3.0
MOVE_DEADLINE_S: Final = 90.0
PAUSE_S: Final = (2.0, 7.0)


class TransactionNemesis(Nemesis):
    """Every second fault of a broker hits one that coordinates something.

    Args:
        keys: transactional ids and groups: (0 or 1, name).
    """

    def __init__(
        self, cluster: ChaosCluster, seed: int, keys: Sequence[tuple[int, str]], **options: Any
    ) -> None:
        # Every directory of a partition, but for the metadata's own.
        super().__init__(cluster, seed, "*[!a]", **options)
        self._chaos = cluster
        self._keys = list(keys)
        self._aim = random.Random(f"{seed}-aim")
        self._unsettled: int | None = None
        self.aimed_count = 0

    def _victim_of(self, step: Step) -> int:
        if step.active or step.victim not in self._chaos.broker_ids:
            return super()._victim_of(step)
        victim = self._unsettled
        if victim is None:
            victim = step.victim
            if step.number % 2 == 0:
                victim = self._coordinator() or victim
        self._unsettled = None if step.settles else victim
        return victim

    def _coordinator(self) -> int | None:
        kind, key = self._aim.choice(self._keys)
        request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
        for asked in self._chaos.broker_ids:
            try:
                with self._chaos.wire(asked) as wire:
                    wire.socket.settimeout(ANSWER_S)
                    [found] = wire.ask(request, FIND_COORDINATOR_VERSION).coordinators
            except OSError:
                continue
            if found.error_code == ErrorCode.NONE:
                self.aimed_count += 1
                return int(found.node_id)
        return None


class Mover:
    """Gives partitions, those of coordinators among them, other replicas and other leaders."""

    def __init__(
        self,
        setting: Setting,
        partitions: Sequence[TopicPartition],
        broker_ids: Sequence[int],
        say: Callable[[str], None],
    ) -> None:
        self.done: Counter[str] = Counter()
        self.complaints: list[str] = []
        self._setting = setting
        self._partitions = list(partitions)
        self._broker_ids = list(broker_ids)
        self._say = say
        self._dice = random.Random(f"{setting.seed}-mover")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=setting.run, args=(self._work,), name="mover")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """Move nothing more; returns when nothing is on its way."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(self._dice.uniform(*PAUSE_S)):
            try:
                asyncio.run(self._step())
            except (KafkaError, OSError) as error:
                self.done[type(error).__name__] += 1

    async def _step(self) -> None:
        async with Admin(plain_of(self._setting.bootstrap), request_timeout_ms=5_000) as admin:
            count = self._dice.randint(1, 4)
            chosen = self._dice.sample(self._partitions, min(count, len(self._partitions)))
            if self._dice.random() < 0.3:
                await admin.elect_leaders(ElectionType.PREFERRED, chosen)
                self.done["elections"] += 1
                return
            plan = {each: self._dice.sample(self._broker_ids, len(BROKER_IDS)) for each in chosen}
            await admin.alter_partition_reassignments(plan)
            self.done["reassignments"] += len(plan)
            self._say(f"moved: {', '.join(f'{each} to {to}' for each, to in plan.items())}")

            async def is_done() -> bool:
                try:
                    return not await admin.list_partition_reassignments()
                except (KafkaError, OSError):
                    return False  # another broker can be asked next time

            try:
                await until_async(is_done, what=f"{plan}", deadline_s=MOVE_DEADLINE_S)
            except TimeoutError as error:
                self.complaints.append(str(error))
