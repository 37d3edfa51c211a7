"""A transactional producer of transaction version 2 (KIP-890), in Kafka's protocol itself.

No client in Python speaks it: partitions join by being written to, and each transaction has its own
epoch. Owns the protocol's client side, one request at a time, and a stutter: it repeats requests of
the transaction before, as a network may deliver them late. Must not: decide what is sent.
Invariant: what is repeated is byte for byte what was sent before, and its answer is ignored.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import Consumer

from benchmarks.wire import Wire
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p00_produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p10_find_coordinator import FindCoordinatorRequest
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.messages.p28_txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from moldau.protocol.records import Record, encode_batch
from tests.kit.servers import plain_of
from tests.system.transactions.history import History, Log, OffsetCommit, Send
from tests.system.transactions.senders import (
    TRANSACTION_TIMEOUT_MS,
    Broken,
    MustAbort,
    encode,
)

PRODUCE_VERSION: Final = 12
METADATA_VERSION: Final = 8
FIND_COORDINATOR_VERSION: Final = 4
API_VERSIONS_VERSION: Final = 3
INIT_PRODUCER_ID_VERSION: Final = 5
END_TXN_VERSION: Final = 5
TXN_OFFSET_COMMIT_VERSION: Final = 5
GROUP_KEY, TRANSACTION_KEY = 0, 1
ANSWER_S: Final = 4.0
DEADLINE_S: Final = 90.0
PAUSE_S: Final = 0.05
STUTTER_SHARE: Final = 0.15

#: As good as done, or to be tried again, whatever is asked.
AGAIN: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})
FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})

Address = tuple[str, int]


def transaction_version(bootstrap: str) -> int:
    """The finalized level of `transaction.version`. Raises: OSError."""
    with Wire(*_addresses(bootstrap)[0]) as wire:
        answer = wire.ask(
            ApiVersionsRequest(client_software_name="probe", client_software_version="1"),
            API_VERSIONS_VERSION,
        )
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return int(levels.get("transaction.version", 0))


def _addresses(bootstrap: str) -> list[Address]:
    pairs = [each.rpartition(":") for each in plain_of(bootstrap).split(",")]
    return [(host, int(port)) for host, _, port in pairs]


class RawSender:
    """Blocking; for one thread.

    Args:
        dice: when to stutter; None: never.
    """

    def __init__(
        self,
        bootstrap: str,
        transactional_id: str,
        process: str,
        history: History,
        dice: random.Random | None = None,
    ) -> None:
        self._history = history
        self._id, self._process = transactional_id, process
        self._dice = dice
        self._bootstrap = _addresses(bootstrap)
        self._wires: dict[Address, Wire] = {}
        self._brokers: dict[int, Address] = {}
        self._leaders: dict[Log, int] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}
        self._producer_id, self._epoch = -1, -1
        self._sequences: dict[Log, int] = {}
        #: What the transaction before has sent last, and where to.
        self._earlier: list[tuple[Address, Any, int]] = []
        self._sent: list[tuple[Address, Any, int]] = []
        self._is_empty = True
        self._turn = 0

    # -- the face --------------------------------------------------------------------------------

    def open(self) -> None:
        with self._history.opening(self._id, self._process):
            self._until(self._init, Broken)

    def begin(self) -> None:
        self._earlier, self._sent, self._is_empty = self._sent[-3:], [], True

    def send(self, send: Send) -> None:
        self._is_empty = False
        self._until(lambda: self._produce(send), MustAbort)
        self._stutter()

    def send_offsets(self, commits: Sequence[OffsetCommit], consumer: Consumer) -> None:
        """As a consumer that is no member of its group."""
        self._is_empty = False
        for commit in commits:
            self._until(lambda commit=commit: self._commit_offset(commit), MustAbort)  # type: ignore[misc]

    def commit(self) -> None:
        self._stutter()
        if self._is_empty:
            return  # the coordinator knows of no transaction, as with any client
        self._until(lambda: self._end(True), Broken)

    def abort(self) -> None:
        self._stutter()
        if self._is_empty:
            return
        try:
            self._until(lambda: self._end(False), Broken)
        except MustAbort as error:
            raise Broken(f"abort: {error}") from None

    def close(self) -> None:
        wires, self._wires = self._wires, {}
        for wire in wires.values():
            wire.socket.close()

    # -- requests; each returns the code that says how it went -----------------------------------

    def _init(self) -> ErrorCode:
        request = InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS
        )
        answer = self._ask_coordinator(TRANSACTION_KEY, self._id, request, INIT_PRODUCER_ID_VERSION)
        if answer.error_code == ErrorCode.NONE:
            self._take_epoch(answer.producer_id, answer.producer_epoch)
        return ErrorCode(answer.error_code)

    def _produce(self, send: Send) -> ErrorCode:
        sequence = self._sequences.get(send.log, 0)
        batch = encode_batch(
            [Record(0, int(time.time() * 1000), None, encode(send.value))],
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        request = ProduceRequest(
            transactional_id=self._id,
            acks=-1,
            timeout_ms=int(ANSWER_S * 1000) - 500,
            topic_data=[
                TopicProduceData(
                    name=send.log.topic,
                    partition_data=[
                        PartitionProduceData(index=send.log.partition, records=bytes(batch))
                    ],
                )
            ],
        )
        answer = self._ask(self._leader(send.log), request, PRODUCE_VERSION)
        partition = answer.responses[0].partition_responses[0]
        code = ErrorCode(partition.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._sequences[send.log] = sequence + 1
            is_told = code is ErrorCode.NONE and partition.base_offset >= 0
            send.offset = partition.base_offset if is_told else None
            send.ended = self._history.now()
            return ErrorCode.NONE
        self._leaders.pop(send.log, None)
        return code

    def _commit_offset(self, commit: OffsetCommit) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id=self._id,
            group_id=commit.group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=commit.log.topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=commit.log.partition,
                            committed_offset=commit.next_offset,
                        )
                    ],
                )
            ],
        )
        answer = self._ask_coordinator(GROUP_KEY, commit.group, request, TXN_OFFSET_COMMIT_VERSION)
        return self._coordinator_code(
            (GROUP_KEY, commit.group), answer.topics[0].partitions[0].error_code
        )

    def _end(self, is_commit: bool) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=is_commit,
        )
        answer = self._ask_coordinator(TRANSACTION_KEY, self._id, request, END_TXN_VERSION)
        if answer.error_code == ErrorCode.NONE:
            self._take_epoch(answer.producer_id, answer.producer_epoch)
        return self._coordinator_code((TRANSACTION_KEY, self._id), answer.error_code)

    def _take_epoch(self, producer_id: int, epoch: int) -> None:
        self._producer_id, self._epoch = producer_id, epoch
        self._sequences.clear()

    def _coordinator_code(self, key: tuple[int, str], code: int) -> ErrorCode:
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._coordinators.pop(key, None)
        return ErrorCode(code)

    def _stutter(self) -> None:
        """Say something of the transaction before once more."""
        if self._dice is None or not self._earlier or self._dice.random() >= STUTTER_SHARE:
            return
        address, request, version = self._dice.choice(self._earlier)
        try:
            self._wire(address).ask(request, version)
        except OSError:
            self._drop(address)

    # -- where to --------------------------------------------------------------------------------

    def _until(self, attempt: Callable[[], ErrorCode], when_late: type[Exception]) -> None:
        """Repeat an attempt while it may yet go well. Raises: MustAbort, Broken, `when_late`."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                code = attempt()
            except (OSError, LookupError) as error:
                text = f"{type(error).__name__}: {error}"
            else:
                if code is ErrorCode.NONE:
                    return
                text = code.name
                if not code.retriable and code not in AGAIN:
                    if when_late is Broken and code is not ErrorCode.TRANSACTION_ABORTABLE:
                        raise Broken(text)
                    raise MustAbort(text)
            if time.monotonic() >= end:
                raise when_late(f"not within {DEADLINE_S:.0f} s: {text}")
            threading.Event().wait(PAUSE_S)

    def _leader(self, log: Log) -> Address:
        """Raises: LookupError when there is none now; OSError."""
        if self._leaders.get(log) not in self._brokers:
            self._learn(log.topic)
        return self._brokers[self._leaders[log]]

    def _learn(self, topic: str) -> None:
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        answer = self._ask(self._anybody(), request, METADATA_VERSION)
        self._brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        for described in answer.topics[0].partitions:
            log = Log(topic, described.partition_index)
            self._leaders.pop(log, None)
            if described.leader_id in self._brokers:
                self._leaders[log] = described.leader_id

    def _ask_coordinator(self, kind: int, key: str, request: Any, version: int) -> Any:
        if (kind, key) not in self._coordinators:
            found = self._ask(
                self._anybody(),
                FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]),
                FIND_COORDINATOR_VERSION,
            ).coordinators[0]
            if found.error_code != ErrorCode.NONE:
                raise LookupError(f"coordinator of {key}: {ErrorCode(found.error_code).name}")
            self._coordinators[kind, key] = (found.host, found.port)
        address = self._coordinators[kind, key]
        try:
            return self._ask(address, request, version)
        except OSError:
            self._coordinators.pop((kind, key), None)
            raise

    def _anybody(self) -> Address:
        self._turn += 1
        return self._bootstrap[self._turn % len(self._bootstrap)]

    def _ask(self, address: Address, request: Any, version: int) -> Any:
        if isinstance(request, ProduceRequest | EndTxnRequest | TxnOffsetCommitRequest):
            self._sent.append((address, request, version))
        try:
            return self._wire(address).ask(request, version)
        except OSError:
            self._drop(address)
            self._leaders = {
                log: leader
                for log, leader in self._leaders.items()
                if self._brokers.get(leader) != address
            }
            raise

    def _wire(self, address: Address) -> Wire:
        if address not in self._wires:
            self._wires[address] = wire = Wire(*address)
            wire.socket.settimeout(ANSWER_S)
        return self._wires[address]

    def _drop(self, address: Address) -> None:
        wire = self._wires.pop(address, None)
        if wire is not None:
            wire.socket.close()
