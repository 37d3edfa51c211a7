"""Leaders that answer slowly, nonsense or never: what is fetched from others goes on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.headers import decode_request_header
from moldau.protocol.messages.p01_fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from moldau.protocol.messages.p02_list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from moldau.protocol.messages.p18_api_versions import ApiVersion, ApiVersionsResponse
from moldau.runtime.network import AsyncioNetwork
from moldau.storage.append import RecordBatches
from tests.kit.dice import drawn_seed
from tests.kit.waiting import until_async
from tests.unit.broker.harness import BROKER_ID, OTHER_BROKER_ID, DataPath, topic_id_of
from tests.unit.broker.messages import batch
from tests.unit.broker.replica.replicas import (
    Followers,
    ScriptedLeader,
    bytes_of,
    read_frame,
    serving,
    write_frame,
)

pytestmark = pytest.mark.real

REPLICAS = (BROKER_ID, OTHER_BROKER_ID)


class AnsweringLeader(ScriptedLeader):
    """Speaks the protocol; `on_fetch` makes each answer's partition, None to leave it out."""

    def __init__(
        self,
        on_fetch: Callable[[int], PartitionData | FetchResponse | None],
        on_list_offsets: Callable[[int], int] = lambda _timestamp: 0,
        max_fetch_version: int = 17,
    ) -> None:
        super().__init__(self._serve)
        self.fetch_count = 0
        self.requests: list[FetchRequest] = []
        self._on_fetch = on_fetch
        self._on_list_offsets = on_list_offsets
        self._max_fetch_version = max_fetch_version

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await read_frame(reader)
            header, body_at = decode_request_header(memoryview(frame))
            body = memoryview(frame)[body_at:]
            if header.api_key == ApiKey.API_VERSIONS:
                message: Any = ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(api_key=1, min_version=4, max_version=self._max_fetch_version),
                        ApiVersion(api_key=2, min_version=1, max_version=9),
                    ]
                )
                self._answer(writer, header, message, tagged=False)
            elif header.api_key == ApiKey.FETCH:
                request, _ = FetchRequest.decode(body, header.api_version)
                self.requests.append(request)
                self.fetch_count += 1
                self._answer(writer, header, self._fetched(), tagged=True)
            else:
                self._answer(writer, header, self._offsets(body, header), tagged=True)
            await writer.drain()

    def _fetched(self) -> FetchResponse:
        made = self._on_fetch(self.fetch_count)
        if isinstance(made, FetchResponse):
            return made
        data = [] if made is None else [made]
        return FetchResponse(
            session_id=77,
            responses=[FetchableTopicResponse(topic_id=topic_id_of("topic"), partitions=data)],
        )

    def _offsets(self, body: Any, header: Any) -> ListOffsetsResponse:
        request, _ = ListOffsetsRequest.decode(body, header.api_version)
        timestamp = request.topics[0].partitions[0].timestamp
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name="topic",
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=0, offset=self._on_list_offsets(timestamp)
                        )
                    ],
                )
            ]
        )

    def _answer(self, writer: Any, header: Any, message: Any, *, tagged: bool) -> None:
        frame = header.correlation_id.to_bytes(4, "big") + (b"\0" if tagged else b"")
        write_frame(writer, frame + message.to_bytes(header.api_version))


def stamped(count: int, offset: int = 0, leader_epoch: int = 0) -> memoryview:
    """A batch as a leader's log holds it."""
    return memoryview(batch(count, base_offset=offset, partition_leader_epoch=leader_epoch))


def has_timer(followers: Followers) -> bool:
    """Whether a pause has begun (the other timer is the deadline of a request)."""
    return followers.clock.timer_count > 1


async def until_pausing(followers: Followers, condition: Callable[[], bool]) -> None:
    """As `until`, with the time of back-offs passing."""

    def holds() -> bool:
        followers.clock.advance(1_001)
        return condition()

    await until_async(holds)


async def test_bytes_that_are_no_protocol_cost_the_connection_alone(tmp_path: Path) -> None:
    seed = drawn_seed()
    choice = random.Random(seed)

    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(choice.randbytes(choice.randrange(1, 2_000)))
        await writer.drain()

    async with (
        DataPath(tmp_path / "leader") as leader,
        serving(leader) as server,
        ScriptedLeader(garbage) as bad,
        Followers(tmp_path / "follower") as followers,
    ):
        leader.create_topic("good", replicas=REPLICAS, isr=REPLICAS)
        followers.follow("topic", port=bad.port, leader=3)
        followers.follow("good", port=server.port("PLAINTEXT"))
        await until_pausing(followers, lambda: bad.connection_count >= 5)
        assert (
            leader.partition("good").append(RecordBatches.read(batch(5)), 1).error is ErrorCode.NONE
        )
        leader.manager.complete_ready()
        await until_async(lambda: followers.log("good").log_end_offset == 5)
        # The bad one is replaced by a real one.
        leader.create_topic("topic", replicas=REPLICAS, isr=REPLICAS)
        leader.partition("topic").append(RecordBatches.read(batch(3)), 1)
        followers.follow("topic", port=server.port("PLAINTEXT"), leader_epoch=0)

        def is_level() -> bool:
            leader.clock.advance(500)  # the fetch that waits ends
            return followers.log("topic").log_end_offset == 3

        await until_async(is_level)


@pytest.mark.parametrize(
    "records",
    [
        b"\0",
        b"\xff" * 200,
        bytes(stamped(3))[:-1],
        bytes(stamped(3))[:-1] + b"\x01",
        bytes(stamped(3, offset=5)) + bytes(stamped(1, offset=2)),
    ],
    ids=["too-short", "noise", "half", "bad-crc", "back-again"],
)
async def test_records_that_make_no_sense_are_put_off_and_said_once(
    tmp_path: Path, records: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(number: int) -> PartitionData:
        is_good = number > 4
        return PartitionData(
            high_watermark=3, log_start_offset=0, records=stamped(3) if is_good else records
        )

    def then_nothing(number: int) -> PartitionData | None:
        return answer(number) if number <= 5 else None

    async with (
        AnsweringLeader(then_nothing) as bad,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.follow("topic", port=bad.port)
        ours = followers.log("topic")
        await until_pausing(followers, lambda: ours.log_end_offset == 3)
        assert bytes_of(ours) == bytes(stamped(3))
        assert not ours.offline
    said = [record for record in caplog.records if "not appended" in record.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING


@pytest.mark.parametrize(
    "data",
    [
        PartitionData(diverging_epoch=EpochEndOffset(epoch=0, end_offset=50)),
        PartitionData(diverging_epoch=EpochEndOffset(epoch=4, end_offset=-7)),
        PartitionData(diverging_epoch=EpochEndOffset(epoch=-1, end_offset=2)),
        PartitionData(error_code=ErrorCode.KAFKA_STORAGE_ERROR),
        PartitionData(error_code=12345),
        PartitionData(high_watermark=3, records=stamped(3, leader_epoch=9)),
    ],
    ids=["no-divergence", "negative-end", "no-epoch", "storage", "unknown", "newer-epoch"],
)
async def test_answers_that_lead_nowhere_are_not_asked_for_without_a_pause(
    tmp_path: Path, data: PartitionData
) -> None:
    async with (
        AnsweringLeader(lambda _number: data) as bad,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.follow("topic", port=bad.port)
        (fetcher,) = followers.fetchers.fetchers
        for fetch_count in range(1, 4):
            # Answered, taken back from the session, and then nothing until the pause is over.
            await until_async(
                lambda: fetcher.partitions.waiting_count == 1 and fetcher.partitions.is_idle
            )
            sent = [each for each in bad.requests if each.topics]
            assert len(sent) == fetch_count
            followers.clock.advance(1_001)
        assert followers.log("topic").log_end_offset == 0


async def test_out_of_range_for_ever_is_asked_about_with_pauses(tmp_path: Path) -> None:
    out_of_range = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    async with (
        AnsweringLeader(lambda _number: out_of_range) as bad,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.follow("topic", port=bad.port)
        (fetcher,) = followers.fetchers.fetchers
        await until_async(
            lambda: fetcher.partitions.waiting_count == 1 and fetcher.partitions.is_idle
        )
        count = bad.fetch_count
        await asyncio.sleep(0)
        assert bad.fetch_count == count
        assert not followers.log("topic").offline


async def test_a_follower_whose_log_has_a_newer_epoch_than_its_leader_is_damaged(
    tmp_path: Path,
) -> None:
    """The leader does not know the epoch, and says so for ever: there is nothing to cut."""
    out_of_range = PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
    async with (
        AnsweringLeader(
            lambda number: out_of_range if number == 1 else None,
            lambda timestamp: 9 if timestamp == -1 else 0,
        ) as leader,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.become("topic", leader_epoch=7, leader=OTHER_BROKER_ID)
        followers.partition("topic").append(RecordBatches.read(batch(1)), 1)
        ours = followers.log("topic")
        followers.partition("topic").core.leader_epoch = 2
        followers.follow("topic", port=leader.port, leader_epoch=3)
        await until_async(lambda: ours.offline)
        assert "leader epoch 7 is in it, the leader has 3" in ours.offline_reason


async def test_a_follower_ahead_of_an_unclean_leader_is_cut_to_its_end(tmp_path: Path) -> None:
    def answer(number: int) -> PartitionData | None:
        if number == 1:
            return PartitionData(error_code=ErrorCode.OFFSET_OUT_OF_RANGE)
        return None

    async with (
        AnsweringLeader(answer, lambda timestamp: 3 if timestamp == -1 else 0) as leader,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.become("topic", leader_epoch=0, leader=OTHER_BROKER_ID)
        for _ in range(5):
            followers.partition("topic").append(RecordBatches.read(batch(1)), 1)
        followers.follow("topic", port=leader.port, leader_epoch=1)
        await until_async(lambda: followers.log("topic").log_end_offset == 3)
        assert followers.log("topic").log_start_offset == 0


@pytest.mark.parametrize(
    "error", [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
)
async def test_a_leader_that_refuses_every_fetch_is_asked_with_pauses(
    tmp_path: Path, error: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = FetchResponse(error_code=error, session_id=0, responses=[])
    async with (
        AnsweringLeader(lambda _number: refusal) as bad,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.follow("topic", port=bad.port)
        for count in range(1, 4):
            await until_async(lambda count=count: bad.fetch_count == count)  # type: ignore[misc]
            await until_async(lambda: has_timer(followers))
            assert bad.fetch_count == count
            followers.clock.advance(1_001)
    assert len([each for each in caplog.records if error.name in each.getMessage()]) == 1


async def test_session_errors_for_ever_are_asked_about_with_pauses(tmp_path: Path) -> None:
    refusal = FetchResponse(
        error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH, session_id=0, responses=[]
    )
    async with (
        AnsweringLeader(lambda _number: refusal) as bad,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.follow("topic", port=bad.port)
        (fetcher,) = followers.fetchers.fetchers
        await until_async(lambda: bool(fetcher._problem))
        assert bad.fetch_count == 2


async def test_a_leader_too_old_to_know_topic_ids_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        AnsweringLeader(lambda _number: None, max_fetch_version=12) as old,
        Followers(tmp_path / "follower") as followers,
    ):
        followers.follow("topic", port=old.port)
        await until_async(lambda: "knows no topic ids" in caplog.text)
        assert old.fetch_count == 0


async def test_a_leader_that_never_answers_is_given_up_in_its_time(tmp_path: Path) -> None:
    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_frame(reader)

    async with (
        DataPath(tmp_path / "leader") as leader,
        serving(leader) as server,
        ScriptedLeader(silence) as silent,
        Followers(tmp_path / "follower") as followers,
    ):
        leader.create_topic("good", replicas=REPLICAS, isr=REPLICAS)
        followers.follow("topic", port=silent.port, leader=3)
        followers.follow("good", port=server.port("PLAINTEXT"))
        leader.partition("good").append(RecordBatches.read(batch(2)), 1)
        leader.manager.complete_ready()
        await until_async(lambda: followers.log("good").log_end_offset == 2)
        await until_async(lambda: silent.connection_count == 1)

        def has_reconnected() -> bool:
            followers.clock.advance(5_000)
            return silent.connection_count >= 3

        await until_async(has_reconnected)
        # Ends although a connection is just being made.
        await asyncio.wait_for(followers.fetchers.close(), 10)
        assert followers.log("topic").log_end_offset == 0
        assert followers.faults == []


async def test_an_answer_for_an_earlier_epoch_changes_nothing(tmp_path: Path) -> None:
    state = {"number": 0}

    def answer(number: int) -> PartitionData | None:
        state["number"] = number
        if number == 1:
            # While this is on its way the replica hears of another leader epoch.
            followers.become("topic", leader_epoch=1, leader=BROKER_ID)
            return PartitionData(high_watermark=5, records=stamped(5))
        return None

    async with Followers(tmp_path / "follower") as followers, AnsweringLeader(answer) as leader:
        followers.follow("topic", port=leader.port)
        await until_async(lambda: state["number"] >= 2)
        assert followers.log("topic").log_end_offset == 0
        again = next(each for each in leader.requests[1:] if each.topics)
        assert again.topics[0].partitions[0].current_leader_epoch == 1


class _Unreachable(AsyncioNetwork):
    """Connections fail with an exception that has no text, as some of asyncio's do."""

    __slots__ = ("fault",)

    def __init__(self, fault: Exception) -> None:
        self.fault = fault

    async def connect(self, *_: object, **__: object) -> Any:
        raise self.fault


@pytest.mark.parametrize(
    ("fault", "reason"),
    [(TimeoutError(), "no answer in time"), (ConnectionResetError(), "ConnectionResetError")],
)
async def test_a_fetcher_names_the_reason_of_a_fault_without_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Exception, reason: str
) -> None:
    async with Followers(tmp_path, network=_Unreachable(fault)) as followers:
        followers.follow("topic", port=9)
        await until_async(lambda: "trying again" in caplog.text)
    assert f"broker {BROKER_ID} at 127.0.0.1:9: {reason}; trying again" in caplog.text
