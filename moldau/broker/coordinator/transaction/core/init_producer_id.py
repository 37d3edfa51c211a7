"""What InitProducerId does to a transactional id (KIP-98, KIP-360, KIP-890, KIP-939).

Owns the decision, which changes nothing. Must not write records or answer. Invariants: who gets a
pair gets one that nobody has had, unless it repeats the request that gave it that pair; whoever had
the id before is fenced by it.

Where Apache Kafka looks only at the producer id of a producer that comes back while a transaction
is open, the epoch counts here too: a producer that was fenced cannot abort its successor's
transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from moldau.broker.coordinator.transaction.core.settings import TransactionSettings
from moldau.broker.coordinator.transaction.core.statuses import TransactionStatus
from moldau.broker.coordinator.transaction.core.transaction import (
    EPOCH_BUMP_VERSION,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    ProducerIdAndEpoch,
    Transaction,
    new_transaction,
)
from moldau.protocol.errors import ErrorCode


class InitProducerId(NamedTuple):
    """The request.

    Attributes:
        expected: who the producer is so far, if it comes back (KIP-360).
        enable_two_phase: its transactions end only when told to (KIP-939).
        keep_prepared: an open transaction is not aborted but handed over (KIP-939).
    """

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    enable_two_phase: bool = False
    keep_prepared: bool = False


class Recovery(NamedTuple):
    """A producer that came back: as what it came, and as what it went on. If it asks again, the
    answer was lost.
    """

    before: ProducerIdAndEpoch
    after: ProducerIdAndEpoch


@dataclass(frozen=True, slots=True)
class Initialization:
    """What is to be done: a record and an answer for when it is committed.

    Attributes:
        transaction: what the record says.
        answer: who the producer is now; None while the open transaction is being aborted.
        ongoing: the pair of the transaction that is kept for it.
        recovery: what makes a repetition of this request known.
        used_producer_id: whether the spare producer id was used.
    """

    transaction: Transaction
    answer: ProducerIdAndEpoch | None
    ongoing: ProducerIdAndEpoch = NO_PRODUCER
    recovery: Recovery | None = None
    used_producer_id: bool = False


def refusal(
    request: InitProducerId, settings: TransactionSettings, server_version: int
) -> ErrorCode:
    """What is wrong with the request whatever the id's state; NONE for nothing."""
    if not request.transactional_id:
        return ErrorCode.INVALID_REQUEST
    if request.enable_two_phase and not settings.two_phase_commit_enabled:
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    if request.keep_prepared and server_version < EPOCH_BUMP_VERSION:
        return ErrorCode.UNSUPPORTED_VERSION
    if not request.enable_two_phase and not 0 < request.timeout_ms <= settings.max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


def decide(
    request: InitProducerId,
    transaction: Transaction | None,
    *,
    recovery: Recovery | None,
    spare_producer_id: int,
    server_version: int,
    now_ms: float,
) -> Initialization | ErrorCode:
    """What the request leads to.

    Args:
        transaction: the id as it is, None if it was never heard of.
        recovery: the last one of this id, as far as remembered.
        spare_producer_id: -1 if there is none: COORDINATOR_LOAD_IN_PROGRESS where one is needed.
        server_version: the finalized `transaction.version`.
    """
    timeout_ms = NO_TIMEOUT_MS if request.enable_two_phase else request.timeout_ms
    if transaction is None:
        if spare_producer_id == NO_PRODUCER_ID:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        made = new_transaction(request.transactional_id, spare_producer_id, timeout_ms, now_ms)
        return Initialization(made, made.own_producer, used_producer_id=True)
    if transaction.status.is_prepared:
        # Also for whoever is fenced: it is told when the markers are written.
        return ErrorCode.CONCURRENT_TRANSACTIONS
    current = transaction.client_producer
    is_repeated = _is_repeated(request, transaction, recovery)
    if (
        request.expected is not None
        and not is_repeated
        and (request.expected != current or current.is_of_markers)
    ):
        return ErrorCode.PRODUCER_FENCED
    if transaction.status is TransactionStatus.ONGOING:
        if is_repeated:
            # The producer has had its answer, or it could not have begun.
            return ErrorCode.PRODUCER_FENCED
        return _with_open_transaction(
            request, transaction, timeout_ms, spare_producer_id, server_version, now_ms
        )
    if is_repeated:
        assert request.expected is not None
        return Initialization(
            transaction.initialized(current, timeout_ms, now_ms),
            current,
            recovery=Recovery(request.expected, current),
        )
    following = _following(current, spare_producer_id)
    if following is None:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return Initialization(
        transaction.initialized(following, timeout_ms, now_ms),
        following,
        recovery=Recovery(current, following) if request.expected is not None else None,
        used_producer_id=current.is_exhausted,
    )


def _with_open_transaction(
    request: InitProducerId,
    transaction: Transaction,
    timeout_ms: int,
    spare_producer_id: int,
    server_version: int,
    now_ms: float,
) -> Initialization | ErrorCode:
    is_exhausted = transaction.client_producer.is_exhausted
    if request.keep_prepared:
        following = _following(transaction.client_producer, spare_producer_id)
        if following is None:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return Initialization(
            transaction.kept_for(following, timeout_ms, now_ms),
            following,
            ongoing=transaction.own_producer,
            used_producer_id=is_exhausted,
        )
    uses_spare = is_exhausted and (transaction.is_kept or server_version >= EPOCH_BUMP_VERSION)
    if uses_spare and spare_producer_id == NO_PRODUCER_ID:
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    fenced = transaction.fenced(
        server_version=server_version, spare_producer_id=spare_producer_id, now_ms=now_ms
    )
    # The epoch that the markers carry is told to nobody: who asks again gets one above.
    return Initialization(fenced, None, used_producer_id=uses_spare)


def _is_repeated(
    request: InitProducerId, transaction: Transaction, recovery: Recovery | None
) -> bool:
    """Whether the producer was answered already, by this request or by the end of a transaction
    whose answer it has not got.
    """
    expected = request.expected
    if expected is None:
        return False
    if recovery is not None and recovery == (expected, transaction.client_producer):
        return True
    return expected == transaction.ended_by


def _following(current: ProducerIdAndEpoch, spare_producer_id: int) -> ProducerIdAndEpoch | None:
    """The pair after `current`; None if it needs a producer id that is not there."""
    if not current.is_exhausted:
        return ProducerIdAndEpoch(current.producer_id, current.producer_epoch + 1)
    if spare_producer_id == NO_PRODUCER_ID:
        return None
    return ProducerIdAndEpoch(spare_producer_id, 0)
