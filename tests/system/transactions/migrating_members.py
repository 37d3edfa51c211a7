"""Members of groups that change between the classic protocol and KIP-848, life after life.

Owns: what the next life is like, and how it ends. Must not: judge. Invariant: a member changes its
protocol only after a life in which its group has given it partitions, so that each change counted
is one of the group, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tests.system.transactions.clients import Pipeline
from tests.system.transactions.consumers import RecordingConsumer, member_config
from tests.system.transactions.history import Transaction
from tests.system.transactions.mortal_consumer import MortalConsumer
from tests.system.transactions.senders import Broken, Sender

OTHER: Final = {"classic": "consumer", "consumer": "classic"}
TO_CONSUMER, TO_CLASSIC = "classic to consumer", "consumer to classic"
DIRECTIONS: Final = (TO_CONSUMER, TO_CLASSIC)
#: How a life ends, and how often of all.
ENDS: Final = {"closed": 3, "killed": 1, "killed in a transaction": 1}
#: How likely each transaction is the last of a member that is killed in one.
LAST_SHARE: Final = 0.1
#: How often a dynamic member comes back as a static one, and the other way round.
CHANGE_OF_KIND_SHARE: Final = 0.3
#: The longest time between two lives: less or more than the others need to rebalance.
AWAY_S: Final = 2.0


class MigratingMember(Pipeline):
    """Closes, or is killed, and comes back with the other protocol under the same group id.

    Args:
        protocol: of its first life.
        assignors: it takes one of them in each classic life.
    """

    life_span = (5, 40)

    def __init__(self, *arguments: Any, assignors: Sequence[str], **options: Any) -> None:
        super().__init__(*arguments, assignor=assignors[0], **options)
        assert self._protocol is not None, "it is in a group"
        self.migrations: Counter[str] = Counter()
        self._assignors = list(assignors)
        self._before: str | None = None
        self._is_static = False
        self._end = "closed"

    def live(self) -> None:
        [self._end] = self.dice.choices(list(ENDS), list(ENDS.values()))
        self._assignor = self.dice.choice(self._assignors)
        super().live()
        self.setting.stop.wait(self.dice.uniform(0, AWAY_S))

    def config(self) -> dict[str, Any]:
        assert self._protocol is not None, "it is in a group"
        return member_config(
            self.setting.bootstrap,
            self.group,
            self._protocol,
            assignor=self._assignor,
            instance_id=self.name if self._is_static else None,
        )

    def reader(self, name: str) -> RecordingConsumer:
        if self._end == "closed":
            return super().reader(name)
        # Only a process can be killed.
        return RecordingConsumer(self.config(), name, self.history, make_consumer=MortalConsumer)

    def fill(self, transaction: Transaction, sender: Sender) -> bool:
        is_filled = super().fill(transaction, sender)
        is_to_die = self._end == "killed in a transaction" and not self.setting.is_calm.is_set()
        if is_filled and is_to_die and self.dice.random() < LAST_SHARE:
            raise Broken("killed in a transaction")
        return is_filled

    def end(self, reader: RecordingConsumer) -> None:
        if reader.has_been_given:
            self._count()
            if self.dice.random() < CHANGE_OF_KIND_SHARE:
                self._is_static = not self._is_static
        if self._end == "closed":
            reader.close()
        else:
            reader.kill()

    def _count(self) -> None:
        """It was a member in this life; the next one is of the other protocol."""
        now = self._protocol
        assert now is not None, "it is in a group"
        if self._before is not None:
            self.migrations[f"{self._before} to {now}"] += 1
        kind = "static" if self._is_static else "dynamic"
        self.migrations[f"{now} {kind} {self._end}"] += 1
        self._before, self._protocol = now, OTHER[now]
