"""Registration, heartbeats and controlled shutdown against a scripted controller."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from moldau.broker.lifecycle.broker_lifecycle import (
    BrokerLifecycle,
    BrokerState,
    RegistrationRefused,
)
from moldau.broker.lifecycle.controller_channel import ControllerUnavailable
from moldau.metadata.image import MetadataDelta, MetadataImage, Provenance
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from moldau.protocol.messages.p63_broker_heartbeat import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
)
from moldau.protocol.metadata_records import FeatureLevelRecord, RegisterBrokerRecord
from moldau.protocol.schema import Message
from moldau.runtime import restarts
from tests.kit.waiting import until_async


class ScriptedController:
    """Registers at once; heartbeats as the test says."""

    def __init__(self) -> None:
        self.registrations: list[Callable[[], Message]] = []
        self.heartbeats: list[BrokerHeartbeatRequest] = []
        self.is_fenced = True
        self.should_shut_down = False
        self.heartbeat_error = ErrorCode.NONE
        self.is_reachable = True
        self.beaten = asyncio.Event()
        self.is_metadata_here = asyncio.Event()
        self.is_metadata_here.set()

    async def send(self, request: Message, principal: str, *, timeout_ms: int = 0) -> Any:
        if isinstance(request, BrokerRegistrationRequest):
            if self.registrations:
                return self.registrations.pop(0)()
            return BrokerRegistrationResponse(broker_epoch=17)
        assert isinstance(request, BrokerHeartbeatRequest)
        self.heartbeats.append(request)
        self.beaten.set()
        if not self.is_reachable:
            raise ControllerUnavailable("nobody leads")
        return BrokerHeartbeatResponse(
            error_code=self.heartbeat_error,
            is_fenced=self.is_fenced,
            should_shut_down=self.should_shut_down,
        )

    async def catch_up(self) -> None:
        """The broker has all metadata once the test says so."""
        if not self.is_reachable:
            raise ControllerUnavailable("nobody leads")
        await self.is_metadata_here.wait()

    async def beats(self, count: int = 2) -> None:
        """Return when so many more heartbeats have come."""
        wanted = len(self.heartbeats) + count
        async with asyncio.timeout(10):
            while len(self.heartbeats) < wanted:
                self.beaten.clear()
                await self.beaten.wait()


def lifecycle(controller: ScriptedController, **settings: int) -> BrokerLifecycle:
    made = BrokerLifecycle(
        controller,
        BrokerRegistrationRequest(
            broker_id=1, cluster_id="c", incarnation_id=uuid.UUID(int=5), rack=None
        ),
        heartbeat_interval_ms=settings.get("heartbeat_interval_ms", 5),
        registration_timeout_ms=settings.get("registration_timeout_ms", 5_000),
        confirmed_for_ms=settings.get("confirmed_for_ms", 60_000),
        catch_up=controller.catch_up,
        metadata_offset=lambda: 99,
        offline_log_directories=list,
    )
    made.move_to(BrokerState.STARTING)
    return made


async def test_it_serves_only_after_it_is_unfenced() -> None:
    controller = ScriptedController()
    broker = lifecycle(controller)
    assert await broker.register() == 17
    broker.start_heartbeats()
    waiting = asyncio.create_task(broker.wait_unfenced())
    await asyncio.wait_for(controller.beaten.wait(), 5)
    assert not waiting.done()
    controller.is_fenced = False
    await asyncio.wait_for(waiting, 5)
    assert controller.heartbeats[0].broker_epoch == 17
    assert controller.heartbeats[0].current_metadata_offset == 99
    await broker.stop()


async def test_it_is_confirmed_by_heartbeats_that_let_it_lead() -> None:
    controller = ScriptedController()
    broker = lifecycle(controller)
    await broker.register()
    broker.start_heartbeats()
    await controller.beats()
    assert not broker.is_confirmed()  # fenced so far
    controller.is_fenced = False
    await controller.beats()
    assert broker.is_confirmed()
    controller.is_reachable = False
    await controller.beats(3)
    assert broker.is_confirmed()
    await broker.stop()


async def test_after_a_silence_it_is_confirmed_only_with_the_metadata_of_that_time() -> None:
    """Its session may have been over: the heartbeat begins another one, whichever controller leads
    by now.
    """
    controller = ScriptedController()
    broker = lifecycle(controller, confirmed_for_ms=20)
    await broker.register()
    controller.is_fenced = False
    controller.is_metadata_here.clear()
    broker.start_heartbeats()
    await controller.beats(3)
    assert not broker.is_confirmed()
    controller.is_metadata_here.set()
    await until_async(lambda: answered(broker.is_confirmed()), what="confirmed")
    controller.is_reachable = False
    await until_async(lambda: answered(not broker.is_confirmed()), what="a long silence")
    controller.is_metadata_here.clear()
    controller.is_reachable = True
    await controller.beats(3)
    assert not broker.is_confirmed()
    controller.is_metadata_here.set()
    await until_async(lambda: answered(broker.is_confirmed()), what="confirmed again")
    await broker.stop()


async def answered(value: bool) -> bool:
    """For a condition that is awaited."""
    return value


@pytest.mark.parametrize(
    "code", [ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION]
)
async def test_a_final_refusal_is_raised_with_its_code(code: ErrorCode) -> None:
    controller = ScriptedController()
    controller.registrations = [lambda: BrokerRegistrationResponse(error_code=code)]
    with pytest.raises(RegistrationRefused, match=code.name):
        await lifecycle(controller).register()


async def test_a_passing_refusal_is_tried_again() -> None:
    controller = ScriptedController()
    controller.registrations = [
        lambda: BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    ]
    assert await lifecycle(controller).register() == 17


async def test_a_registration_without_an_answer_in_time_raises() -> None:
    class Silent(ScriptedController):
        async def send(self, request: Message, principal: str, *, timeout_ms: int = 0) -> Any:
            raise ControllerUnavailable("nobody there")

    with pytest.raises(ControllerUnavailable, match="nobody there"):
        await lifecycle(Silent(), registration_timeout_ms=0).register()


async def test_controlled_shutdown_waits_for_the_controllers_word() -> None:
    controller = ScriptedController()
    controller.is_fenced = False
    broker = lifecycle(controller)
    await broker.register()
    broker.move_to(BrokerState.RECOVERY)
    broker.start_heartbeats()
    await asyncio.wait_for(broker.wait_unfenced(), 5)
    broker.move_to(BrokerState.RUNNING)
    controller.should_shut_down = True
    assert await broker.begin_controlled_shutdown(5_000)
    assert controller.heartbeats[-1].want_shut_down
    await broker.stop()


async def running(controller: ScriptedController) -> BrokerLifecycle:
    controller.is_fenced = False
    broker = lifecycle(controller)
    await broker.register()
    broker.move_to(BrokerState.RECOVERY)
    broker.start_heartbeats()
    await asyncio.wait_for(broker.wait_unfenced(), 5)
    broker.move_to(BrokerState.RUNNING)
    return broker


async def test_it_survives_a_time_without_controllers(caplog: pytest.LogCaptureFixture) -> None:
    """The same registration goes on with the next controller; the trouble is reported once."""
    caplog.set_level("INFO", logger="moldau.broker.lifecycle.broker_lifecycle")
    controller = ScriptedController()
    broker = await running(controller)
    controller.is_reachable = False
    await controller.beats(3)
    controller.is_reachable = True
    await controller.beats(3)
    assert {beat.broker_epoch for beat in controller.heartbeats} == {17}
    lines = [record.message for record in caplog.records]
    assert lines.count("heartbeat not answered: nobody leads") == 1
    assert lines.count("the controller answers heartbeats again") == 1
    await broker.stop()


async def test_a_broker_that_was_fenced_asks_to_be_let_in_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its session ran out while it stood still: registration and epoch stay, nothing is reset."""
    caplog.set_level("INFO", logger="moldau.broker.lifecycle.broker_lifecycle")
    controller = ScriptedController()
    broker = await running(controller)
    controller.is_fenced = True
    await controller.beats()
    controller.is_fenced = False
    await controller.beats()
    assert not any(beat.want_fence for beat in controller.heartbeats)
    assert {beat.broker_epoch for beat in controller.heartbeats} == {17}
    assert broker.state is BrokerState.RUNNING
    lines = [record.message for record in caplog.records]
    assert lines.count("this broker has been fenced; it asks to be let in again") == 1
    assert lines.count("this broker is not fenced any more") == 1
    await broker.stop()


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
async def test_a_void_registration_is_reported_once_and_not_replaced(
    code: ErrorCode, caplog: pytest.LogCaptureFixture
) -> None:
    """As Apache Kafka: another incarnation owns the id now, or the operator removed it."""
    controller = ScriptedController()
    broker = await running(controller)
    controller.registrations = [lambda: pytest.fail("it registered again")]
    controller.heartbeat_error = code
    await controller.beats(4)
    await broker.stop()
    told = [record.message for record in caplog.records if code.name in record.message]
    assert told == [
        f"heartbeat refused, {code.name}: this registration is void, restart the broker"
    ]


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
async def test_a_void_registration_keeps_no_broker_from_stopping(code: ErrorCode) -> None:
    controller = ScriptedController()
    broker = await running(controller)
    controller.heartbeat_error = code
    await asyncio.wait_for(broker.begin_controlled_shutdown(3_600_000, silence_ms=3_600_000), 10)
    assert controller.heartbeats[-1].want_shut_down
    await broker.stop()


async def test_a_broker_that_was_not_let_in_yet_takes_its_registration_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A registration of the process before came late, and was taken for a newer one."""
    controller = ScriptedController()
    broker = lifecycle(controller)
    await broker.register()
    duplicate = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    asked: list[int] = []

    def answer(response: BrokerRegistrationResponse) -> Callable[[], Message]:
        def answered() -> Message:
            asked.append(response.error_code)
            if not response.error_code:
                controller.heartbeat_error = ErrorCode.NONE
            return response

        return answered

    taken = BrokerRegistrationResponse(broker_epoch=23)
    controller.registrations = [answer(each) for each in (duplicate, duplicate, taken)]
    controller.heartbeat_error = ErrorCode.STALE_BROKER_EPOCH
    broker.start_heartbeats()
    await controller.beats(6)
    await broker.stop()
    assert asked == [duplicate.error_code, duplicate.error_code, ErrorCode.NONE]
    assert controller.heartbeats[-1].broker_epoch == broker.broker_epoch == 23
    told = [record.message for record in caplog.records]
    assert told[:1] == ["registration not refreshed: DUPLICATE_BROKER_REGISTRATION"]
    assert len(told) <= 2


async def test_a_registration_is_refreshed_under_the_same_incarnation() -> None:
    """metadata.version learns of log directories while the broker runs (KIP-858)."""
    controller = ScriptedController()
    broker = await running(controller)
    asked: list[int] = []

    def refuse() -> Message:
        asked.append(1)
        raise ControllerUnavailable("failing over")

    def accept() -> Message:
        asked.append(2)
        return BrokerRegistrationResponse(broker_epoch=17)

    controller.registrations = [refuse, accept]
    record = RegisterBrokerRecord(broker_id=1, broker_epoch=17, log_dirs=[])
    for level in (7, 17):
        delta = MetadataDelta(MetadataImage.EMPTY)
        delta.replay(FeatureLevelRecord(name="metadata.version", feature_level=level))
        delta.replay(record)
        broker.on_metadata_update(delta, delta.apply(Provenance()))
        await controller.beats(3)
        assert asked == ([] if level == 7 else [1, 2])
    record.log_dirs = [uuid.UUID(int=9)]
    delta = MetadataDelta(MetadataImage.EMPTY)
    delta.replay(FeatureLevelRecord(name="metadata.version", feature_level=17))
    delta.replay(record)
    broker.on_metadata_update(delta, delta.apply(Provenance()))
    controller.registrations = [lambda: pytest.fail("there is nothing to refresh")]
    await controller.beats(2)
    await broker.stop()


async def test_registration_gives_up_with_the_controllers_reason() -> None:
    """The id's old session never ends within the time."""
    controller = ScriptedController()
    duplicate = BrokerRegistrationResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    controller.registrations = [lambda: duplicate] * 1_000
    with pytest.raises(ControllerUnavailable, match="DUPLICATE_BROKER_REGISTRATION"):
        await lifecycle(controller, registration_timeout_ms=1).register()


async def test_stopping_does_not_wait_for_a_heartbeat_on_its_way() -> None:
    class Hanging(ScriptedController):
        async def send(self, request: Message, principal: str, *, timeout_ms: int = 0) -> Any:
            if isinstance(request, BrokerHeartbeatRequest):
                self.beaten.set()
                await asyncio.Event().wait()
            return await super().send(request, principal, timeout_ms=timeout_ms)

    controller = Hanging()
    broker = lifecycle(controller)
    await broker.register()
    broker.start_heartbeats()
    await asyncio.wait_for(controller.beaten.wait(), 5)
    await asyncio.wait_for(broker.stop(), 5)
    assert not await broker.begin_controlled_shutdown(5_000), "there is nothing to shut down"


async def test_controlled_shutdown_has_a_limit() -> None:
    controller = ScriptedController()
    broker = await running(controller)
    assert not await broker.begin_controlled_shutdown(30)
    assert controller.heartbeats[-1].want_shut_down
    broker.move_to(BrokerState.SHUTTING_DOWN)
    await broker.stop()


def test_illegal_transitions_are_broken_invariants() -> None:
    broker = lifecycle(ScriptedController.__new__(ScriptedController))
    with pytest.raises(AssertionError, match="STARTING to RUNNING"):
        broker.move_to(BrokerState.RUNNING)


async def test_controlled_shutdown_waits_while_the_controller_answers() -> None:
    """Moving the leadership of many partitions may take longer than it may be silent."""
    controller = ScriptedController()
    broker = await running(controller)
    shutdown = asyncio.create_task(broker.begin_controlled_shutdown(60_000, silence_ms=600))
    loop = asyncio.get_running_loop()
    begin_s = loop.time()
    while loop.time() < begin_s + 1.0:
        await controller.beats(1)
        assert not shutdown.done()
    controller.should_shut_down = True
    assert await asyncio.wait_for(shutdown, 10)
    await broker.stop()


async def test_controlled_shutdown_gives_up_on_a_silent_controller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = ScriptedController()
    broker = await running(controller)
    controller.is_reachable = False
    assert not await asyncio.wait_for(
        broker.begin_controlled_shutdown(3_600_000, silence_ms=20), 10
    )
    assert "within 20 ms of its last answer; stopping anyway" in caplog.text
    await broker.stop()


async def test_controlled_shutdown_ends_in_time_though_the_controller_answers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    controller = ScriptedController()
    broker = await running(controller)
    assert not await asyncio.wait_for(
        broker.begin_controlled_shutdown(30, silence_ms=3_600_000), 10
    )
    assert "within 30 ms; stopping anyway" in caplog.text
    await broker.stop()


async def test_news_does_not_wait_for_the_next_heartbeat() -> None:
    controller = ScriptedController()
    broker = lifecycle(controller, heartbeat_interval_ms=3_600_000)
    controller.is_fenced = False
    await broker.register()
    broker.move_to(BrokerState.RECOVERY)
    broker.start_heartbeats()
    await asyncio.wait_for(broker.wait_unfenced(), 5)
    before = len(controller.heartbeats)
    broker.beat_soon()  # a log directory has failed
    await controller.beats(1)
    assert len(controller.heartbeats) == before + 1
    await broker.stop()


async def test_heartbeats_that_raise_are_reported_and_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_MS", 1)
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: told.append(context["exception"])
    )
    controller = ScriptedController()
    broker = lifecycle(controller)
    await broker.register()
    offline = iter([KeyError("directory")])

    def offline_log_directories() -> list[uuid.UUID]:
        for error in offline:
            raise error
        return []

    monkeypatch.setattr(broker, "_offline_log_directories", offline_log_directories)
    broker.start_heartbeats()
    await controller.beats()
    assert [str(error) for error in told] == ["'directory'"]
    await broker.stop()
    count = len(controller.heartbeats)
    await asyncio.sleep(0)
    assert len(controller.heartbeats) == count
