"""What the accumulator has to know of producer ids, epochs and transactions: two protocols.

Owns nothing but the seam: `core/transaction_manager.py` and `transactions.py` are behind it, tests
bring their own. Invariant: everything here is synchronous and answers at once.
"""

from __future__ import annotations

from typing import Protocol

from moldau.client.producer.core.transaction_states import ProducerIdAndEpoch
from moldau.protocol.errors import ErrorCode


class Identity(Protocol):
    """Who this producer is to the brokers (KIP-98); absent when idempotence is off."""

    @property
    def producer(self) -> ProducerIdAndEpoch:
        """Producer id and epoch at the moment; NO_PRODUCER until there is one."""

    @property
    def transactional_id(self) -> str | None:
        """None for a producer that is only idempotent."""

    def admit(self, topic: str, partition: int) -> bool:
        """Whether a batch of the partition may go out now; what is missing is then being done."""

    def batch_failed(
        self, topic: str, partition: int, error: Exception, *, may_be_written: bool
    ) -> None:
        """A batch has failed for good, though not because the other side of this seam said so."""

    def bump_epoch(self) -> None:
        """Ask for a new epoch (KIP-360), for a producer that is only idempotent."""


class DeliveryErrors(Protocol):
    """Makes the exceptions that failed batches carry, so that the core needs no such classes."""

    def refused(
        self, code: ErrorCode, message: str | None, topic: str, partition: int
    ) -> Exception:
        """A broker refused a batch, or it was lost on the way too often."""

    def expired(
        self, topic: str, partition: int, record_count: int, last: ErrorCode | None
    ) -> Exception:
        """A batch was not acknowledged within `delivery.timeout.ms`; `last` is why not."""

    def record_refused(self, error: Exception, is_named: bool, message: str | None) -> Exception:
        """A record of a batch for which the broker named the records that are at fault (KIP-467):
        this one, maybe with words of its own, or others.
        """

    def unknown_topic(self, topic: str, partition: int | None) -> Exception:
        """A topic, or the partition asked for, was not there within `max.block.ms`."""
