"""Members of groups, of both protocols, under every error and move: no offset and record lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Set
from typing import Any

import pytest

from moldau.client import (
    Consumer,
    KafkaError,
    OffsetAndMetadata,
    RebalanceListener,
    TopicPartition,
    sync,
)
from moldau.client.errors import (
    CommitFailed,
    FencedInstanceId,
    GroupAuthorizationFailed,
    RebalanceInProgress,
)
from moldau.protocol import ApiKey, ErrorCode
from tests.fake_broker import (
    AnswerError,
    CutRequest,
    CutResponse,
    FakeCluster,
    Received,
    Run,
    Settings,
    Stall,
)
from tests.unit.client.faults.harness import (
    MEMBER,
    ends,
    outcome_text,
    partition,
    poll_until,
    take,
    values_of,
)

PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])

MOVED = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

PASSING: dict[str, dict[ApiKey, tuple[ErrorCode, ...]]] = {
    "classic": {
        ApiKey.FIND_COORDINATOR: (*MOVED, LOADING),
        ApiKey.JOIN_GROUP: (
            *MOVED,
            LOADING,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.REBALANCE_IN_PROGRESS,
        ),
        ApiKey.SYNC_GROUP: (
            *MOVED,
            LOADING,
            ErrorCode.REBALANCE_IN_PROGRESS,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
        ),
        ApiKey.OFFSET_FETCH: (
            *MOVED,
            LOADING,
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
            ErrorCode.REQUEST_TIMED_OUT,
        ),
    },
    "consumer": {
        ApiKey.FIND_COORDINATOR: (*MOVED, LOADING),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (
            *MOVED,
            LOADING,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.FENCED_MEMBER_EPOCH,
        ),
        ApiKey.OFFSET_FETCH: (
            *MOVED,
            LOADING,
            ErrorCode.UNSTABLE_OFFSET_COMMIT,
            ErrorCode.STALE_MEMBER_EPOCH,
            ErrorCode.REQUEST_TIMED_OUT,
        ),
    },
}
CASES = pytest.mark.parametrize(
    ("protocol", "api_key"),
    [(protocol, api_key) for protocol, apis in PASSING.items() for api_key in apis],
    ids=lambda each: getattr(each, "name", each),
)

COMMIT_PASSING = (
    *MOVED,
    LOADING,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


def _consumer(cluster: FakeCluster, protocol: str, **settings: Any) -> Consumer:
    consumer = Consumer(
        cluster.bootstrap_servers, **{**MEMBER, "group_protocol": protocol, **settings}
    )
    consumer.subscribe(["t"])
    return consumer


def _cluster(node_count: int = 2, partition_count: int = 1) -> FakeCluster:
    settings = Settings(consumer_heartbeat_interval_ms=20)
    cluster = FakeCluster(node_count, topics={"t": partition_count}, settings=settings)
    for index in range(partition_count):
        cluster.fill("t", [b"%d-%d" % (index, number) for number in range(3)], index)
    return cluster


@CASES
async def test_every_passing_error_of_a_join_is_overcome(protocol: str, api_key: ApiKey):
    failed = []
    for code in PASSING[protocol][api_key]:
        async with _cluster() as cluster:
            level = "partition" if code == ErrorCode.UNSTABLE_OFFSET_COMMIT else "top"
            fault = cluster.fault(api_key, AnswerError(code, level=level), times=2)
            try:
                async with _consumer(cluster, protocol) as consumer:
                    got = values_of(await take(consumer, 3, code.name))
                    if got != [b"0-0", b"0-1", b"0-2"]:
                        failed.append(f"{code.name}: got {got}")
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if not fault.fired_count:
                failed.append(f"{code.name} was not met")
    assert failed == []


@PROTOCOLS
async def test_every_passing_error_of_a_heartbeat_is_overcome(protocol: str):
    codes = {
        "classic": (
            ApiKey.HEARTBEAT,
            (
                *MOVED,
                ErrorCode.REBALANCE_IN_PROGRESS,
                ErrorCode.ILLEGAL_GENERATION,
                ErrorCode.UNKNOWN_MEMBER_ID,
            ),
        ),
        "consumer": (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            (*MOVED, LOADING, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID),
        ),
    }
    api_key, expected = codes[protocol]
    failed = []
    async with _cluster() as cluster, _consumer(cluster, protocol) as consumer:
        assert len(await take(consumer, 3)) == 3
        await ends(consumer.commit(), "the commit")
        for number, code in enumerate(expected):
            fault = cluster.fault(api_key, AnswerError(code))
            try:
                await poll_until([consumer], lambda f=fault: f.fired_count, code.name)
                cluster.fill("t", [b"%d" % number])
                got = values_of(await take(consumer, 1, code.name))
                await ends(consumer.commit(), f"commit after {code.name}")
                if got != [b"%d" % number]:
                    failed.append(f"{code.name}: got {got}")
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
        assert failed == []
        assert cluster.groups.committed("g", "t") == 3 + len(expected)


@PROTOCOLS
async def test_every_passing_error_of_a_commit_is_retried(protocol: str):
    failed = []
    async with _cluster() as cluster, _consumer(cluster, protocol) as consumer:
        assert len(await take(consumer, 3)) == 3
        for number, code in enumerate(COMMIT_PASSING):
            fault = cluster.fault(ApiKey.OFFSET_COMMIT, AnswerError(code), times=2)
            try:
                wanted = {partition(0): OffsetAndMetadata(number)}
                await ends(consumer.commit(wanted), code.name)
            except (KafkaError, AssertionError) as error:
                failed.append(f"{code.name}: {outcome_text(error)}")
            if fault.fired_count != 2 or cluster.groups.committed("g", "t") != number:
                failed.append(f"{code.name}: met {fault.fired_count} times, not committed")
    assert failed == []


COMMIT_REFUSALS = [
    (ErrorCode.UNKNOWN_MEMBER_ID, CommitFailed),
    (ErrorCode.ILLEGAL_GENERATION, CommitFailed),
    (ErrorCode.REBALANCE_IN_PROGRESS, RebalanceInProgress),
    (ErrorCode.FENCED_INSTANCE_ID, FencedInstanceId),
    (ErrorCode.GROUP_AUTHORIZATION_FAILED, GroupAuthorizationFailed),
    (ErrorCode.OFFSET_METADATA_TOO_LARGE, KafkaError),
]


@pytest.mark.parametrize(
    ("code", "kind"), COMMIT_REFUSALS, ids=lambda each: getattr(each, "name", None)
)
async def test_a_refused_commit_is_one_typed_error(code: ErrorCode, kind: type[KafkaError]):
    async with _cluster() as cluster, _consumer(cluster, "classic") as consumer:
        assert len(await take(consumer, 3)) == 3
        cluster.fault(ApiKey.OFFSET_COMMIT, AnswerError(code))
        with pytest.raises(kind):
            await ends(consumer.commit(), code.name)
        assert cluster.groups.committed("g", "t") is None


@PROTOCOLS
async def test_coordinators_may_move_at_any_time(protocol: str):
    for api_key in (*PASSING[protocol], ApiKey.OFFSET_COMMIT):
        async with _cluster() as cluster:
            cluster.fault(api_key, Run(lambda c=cluster: c.move_coordinator("group", "g")))
            async with _consumer(cluster, protocol) as consumer:
                got = await take(consumer, 3, api_key.name)
                assert len(got) == 3, api_key.name
                await ends(consumer.commit(), f"the commit, {api_key.name}")
                cluster.move_coordinator("group", "g")
                cluster.fill("t", [b"after"])
                assert values_of(await take(consumer, 1, api_key.name)) == [b"after"]
                await ends(_commit(consumer), f"the second commit, {api_key.name}")
            assert cluster.groups.committed("g", "t") == 4, api_key.name


async def _commit(consumer: Consumer) -> list[Any]:
    """Commit, through rebalances; the records that came until then."""
    records: list[Any] = []
    while True:
        try:
            await consumer.commit()
            return records
        except RebalanceInProgress:
            for batch in (await consumer.getmany(timeout_ms=20)).values():
                records += batch


@PROTOCOLS
@pytest.mark.parametrize("action", [CutRequest(20), CutResponse(0), CutResponse(9)])
async def test_lost_connections_are_opened_again(protocol: str, action: Any):
    beat = {
        "classic": ApiKey.HEARTBEAT,
        "consumer": ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }[protocol]
    for api_key in {*PASSING[protocol], beat, ApiKey.OFFSET_COMMIT}:
        async with _cluster() as cluster:
            fault = cluster.fault(api_key, action)
            async with _consumer(cluster, protocol) as consumer:
                assert len(await take(consumer, 3, api_key.name)) == 3
                await ends(_commit(consumer), f"the commit, {api_key.name}")
                await poll_until([consumer], lambda f=fault: f.fired_count, api_key.name)
                cluster.fill("t", [b"after"])
                assert values_of(await take(consumer, 1, api_key.name)) == [b"after"]
            assert cluster.groups.committed("g", "t") == 3, api_key.name


@PROTOCOLS
async def test_members_come_and_go_and_everything_is_read(protocol: str):
    async with _cluster(partition_count=4) as cluster:
        first, second = _consumer(cluster, protocol), _consumer(cluster, protocol)
        async with first:
            records = await poll_until([first], lambda: len(first.assignment()) == 4, "first")
            async with second:
                records += await poll_until(
                    [first, second],
                    lambda: len(first.assignment()) == len(second.assignment()) == 2,
                    "both",
                )
                assert first.assignment().isdisjoint(second.assignment())
                for consumer in (first, second):
                    records += await ends(_commit(consumer), "commit")
            records += await poll_until([first], lambda: len(first.assignment()) == 4, "alone")
            while len({record.value for record in records}) < 12:
                records += await take(first, 1, "the rest")
        assert cluster.groups.get("g").is_empty


@PROTOCOLS
async def test_a_member_that_the_group_lost_joins_again_and_says_so(protocol: str):
    async with _cluster() as cluster, _consumer(cluster, protocol) as consumer:
        assert len(await take(consumer, 3)) == 3
        group = cluster.groups.get("g")
        if protocol == "classic":
            group.classic.remove(next(iter(group.classic.members.values())))
        else:
            group.consumer.remove(next(iter(group.consumer.members.values())))
        await poll_until(
            [consumer], lambda: not group.is_empty and consumer.assignment(), "the new join"
        )
        # Nothing was committed: it is read again.
        assert len(await take(consumer, 3, "reading again")) == 3


class _SlowListener(RebalanceListener):
    """Hears of a revocation until the group has lost the member."""

    def __init__(self) -> None:
        self.is_told = asyncio.Event()
        self.may_return = asyncio.Event()

    async def on_partitions_revoked(self, partitions: Set[TopicPartition]) -> None:
        self.is_told.set()
        await self.may_return.wait()


@PROTOCOLS
@pytest.mark.timeout(60)
async def test_a_member_that_is_lost_while_its_listener_runs_joins_again(protocol: str):
    listener = _SlowListener()
    async with _cluster(partition_count=2) as cluster, _consumer(cluster, protocol) as first:
        first.subscribe(["t"], listener=listener)
        await poll_until([first], lambda: len(first.assignment()) == 2, "first")
        group = cluster.groups.get("g")
        members = (group.classic if protocol == "classic" else group.consumer).members
        mine = next(iter(members.values()))
        async with _consumer(cluster, protocol) as second:
            polling = asyncio.ensure_future(
                poll_until(
                    [first, second],
                    lambda: len(first.assignment()) == len(second.assignment()) == 1,
                    "both",
                )
            )
            await ends(listener.is_told.wait(), "the revocation")
            if protocol == "classic":
                group.classic.remove(mine)
                fault = ApiKey.HEARTBEAT
            else:
                group.consumer.remove(mine)
                fault = ApiKey.CONSUMER_GROUP_HEARTBEAT
            answered = cluster.recorder.count(fault)
            await cluster.until(lambda: cluster.recorder.count(fault) > answered + 3)
            listener.may_return.set()
            await ends(polling, "both")
            assert first.assignment().isdisjoint(second.assignment())


async def test_a_static_member_whose_id_is_taken_gets_an_error():
    async with _cluster() as cluster:
        first = _consumer(cluster, "classic", group_instance_id="i")
        second = _consumer(cluster, "classic", group_instance_id="i")
        async with first, second:
            assert len(await take(first, 3)) == 3
            assert len(await take(second, 3)) == 3
            with pytest.raises(FencedInstanceId, match=r"group\.instance\.id"):
                await ends(_poll_for_ever(first), "the fenced one")


async def _poll_for_ever(consumer: Consumer) -> None:
    while True:
        await consumer.getmany(timeout_ms=50)


@PROTOCOLS
async def test_a_user_that_may_not_join_gets_an_error(protocol: str):
    api_key = {
        "classic": ApiKey.JOIN_GROUP,
        "consumer": ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }[protocol]
    async with _cluster() as cluster, _consumer(cluster, protocol) as consumer:
        cluster.fault(api_key, AnswerError(ErrorCode.GROUP_AUTHORIZATION_FAILED), times=None)
        with pytest.raises(GroupAuthorizationFailed, match="group"):
            await ends(_poll_for_ever(consumer), "the refusal")


@PROTOCOLS
async def test_an_error_of_leaving_is_no_error_of_close(protocol: str):
    api_key = {
        "classic": ApiKey.LEAVE_GROUP,
        "consumer": ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }[protocol]
    codes = (*MOVED, LOADING, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    for code in codes:
        async with _cluster() as cluster:
            consumer = _consumer(cluster, protocol)
            async with consumer:
                assert len(await take(consumer, 3, code.name)) == 3
                leaves = {"classic": lambda _: True, "consumer": _leaves}[protocol]
                fault = cluster.fault(api_key, AnswerError(code), when=leaves)
                await ends(consumer.close(), f"close, {code.name}")
            assert fault.fired_count == 1, code.name


def _leaves(received: Received) -> bool:
    return bool(received.message.member_epoch < 0)


@PROTOCOLS
async def test_close_ends_although_the_coordinator_is_silent(protocol: str):
    async with _cluster() as cluster:
        consumer = _consumer(cluster, protocol, enable_auto_commit=True)
        async with consumer:
            assert len(await take(consumer, 3)) == 3
            for api_key in (
                ApiKey.OFFSET_COMMIT,
                ApiKey.LEAVE_GROUP,
                ApiKey.HEARTBEAT,
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ):
                cluster.fault(api_key, Stall(), times=None)
            with contextlib.suppress(KafkaError):
                await ends(consumer.close(timeout_ms=200), "close")


@PROTOCOLS
async def test_automatic_commits_are_of_what_was_handed_out(protocol: str):
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 10}
    async with _cluster() as cluster:
        async with _consumer(cluster, protocol, max_poll_records=1, **settings) as consumer:
            assert len(await take(consumer, 2)) == 2
            await poll_until(
                [consumer], lambda: cluster.groups.committed("g", "t") == 3, "auto commit"
            )
        async with _consumer(cluster, protocol) as consumer:
            cluster.fill("t", [b"next"])
            assert values_of(await take(consumer, 1)) == [b"next"]


@PROTOCOLS
@pytest.mark.parametrize("ending", [None, ValueError, asyncio.CancelledError])
async def test_leaving_by_an_exception_commits_nothing_automatically(
    protocol: str, ending: type[BaseException] | None
):
    async with _cluster() as cluster:
        with contextlib.suppress(ValueError, asyncio.CancelledError):
            async with _consumer(cluster, protocol, enable_auto_commit=True) as consumer:
                assert len(await take(consumer, 3)) == 3
                await consumer.commit({partition(0): OffsetAndMetadata(1)})
                if ending is not None:
                    raise ending
        assert cluster.groups.committed("g", "t") == (3 if ending is None else 1)


@pytest.mark.real
@pytest.mark.parametrize("is_left_by_an_exception", [False, True])
async def test_the_blocking_consumer_too(is_left_by_an_exception: bool):
    async with _cluster() as cluster:
        settings = {**MEMBER, "enable_auto_commit": True}

        def read() -> None:
            with sync.Consumer(cluster.bootstrap_servers, **settings) as consumer:
                consumer.subscribe(["t"])
                read_count = 0
                while read_count < 3:
                    read_count += sum(map(len, consumer.getmany(timeout_ms=100).values()))
                consumer.commit({partition(0): OffsetAndMetadata(1)})
                if is_left_by_an_exception:
                    raise ValueError

        with contextlib.suppress(ValueError):
            await asyncio.to_thread(read)
        assert cluster.groups.committed("g", "t") == (1 if is_left_by_an_exception else 3)


@PROTOCOLS
async def test_a_commit_that_is_tried_again_does_not_overwrite_a_later_one(protocol: str):
    async with (
        _cluster() as cluster,
        _consumer(cluster, protocol, retry_backoff_ms=300) as consumer,
    ):
        assert len(await take(consumer, 3)) == 3
        fault = cluster.fault(
            ApiKey.OFFSET_COMMIT, AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), times=1
        )
        first = asyncio.create_task(consumer.commit({partition(0): OffsetAndMetadata(1)}))
        await ends(fault.fired(), "the first try")
        await ends(consumer.commit({partition(0): OffsetAndMetadata(2)}), "the later commit")
        await ends(first, "the first commit")
        assert cluster.groups.committed("g", "t") == 2
        # Later still, and lower: the application's to decide.
        await ends(consumer.commit({partition(0): OffsetAndMetadata(1)}), "back")
        assert cluster.groups.committed("g", "t") == 1


@PROTOCOLS
@pytest.mark.parametrize(
    ("trouble", "committed"),
    [
        (AnswerError(ErrorCode.COORDINATOR_NOT_AVAILABLE, after_apply=True), 2),
        (CutResponse(), 2),
        (Stall(after_apply=True), 2),
        (AnswerError(ErrorCode.OFFSET_METADATA_TOO_LARGE), 1),
    ],
    ids=["not in time", "lost", "cancelled", "refused"],
)
async def test_a_commit_that_is_tried_again_stays_behind_no_later_one_that_is_in_doubt(
    protocol: str, trouble: Any, committed: int
):
    """The later one is not tried again. Where it was refused, the first one commits its own."""
    async with (
        _cluster() as cluster,
        _consumer(cluster, protocol, retry_backoff_ms=300) as consumer,
    ):
        assert len(await take(consumer, 3)) == 3
        loading = AnswerError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        fault = cluster.fault(ApiKey.OFFSET_COMMIT, loading, times=1)
        first = asyncio.create_task(consumer.commit({partition(0): OffsetAndMetadata(1)}))
        await ends(fault.fired(), "the first try")
        fault = cluster.fault(ApiKey.OFFSET_COMMIT, trouble, times=1)
        outcomes: list[KafkaError | None] = []
        later = {partition(0): OffsetAndMetadata(2)}
        if isinstance(trouble, Stall):
            call = asyncio.create_task(consumer.commit(later))
            await ends(fault.fired(), "the later commit")
            call.cancel()
            fault.release()
        else:
            consumer.commit_nowait(later, lambda _offsets, error: outcomes.append(error))
        await ends(first, "the first commit")
        assert None not in outcomes
        assert fault.fired_count == 1
        assert cluster.groups.committed("g", "t") == committed


@PROTOCOLS
@pytest.mark.parametrize("is_known", [False, True])
async def test_a_position_in_a_deleted_topic_is_not_committed_for_the_next_one_of_its_name(
    protocol: str, is_known: bool
):
    """Whether or not the client knows of the new topic when it is asked to commit."""
    async with _cluster() as cluster:
        async with _consumer(cluster, protocol) as consumer:
            assert len(await take(consumer, 3)) == 3
            former = consumer.positions()
            cluster.delete_topic("t")
            cluster.create_topic("t")
            cluster.fill("t", [b"new", b"newer"])
            if is_known:
                assert values_of(await take(consumer, 2)) == [b"new", b"newer"]
            await ends(consumer.commit(former), "the commit")
        async with _consumer(cluster, protocol) as consumer:
            assert values_of(await take(consumer, 2)) == [b"new", b"newer"]


@PROTOCOLS
async def test_a_cancelled_poll_leaves_the_member_whole(protocol: str):
    async with _cluster() as cluster, _consumer(cluster, protocol) as consumer:
        got: list[Any] = []
        for _ in range(60):
            polling = asyncio.ensure_future(consumer.getmany(timeout_ms=10_000))
            await asyncio.sleep(0)
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                got += [each for batch in (await polling).values() for each in batch]
        if len(got) < 3:
            got += await take(consumer, 3 - len(got))
        assert values_of(got) == [b"0-0", b"0-1", b"0-2"]
        await ends(consumer.commit(), "the commit")
