"""What the node's configuration tells the transaction coordinator.

Owns the values. Must not read configuration later than at its making.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """Limits and times.

    Attributes:
        max_timeout_ms: the longest timeout a producer may ask for.
        two_phase_commit_enabled: whether producers may ask for none (KIP-939).
        expiration_ms: after which an id without a transaction is forgotten.
        abort_interval_ms: between two searches for transactions that have had their time.
        expiry_interval_ms: between two searches for ids to be forgotten.
    """

    max_timeout_ms: int = 900_000
    two_phase_commit_enabled: bool = False
    expiration_ms: int = 604_800_000
    abort_interval_ms: int = 10_000
    expiry_interval_ms: int = 3_600_000

    @classmethod
    def from_config(cls, values: Mapping[str, Any]) -> TransactionSettings:
        """From a node's configuration."""
        return cls(
            max_timeout_ms=values["transaction.max.timeout.ms"],
            two_phase_commit_enabled=values["transaction.two.phase.commit.enable"],
            expiration_ms=values["transactional.id.expiration.ms"],
            abort_interval_ms=values["transaction.abort.timed.out.transaction.cleanup.interval.ms"],
            expiry_interval_ms=values["transaction.remove.expired.transaction.cleanup.interval.ms"],
        )
