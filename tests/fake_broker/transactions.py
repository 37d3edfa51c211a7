"""Producer ids and the transaction coordinator.

Owns transactional ids, their epochs and states, and the markers. Must not hold offsets: groups do.
Sources: KIP-98, KIP-360, KIP-890 (transaction.version 2), KIP-939. Invariant: a transaction ends in
all of its partitions and groups at once, committed or aborted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from moldau.protocol import ApiKey, ErrorCode
from moldau.protocol.messages.p22_init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from moldau.protocol.messages.p24_add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from moldau.protocol.messages.p25_add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from moldau.protocol.messages.p26_end_txn import EndTxnRequest, EndTxnResponse
from moldau.protocol.records import BatchHeader
from tests.fake_broker.context import Context, Handler

if TYPE_CHECKING:
    from tests.fake_broker.cluster import FakeCluster

MAX_EPOCH = 2**15 - 2
"""The last epoch handed out; 32767 is left for fencing."""
FIRST_PRODUCER_ID = 4000
_FENCED_SINCE = {
    ApiKey.INIT_PRODUCER_ID: 4,
    ApiKey.ADD_PARTITIONS_TO_TXN: 2,
    ApiKey.ADD_OFFSETS_TO_TXN: 2,
    ApiKey.END_TXN: 2,
}
_BATCHED_ADD_SINCE = 4
_EPOCH_BUMP_SINCE = 5


class State(Enum):
    """Where a transactional id stands."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    COMMITTED = "CompleteCommit"
    ABORTED = "CompleteAbort"


@dataclass(slots=True)
class Transaction:
    """A transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: set[tuple[str, int]] = field(default_factory=set)
    group_ids: set[str] = field(default_factory=set)
    last_producer_id: int = -1
    last_epoch: int = -1
    ongoing: tuple[int, int] | None = None
    """Under which id and epoch an ongoing transaction was written, when these are not the current
    ones (a prepared transaction that was kept).
    """
    commit_count: int = 0
    abort_count: int = 0


class Transactions:
    """All transactional ids of a cluster."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._by_id: dict[str, Transaction] = {}
        self._next_producer_id = FIRST_PRODUCER_ID

    def find(self, transactional_id: str) -> Transaction | None:
        """A transactional id's state."""
        return self._by_id.get(transactional_id)

    def all(self) -> list[Transaction]:
        """Every transactional id."""
        return list(self._by_id.values())

    def new_producer_id(self) -> int:
        """An id that no producer has had."""
        self._next_producer_id += 1
        return self._next_producer_id

    def is_here(self, context: Context, transactional_id: str) -> bool:
        """Whether the asked broker coordinates it."""
        coordinator = self._cluster.coordinator_of("transaction", transactional_id)
        return coordinator == context.node.node_id

    # -- producer ids ---------------------------------------------------------------------------

    def begin(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """A transactional id seen for the first time."""
        made = Transaction(
            transactional_id,
            self.new_producer_id(),
            self._cluster.settings.first_producer_epoch,
            timeout_ms,
        )
        self._by_id[transactional_id] = made
        return made

    def bump(self, transaction: Transaction) -> None:
        """The next epoch, under a new producer id when they are used up."""
        transaction.last_producer_id = transaction.producer_id
        transaction.last_epoch = transaction.epoch
        if transaction.epoch >= MAX_EPOCH:
            transaction.producer_id = self.new_producer_id()
            transaction.epoch = 0
        else:
            transaction.epoch += 1

    def fence(self, transactional_id: str) -> None:
        """As if another producer had begun with this id."""
        transaction = self._by_id[transactional_id]
        if transaction.state is State.ONGOING:
            self.finish(transaction, commit=False, epoch=transaction.epoch + 1)
        self.bump(transaction)

    def expire(self, transactional_id: str) -> None:
        """Abort an ongoing transaction as its timeout does: by a higher epoch."""
        transaction = self._by_id[transactional_id]
        assert transaction.state is State.ONGOING, "nothing to expire"
        self.finish(transaction, commit=False, epoch=transaction.epoch + 1)
        self.bump(transaction)

    def forget(self, transactional_id: str) -> None:
        """As when it was not used for `transactional.id.expiration.ms`."""
        assert self._by_id[transactional_id].state is not State.ONGOING, "it is in use"
        del self._by_id[transactional_id]

    # -- use ------------------------------------------------------------------------------------

    def check(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, fenced: ErrorCode
    ) -> ErrorCode:
        """Whether id and epoch are the current ones; `fenced` is the error for others."""
        transaction = self._by_id.get(transactional_id)
        if transaction is None or producer_id != transaction.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return ErrorCode.NONE if producer_epoch == transaction.epoch else fenced

    def check_write(
        self, transactional_id: str, header: BatchHeader, topic: str, partition: int, *, joins: bool
    ) -> ErrorCode:
        """Whether a batch may be written; `joins`: its partition joins the transaction by that."""
        error = self.check(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            fenced=ErrorCode.INVALID_PRODUCER_EPOCH,
        )
        if error:
            return error
        transaction = self._by_id[transactional_id]
        if (topic, partition) in transaction.partitions:
            return ErrorCode.NONE
        if not joins or not self.is_version_2:
            return ErrorCode.INVALID_TXN_STATE
        self.join(transaction, topic, partition)
        return ErrorCode.NONE

    @property
    def is_version_2(self) -> bool:
        """Whether partitions join by being written to (KIP-890)."""
        return self._cluster.settings.transaction_version >= 2

    def join(self, transaction: Transaction, topic: str, partition: int) -> None:
        """A partition is part of the transaction, which is ongoing by that."""
        transaction.state = State.ONGOING
        transaction.partitions.add((topic, partition))

    def join_group(self, transaction: Transaction, group_id: str) -> None:
        """A group's offsets are part of the transaction."""
        transaction.state = State.ONGOING
        transaction.group_ids.add(group_id)

    def finish(self, transaction: Transaction, *, commit: bool, epoch: int) -> None:
        """End the transaction everywhere, with markers of this epoch."""
        producer_id, _ = transaction.ongoing or (transaction.producer_id, 0)
        for topic, index in sorted(transaction.partitions):
            partition = self._cluster.partition(topic, index)
            if partition is not None:
                partition.log.end_transaction(
                    producer_id, epoch, commit=commit, timestamp_ms=self._cluster.now_ms()
                )
        for group_id in transaction.group_ids:
            self._cluster.groups.end_transaction(group_id, producer_id, commit=commit)
        transaction.partitions.clear()
        transaction.group_ids.clear()
        transaction.ongoing = None
        transaction.state = State.COMMITTED if commit else State.ABORTED
        transaction.commit_count += commit
        transaction.abort_count += not commit
        self._cluster.grew()


def _fenced(context: Context) -> ErrorCode:
    since = _FENCED_SINCE[context.received.api_key]
    if context.version >= since:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.INVALID_PRODUCER_EPOCH


async def init_producer_id(
    context: Context, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    """A new producer id, or a transactional id's next epoch."""
    transactions = context.cluster.transactions
    error = context.refusal("top")
    if error:
        return InitProducerIdResponse(error_code=error)
    if request.transactional_id is None:
        return InitProducerIdResponse(
            producer_id=transactions.new_producer_id(),
            producer_epoch=context.cluster.settings.first_producer_epoch,
        )
    if not request.transactional_id:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
    if not transactions.is_here(context, request.transactional_id):
        return InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR)
    transaction = transactions.find(request.transactional_id)
    if transaction is None:
        transaction = transactions.begin(request.transactional_id, request.transaction_timeout_ms)
        return _initialised(transaction)
    return _next_epoch(context, request, transaction)


def _initialised(transaction: Transaction) -> InitProducerIdResponse:
    return InitProducerIdResponse(
        producer_id=transaction.producer_id, producer_epoch=transaction.epoch
    )


def _next_epoch(
    context: Context, request: InitProducerIdRequest, transaction: Transaction
) -> InitProducerIdResponse:
    transactions = context.cluster.transactions
    current = (transaction.producer_id, transaction.epoch)
    if request.producer_id >= 0:
        asked = (request.producer_id, request.producer_epoch)
        if asked == (transaction.last_producer_id, transaction.last_epoch) and asked != current:
            # The answer to the same request was lost: the bump has been made (KIP-360).
            return _initialised(transaction)
        if asked != current:
            return InitProducerIdResponse(error_code=_fenced(context))
    kept = None
    if transaction.state is State.ONGOING:
        if request.keep_prepared_txn:
            kept = transaction.ongoing or current
        else:
            transactions.finish(transaction, commit=False, epoch=transaction.epoch + 1)
    transactions.bump(transaction)
    transaction.timeout_ms = request.transaction_timeout_ms
    transaction.ongoing = kept
    response = _initialised(transaction)
    if kept is not None:
        response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch = kept
    elif context.version >= 6:
        response.ongoing_txn_producer_id = -1
    return response


async def add_partitions(
    context: Context, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """One transaction's partitions before version 4 (what clients send), many transactions'
    since (what brokers send).
    """
    if context.version < _BATCHED_ADD_SINCE:
        results = _add(
            context,
            request.v3_and_below_transactional_id,
            request.v3_and_below_producer_id,
            request.v3_and_below_producer_epoch,
            request.v3_and_below_topics,
        )
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    return AddPartitionsToTxnResponse(
        error_code=context.refusal("top"),
        results_by_transaction=[
            AddPartitionsToTxnResult(
                transactional_id=each.transactional_id,
                topic_results=_add(
                    context,
                    each.transactional_id,
                    each.producer_id,
                    each.producer_epoch,
                    each.topics,
                ),
            )
            for each in request.transactions
        ],
    )


def _add(
    context: Context,
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    topics: list[Any],
) -> list[AddPartitionsToTxnTopicResult]:
    transactions = context.cluster.transactions
    whole = ErrorCode.NONE
    if not transactions.is_here(context, transactional_id):
        whole = ErrorCode.NOT_COORDINATOR
    else:
        whole = transactions.check(
            transactional_id, producer_id, producer_epoch, fenced=_fenced(context)
        )
    errors: dict[tuple[str, int], ErrorCode] = {}
    for topic in topics:
        for index in topic.partitions:
            error = context.refusal("partition", topic.name, index) or whole
            if not error and context.cluster.partition(topic.name, index) is None:
                error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            errors[topic.name, index] = error
    has_failed = any(errors.values())
    results = []
    for topic in topics:
        result = AddPartitionsToTxnTopicResult(name=topic.name)
        for index in topic.partitions:
            error = errors[topic.name, index]
            if not error and has_failed:
                error = ErrorCode.OPERATION_NOT_ATTEMPTED
            elif not error:
                transaction = transactions.find(transactional_id)
                assert transaction is not None
                transactions.join(transaction, topic.name, index)
            result.results_by_partition.append(
                AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=error)
            )
        results.append(result)
    return results


async def add_offsets(context: Context, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    """A group's offsets join."""
    transactions = context.cluster.transactions
    error = context.refusal("top")
    if not error and not transactions.is_here(context, request.transactional_id):
        error = ErrorCode.NOT_COORDINATOR
    error = error or transactions.check(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        fenced=_fenced(context),
    )
    if not error:
        transaction = transactions.find(request.transactional_id)
        assert transaction is not None
        transactions.join_group(transaction, request.group_id)
    return AddOffsetsToTxnResponse(error_code=error)


async def end_txn(context: Context, request: EndTxnRequest) -> EndTxnResponse:
    """Commit or abort; version 5 hands out the next epoch with the answer (KIP-890)."""
    transactions = context.cluster.transactions
    error = context.refusal("top")
    if not error and not transactions.is_here(context, request.transactional_id):
        error = ErrorCode.NOT_COORDINATOR
    if error:
        return EndTxnResponse(error_code=error)
    transaction = transactions.find(request.transactional_id)
    bumps = context.version >= _EPOCH_BUMP_SINCE
    wanted = State.COMMITTED if request.committed else State.ABORTED
    if transaction is None:
        return EndTxnResponse(error_code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    asked = (request.producer_id, request.producer_epoch)
    last = (transaction.last_producer_id, transaction.last_epoch)
    if bumps and asked == last and transaction.state is wanted:
        # The answer to the same request was lost.
        return EndTxnResponse(producer_id=transaction.producer_id, producer_epoch=transaction.epoch)
    error = transactions.check(request.transactional_id, *asked, fenced=_fenced(context))
    if not error:
        error = _end(context, transaction, commit=request.committed, bumps=bumps, wanted=wanted)
    if error or not bumps:
        return EndTxnResponse(error_code=error)
    return EndTxnResponse(producer_id=transaction.producer_id, producer_epoch=transaction.epoch)


def _end(
    context: Context, transaction: Transaction, *, commit: bool, bumps: bool, wanted: State
) -> ErrorCode:
    transactions = context.cluster.transactions
    if transaction.state is State.ONGOING:
        epoch = min(transaction.epoch + 1, 2**15 - 1) if bumps else transaction.epoch
        transactions.finish(transaction, commit=commit, epoch=epoch)
        if bumps:
            transactions.bump(transaction)
        return ErrorCode.NONE
    if bumps and not commit:
        # Nothing was added: aborting it is allowed, as the client cannot know (KIP-890).
        transaction.state = State.ABORTED
        transactions.bump(transaction)
        return ErrorCode.NONE
    if not bumps and transaction.state is wanted:
        return ErrorCode.NONE
    return ErrorCode.INVALID_TXN_STATE


HANDLERS: dict[ApiKey, Handler] = {
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets,
    ApiKey.END_TXN: end_txn,
}
