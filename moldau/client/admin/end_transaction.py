"""Admin call that ends a transaction for the process that has it open.

Owns the choice of the request's version by the cluster's `transaction.version` (KIP-890), and what
each refusal means to somebody who is not the producer. Invariant: asking twice for the same outcome
is the same as asking once.
"""

from __future__ import annotations

from typing import Final

from moldau.client.admin.group_types import ProducerIdAndEpoch
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.errors import (
    BrokerError,
    InvalidRequest,
    KafkaError,
    NoBrokerAvailable,
    ProducerFenced,
    UnsupportedByBroker,
    error_for,
)
from moldau.client.producer.coordinator_link import (
    AnswerLost,
    CannotSay,
    CoordinatorLink,
    NotSent,
)
from moldau.client.producer.core import transaction_requests as requests
from moldau.client.producer.core.transaction_states import (
    LAST_PRODUCER_EPOCH,
)
from moldau.client.producer.core.transaction_states import (
    ProducerIdAndEpoch as Pair,
)
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p26_end_txn import EndTxnResponse

_LAST_PRODUCER_ID: Final = 2**63 - 1

_FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
_UNKNOWN: Final = frozenset(
    {ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND}
)


class EndTransactionCalls:
    """The part of `Admin` that ends transactions of others."""

    _client: ClusterClient

    async def end_transaction(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool = True,
        *,
        timeout_ms: float | None = None,
    ) -> ProducerIdAndEpoch:
        """Commit or abort the open transaction of a producer in another process.

        For those who gather the work of many producers and decide about all of it at once: each
        producer flushes and says who it is, and one process ends their transactions. It may be
        called again, also by another process, with the same outcome: the second call changes
        nothing.

        Args:
            producer_id, producer_epoch: who the producer was when it wrote.
            commit: whether to make its records visible; False to give them up.

        Returns:
            Whom the producer goes on as; with transaction version 2 that is another epoch, and the
            process that has it open would be fenced if it went on by itself.

        Raises:
            ProducerFenced: the transaction is not open any more under this epoch: it took longer
                than its timeout and was aborted, a newer producer has aborted it, or it ended and
                the producer has gone on.
            InvalidRequest: the arguments.
            BrokerError: INVALID_TXN_STATE: there is nothing to commit, or it ended the other way;
                INVALID_PRODUCER_ID_MAPPING: the cluster knows no such producer of this id, which
                has expired or is used by another producer.
            TransactionalIdAuthorizationFailed
            RequestTimeout: the outcome may have been written; the same call tells.
        """
        producer = _checked(transactional_id, producer_id, producer_epoch)
        link = CoordinatorLink(self._client)
        what = f"{'commit' if commit else 'abort'} the transaction of {transactional_id!r}"

        async def attempt() -> ProducerIdAndEpoch:
            try:
                features = await link.features(transactional_id)
                ask = requests.end(transactional_id, producer, features.transaction_version, commit)
                response: EndTxnResponse = await link.ask(ask, lambda _: None)
            except (NotSent, AnswerLost) as fault:
                link.forget_coordinator(transactional_id)
                raise NoBrokerAvailable(f"{what}: {fault}") from fault
            except CannotSay as error:
                raise UnsupportedByBroker(f"{what}: {error}") from None
            code = ErrorCode.of(response.error_code)
            if code is ErrorCode.NONE:
                following = Pair(response.producer_id, response.producer_epoch)
                return ProducerIdAndEpoch(*(following if following.is_known else producer))
            link.forget_coordinator(transactional_id)
            raise _refusal(code, what, producer, commit)

        return await self._client.retry(attempt, what=what, timeout_ms=timeout_ms)


def _checked(transactional_id: str, producer_id: int, producer_epoch: int) -> Pair:
    problem = None
    if not transactional_id:
        problem = "the transactional id is empty"
    elif not 0 <= producer_id <= _LAST_PRODUCER_ID:
        problem = f"{producer_id} is no producer id (0 or more)"
    elif not 0 <= producer_epoch <= LAST_PRODUCER_EPOCH:
        problem = f"{producer_epoch} is no producer epoch (0 to {LAST_PRODUCER_EPOCH})"
    if problem is not None:
        raise InvalidRequest(f"end transaction: {problem}", code=ErrorCode.INVALID_REQUEST)
    return Pair(producer_id, producer_epoch)


def _refusal(code: ErrorCode, what: str, producer: Pair, commit: bool) -> KafkaError:
    if code in _FENCED:
        return ProducerFenced(
            f"{what}: {code.name}: producer {producer} has no open transaction: it was aborted "
            "because it took too long or a newer producer has the id, or it ended and the "
            "producer has gone on",
            code=code,
        )
    if code in _UNKNOWN:
        return BrokerError(
            f"{what}: {code.name}: the cluster knows no producer {producer.producer_id} of this "
            "id: the id has expired, or another producer has it",
            code=code,
        )
    if code is ErrorCode.INVALID_TXN_STATE:
        other = "aborted" if commit else "committed"
        return BrokerError(
            f"{what}: {code.name}: producer {producer} has nothing open, or its transaction was "
            f"{other}",
            code=code,
        )
    return error_for(code, None, what)
