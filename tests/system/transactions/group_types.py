"""Which protocol each group has, as coordinators list it, looked at every now and then.

Owns the counting. Must not: judge. Invariant: a change is counted when it was seen; one that was
undone between two looks was not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.kit.servers import connecting
from tests.system.transactions.clients import Setting

LOOK_S: Final = 0.5
ANSWER_S: Final = 5.0


class GroupTypes:
    """A thread that lists the groups; `changes` is what it has seen, by direction."""

    def __init__(self, setting: Setting, groups: Sequence[str]) -> None:
        self.changes: Counter[str] = Counter()
        self._setting = setting
        self._groups = set(groups)
        self._types: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=setting.run, args=(self._work,), name="types")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def finish(self) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        admin = AdminClient({**connecting(self._setting.bootstrap), "log_level": 0})
        while not self._stop.wait(LOOK_S):
            try:
                listed = admin.list_consumer_groups(request_timeout=ANSWER_S).result(2 * ANSWER_S)
            except (KafkaException, TimeoutError):
                continue
            for each in listed.valid:
                self._see(each.group_id, each.type.name.lower())

    def _see(self, group: str, kind: str) -> None:
        if group not in self._groups:
            return
        before = self._types.get(group, kind)
        self._types[group] = kind
        if before != kind:
            self.changes[f"{before} to {kind}"] += 1
