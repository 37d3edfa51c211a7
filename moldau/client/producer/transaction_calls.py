"""The public calls of a transactional producer.

Owns what the application says and how it is checked. Must not hold state: `transactions` does.
Invariant: bad arguments raise before anything has changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Protocol

from moldau.client.errors import InvalidTransactionState
from moldau.client.producer.core.transaction_requests import GroupMember, Position
from moldau.client.producer.transactions import PreparedTransaction, Transactions
from moldau.client.records import ConsumerGroupMetadata, OffsetAndMetadata
from moldau.protocol.types import TopicPartition

_MAX_INT32: Final = 2**31 - 1
_MAX_INT64: Final = 2**63 - 1


class OffsetsSource(Protocol):
    """What `send_offsets` takes instead of offsets: a consumer."""

    def group_metadata(self) -> ConsumerGroupMetadata:
        """Who it is in its group."""

    def positions(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Behind every record that it has handed out."""


class TransactionContext:
    """`async with producer.transaction():` see `TransactionCalls.transaction`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._number = 0

    @property
    def is_latest(self) -> bool:
        """Whether no transaction has been begun since this one."""
        return self._number == self._transactions.begun_count

    async def __aenter__(self) -> None:
        await self._transactions.enter()
        self._number = self._transactions.begun_count

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._transactions.leave(value)


class TransactionCalls:
    """The part of `Producer` that deals with transactions; needs a `transactional.id`.

    Every call raises `InvalidTransactionState` when it is out of turn, `TransactionAbortable` when
    the open transaction can only be aborted (the producer goes on after `abort_transaction`),
    `ProducerFenced` when another producer has taken the transactional id over, and `RequestTimeout`
    after `max.block.ms`. A call that was cancelled or ran out of time may be made again.
    """

    _transactions: Transactions | None

    def transaction(self) -> TransactionContext:
        """A transaction around a block: `async with producer.transaction(): …`.

        Committed at the end of the block, aborted when the block raises or is cancelled. The first
        one calls `init_transactions`. A transaction that was ended or prepared within the block is
        left as it is.

        Raises:
            TransactionAbortable: at the end of the block: it could not be committed, and was
                aborted; the next one may succeed.
        """
        return TransactionContext(self._of("transaction()"))

    async def init_transactions(
        self, *, keep_prepared_transaction: bool = False
    ) -> PreparedTransaction | None:
        """Shut out every other producer of the transactional id, and get a producer id.

        Args:
            keep_prepared_transaction: do not abort a transaction that the producer before left
                prepared, but take it over (KIP-939): it is returned, and waits for
                `complete_transaction`. Needs brokers that know two-phase commit, and
                `transaction.two.phase.commit.enable`.

        Raises:
            TransactionalIdAuthorizationFailed: not permitted; may be called again.
            UnsupportedByBroker: two-phase commit is not known to the brokers.
        """
        return await self._of("init_transactions()").initialize(
            keep_prepared=keep_prepared_transaction
        )

    def begin_transaction(self) -> None:
        """Open a transaction; everything sent from now on is part of it."""
        self._of("begin_transaction()").begin()

    async def commit_transaction(self) -> None:
        """Flush, and make everything sent since `begin_transaction` visible, all at once.

        Raises:
            TransactionAbortable: a record or the offsets could not be written: abort.
        """
        await self._of("commit_transaction()").commit()

    async def abort_transaction(self) -> None:
        """Give up everything sent since `begin_transaction`; unsent records fail with
        `TransactionAborted`.

        Raises:
            InvalidTransactionState: also after a commit whose outcome is unknown: commit again.
        """
        await self._of("abort_transaction()").abort()

    async def send_offsets(
        self,
        offsets: OffsetsSource | Mapping[TopicPartition, OffsetAndMetadata | int],
        group: ConsumerGroupMetadata | str | None = None,
    ) -> None:
        """Commit a consumer's positions as part of the open transaction (KIP-447).

        Args:
            offsets: the consumer, whose positions and membership are used: a consumer that has lost
                its partitions cannot commit them. Or the next offset to read of each partition.
            group: with offsets, whose they are: `consumer.group_metadata()`, or a bare group id,
                which protects from nothing.

        Raises:
            TransactionAbortable: the group has moved on (its code is ILLEGAL_GENERATION,
                UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or STALE_MEMBER_EPOCH), or it is not
                permitted.
            TypeError, ValueError: a group without offsets, or offsets without a group.
        """
        transactions = self._of("send_offsets()")
        if not isinstance(offsets, Mapping):
            if group is not None:
                raise TypeError("send_offsets(): a consumer knows its group: leave `group` out")
            group = offsets.group_metadata()
            offsets = offsets.positions()
        elif group is None:
            raise TypeError("send_offsets(): offsets need `group`: group metadata or a group id")
        if isinstance(group, str):
            group = ConsumerGroupMetadata(group)
        if not group.group_id:
            raise ValueError(
                "send_offsets(): offsets of no group cannot be committed: the group id is empty"
            )
        member = GroupMember(
            group.group_id, group.generation_id, group.member_id, group.group_instance_id
        )
        await transactions.send_offsets(member, _positions(offsets))

    async def prepare_transaction(self) -> PreparedTransaction:
        """Flush, and keep the transaction open for an outcome that is decided elsewhere (KIP-939).

        It does not time out. Store what is returned together with the decision: after a crash
        `init_transactions(keep_prepared_transaction=True)` and `complete_transaction` end it.

        Raises:
            InvalidTransactionState: also without `transaction.two.phase.commit.enable`.
        """
        return await self._of("prepare_transaction()").prepare()

    async def hand_over_transaction(self) -> PreparedTransaction:
        """Flush, and leave the transaction to another process, which ends it with
        `Admin.end_transaction` before `transaction.timeout.ms` is over.

        For those who decide about the work of many producers at once, on brokers without two-phase
        commit. Closing this producer leaves the transaction open; `complete_transaction` would end
        it from here.
        """
        return await self._of("hand_over_transaction()").prepare(is_handed_over=True)

    async def complete_transaction(self, prepared: PreparedTransaction) -> bool:
        """End the prepared transaction: commit it if it is `prepared`, else abort it (KIP-939).

        Args:
            prepared: what was last stored with a decision to commit.

        Returns:
            Whether it was committed.
        """
        return await self._of("complete_transaction()").complete(prepared)

    def _of(self, call: str) -> Transactions:
        if self._transactions is None:
            raise InvalidTransactionState(
                f"{call}: this producer is not transactional; give it a transactional.id"
            )
        self._check_usable()
        return self._transactions

    def _check_usable(self) -> None:
        """Start the producer on the running loop if it has not begun; `Producer` does it.

        Raises: ClientClosed, WrongEventLoop.
        """
        raise NotImplementedError


def _positions(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, Position]:
    found = {}
    for partition, each in offsets.items():
        topic, index = partition
        if not (isinstance(topic, str) and isinstance(index, int) and 0 <= index <= _MAX_INT32):
            raise TypeError(
                f"send_offsets(): {partition!r} is no TopicPartition(topic: str, partition: int)"
            )
        if isinstance(each, int) and each >= 0:
            each = OffsetAndMetadata(each)
        if not isinstance(each, OffsetAndMetadata):
            raise TypeError(
                f"send_offsets(): {topic}-{index} needs an offset, as a number that is not "
                f"negative or as OffsetAndMetadata(offset), not {each!r}"
            )
        if not isinstance(each.metadata, str) or not each.offset <= _MAX_INT64:
            raise ValueError(f"send_offsets(): {topic}-{index}: {each!r} cannot be committed")
        leader_epoch = -1 if each.leader_epoch is None else each.leader_epoch
        found[TopicPartition(topic, index)] = Position(each.offset, leader_epoch, each.metadata)
    return found
