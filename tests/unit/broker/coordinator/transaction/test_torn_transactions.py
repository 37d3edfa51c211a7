"""The schedules that tear transactions where a producer's transactions share an epoch (ADR 0013):
reachable with transaction version 1, as in Apache Kafka, and not with version 2.
"""

from __future__ import annotations

import copy

from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p26_end_txn import EndTxnRequest
from moldau.protocol.messages.p27_write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from tests.kit.waiting import until_async
from tests.unit.broker.coordinator.transaction.test_transactions_in_a_broker import (
    ID,
    Client,
    authorizer,
    client,
    committed,
    path,
)
from tests.unit.broker.harness import DataPath
from tests.unit.broker.messages import only, produce

__all__ = ["authorizer", "client", "path"]
"""Fixtures."""


async def begin(client: Client, *indexes: int) -> None:
    """The classic way adds partitions before it writes."""
    if client.is_old:
        assert await client.add(*indexes) is ErrorCode.NONE


def end_request(client: Client, *, is_commit: bool) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=ID,
        producer_id=client.producer_id,
        producer_epoch=client.producer_epoch,
        committed=is_commit,
    )


async def settle(path: DataPath, *indexes: int) -> None:
    for index in indexes:
        log = path.log("out", index)
        await until_async(lambda log=log: log.last_stable_offset == log.log_end_offset)


async def test_a_late_commit(path: DataPath, client: Client) -> None:
    """EndTxn of the first transaction arrives again in the middle of the second one."""
    end_version = 4 if client.is_old else 5
    await begin(client, 0)
    await client.send(b"the first one")
    late = end_request(client, is_commit=True)
    await client.end(True)

    await begin(client, 0)
    await client.send(b"half of the second one")
    answer = await path.ask(late, end_version)
    if client.is_old:
        # Nothing distinguishes it from a commit of the second one.
        assert answer.error_code == ErrorCode.NONE
        await settle(path, 0)
        await begin(client, 1)
        assert await client.send(b"its other half", 1) is ErrorCode.NONE
        await client.end(False)
        assert committed(path, 0) == [b"the first one", b"half of the second one"], "torn"
        assert committed(path, 1) == []
        return
    assert ErrorCode.of(answer.error_code) in (ErrorCode.NONE, ErrorCode.PRODUCER_FENCED)
    assert await client.send(b"its other half", 1) is ErrorCode.NONE
    assert committed(path, 0) == [b"the first one"]
    await client.end(False)
    assert committed(path, 0, 2) == committed(path, 1) == []


async def test_a_late_abort_loses_what_was_to_be_committed(path: DataPath, client: Client) -> None:
    end_version = 4 if client.is_old else 5
    await begin(client, 0)
    await client.send(b"the first one")
    late = end_request(client, is_commit=False)
    await client.end(False)

    await begin(client, 0)
    await client.send(b"half of the second one")
    answer = await path.ask(late, end_version)
    if client.is_old:
        assert answer.error_code == ErrorCode.NONE
        await settle(path, 0)
        await begin(client, 1)
        await client.send(b"its other half", 1)
        await client.end(True)
        assert committed(path, 0, 2) == [], "lost"
        assert committed(path, 1) == [b"its other half"]
        return
    await client.send(b"its other half", 1)
    await client.end(True)
    assert committed(path, 0, 2) == [b"half of the second one"]
    assert committed(path, 1) == [b"its other half"]


async def test_a_late_marker(path: DataPath, client: Client) -> None:
    """WriteTxnMarkers of the first transaction arrives at the partition once more."""
    await begin(client, 0)
    await client.send(b"the first one")
    version = 0 if client.is_old else 2
    epoch = client.producer_epoch
    await client.end(True)
    assert client.producer_epoch == epoch + (not client.is_old)
    late = WriteTxnMarkersRequest(
        markers=[
            WritableTxnMarker(
                producer_id=client.producer_id,
                producer_epoch=client.producer_epoch,
                transaction_result=True,
                coordinator_epoch=0,
                transaction_version=version,
                topics=[WritableTxnMarkerTopic(name="out", partition_indexes=[0])],
            )
        ]
    )
    await begin(client, 0)
    await client.send(b"the second one")
    (result,) = (await path.ask(late, 2)).markers
    error = ErrorCode.of(result.topics[0].partitions[0].error_code)
    if client.is_old:
        assert error is ErrorCode.NONE
        assert committed(path, 0, 2) == [b"the second one"], "before anybody committed it"
        return
    assert error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert committed(path, 0, 2) == []
    await client.end(False)
    assert committed(path, 0, 2) == []


async def test_late_records(path: DataPath, client: Client) -> None:
    """A batch of the first transaction arrives when that is over: after its marker, in the middle
    of the second one, and at a partition in which the first one had no part.
    """
    await begin(client, 0)
    await client.send(b"the first one")
    api_version = 10 if client.is_old else 12
    zombie = copy.copy(client)
    zombie.sequences = dict(client.sequences)
    late = [
        produce(
            {("out", index): zombie.records(b"late value", index)},
            api_version=api_version,
            transactional_id=ID,
        )
        for index in (0, 1)
    ]
    await client.end(True)
    told = [ErrorCode.of(only(await path.ask(each, api_version)).error_code) for each in late]
    refused = ErrorCode.INVALID_TXN_STATE if client.is_old else ErrorCode.INVALID_PRODUCER_EPOCH
    assert told == [refused, refused]
    assert path.log("out", 1).log_end_offset == 0, "nothing hangs there"

    await begin(client, 0)
    await client.send(b"the second one")
    error = ErrorCode.of(only(await path.ask(late[0], api_version)).error_code)
    assert error is (ErrorCode.NONE if client.is_old else ErrorCode.INVALID_PRODUCER_EPOCH)
    await client.end(True)
    expected = [b"the first one", b"the second one"]
    assert committed(path, 0) == expected, "with one epoch its sequence makes it a copy"
