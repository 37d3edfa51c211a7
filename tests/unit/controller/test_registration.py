"""Controllers make themselves known: retries, failover, incarnations, a leader's address."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from moldau.controller.registration import ControllerRegistrationManager
from moldau.metadata.features import SUPPORTED_FEATURES
from moldau.node.quorum_node import leader_address
from moldau.protocol.messages.p62_broker_registration import Feature, Listener
from moldau.protocol.messages.p70_controller_registration import ControllerRegistrationRequest
from moldau.protocol.schema import Message
from moldau.raft import VoterEndpoint
from moldau.raft.core.values import Leadership
from moldau.runtime import restarts
from moldau.runtime.leader_link import LeaderAddress, LeaderLink
from moldau.server.request import Sender
from tests.kit.waiting import until_async
from tests.unit.controller.harness import LISTENER, ControllerBench

pytestmark = pytest.mark.real

NOBODY_LISTENS = LeaderAddress(9, "127.0.0.1", 1)


def request(controller_id: int, incarnation: int = 1) -> ControllerRegistrationRequest:
    return ControllerRegistrationRequest(
        controller_id=controller_id,
        incarnation_id=UUID(int=incarnation),
        listeners=[Listener(name=LISTENER, host="here", port=1000 + controller_id)],
        features=[
            Feature(
                name=name,
                min_supported_version=levels.minimum_level,
                max_supported_version=levels.maximum_level,
            )
            for name, levels in SUPPORTED_FEATURES.items()
        ],
    )


class Registering:
    """A manager beside a bench's controller, whose metadata stands for what its node replays."""

    def __init__(self, bench: ControllerBench, asked: ControllerRegistrationRequest) -> None:
        self.bench = bench
        self.leader: LeaderAddress | None = None
        self.manager = ControllerRegistrationManager(
            asked,
            image=lambda: bench.controller.committed_image,
            leader=lambda: self.leader,
            apis=bench.apis,
            link=LeaderLink(client_id="controller"),
            random=random.Random(1),
        )
        bench.log.add_listener(self.manager)

    def known(self, controller_id: int) -> UUID | None:
        found = self.bench.controller.committed_image.cluster.controllers.get(controller_id)
        return None if found is None else found.incarnation_id


@pytest.fixture
async def bench() -> AsyncIterator[ControllerBench]:
    made = await ControllerBench.start()
    yield made
    await made.close()


def address(bench: ControllerBench, node_id: int = 1) -> LeaderAddress:
    return LeaderAddress(node_id, "127.0.0.1", bench.port)


async def test_a_standby_registers_with_the_active_controller(bench: ControllerBench) -> None:
    """First no controller leads, then one that does not answer, then the active one."""
    standby = Registering(bench, request(2))
    standby.manager.start()
    assert not standby.manager.is_registered
    standby.leader = NOBODY_LISTENS
    bench.log.listeners[-1].handle_leader_change(9, 1)
    standby.leader = address(bench)
    bench.log.listeners[-1].handle_leader_change(1, 1)
    await until_async(lambda: standby.manager.is_registered, "it is registered")
    listeners = bench.controller.committed_image.cluster.controllers[2].listeners
    assert listeners[LISTENER].port == 1002
    await standby.manager.close()


async def test_the_active_controller_registers_with_itself(bench: ControllerBench) -> None:
    active = Registering(bench, request(1))
    active.leader = NOBODY_LISTENS._replace(node_id=1)
    active.manager.start()
    await until_async(lambda: active.manager.is_registered, "without the network")
    assert 1 in bench.controller.committed_image.cluster.controllers
    await active.manager.close()


async def test_another_incarnations_registration_is_replaced(bench: ControllerBench) -> None:
    connection = await bench.connect()
    await connection.send(request(2, incarnation=7))
    again = Registering(bench, request(2, incarnation=8))
    again.leader = address(bench)
    again.manager.start()
    await until_async(lambda: again.known(2) == UUID(int=8), "this start's incarnation is known")
    # A registration that another process puts in its place is put right at once.
    await connection.send(request(2, incarnation=7))
    await until_async(lambda: again.known(2) == UUID(int=8), "and known again")
    end_offset = bench.log.log_end_offset
    await connection.send(request(3))
    await until_async(lambda: again.known(3) is not None, "others do not concern it")
    assert bench.log.log_end_offset == end_offset + 1
    await again.manager.close()


async def test_a_registration_replaced_before_its_answer_comes_is_made_again(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = await bench.connect()
    active = Registering(bench, request(1, incarnation=8))
    active.leader = address(bench)
    answer, attempts = bench.apis.answer, 0

    async def answer_late(sender: Sender, asked: Message) -> object:
        nonlocal attempts
        response = await answer(sender, asked)
        if isinstance(asked, ControllerRegistrationRequest) and asked.incarnation_id.int == 8:
            attempts += 1
            if attempts == 1:
                await connection.send(request(1, incarnation=7))
        return response

    monkeypatch.setattr(bench.apis, "answer", answer_late)
    active.manager.start()
    await until_async(lambda: attempts == 2, "the replaced registration is made again")
    await until_async(lambda: active.manager.is_registered, "this start's incarnation is known")
    assert active.known(1) == UUID(int=8)
    await active.manager.close()


async def test_after_failover_it_registers_with_the_new_leader(bench: ControllerBench) -> None:
    standby = Registering(bench, request(2))
    bench.log.lead(5, 2)  # this bench's controller is a standby now
    standby.leader = address(bench)
    standby.manager.start()
    answered = len(bench.server.connections)
    await until_async(lambda: len(bench.server.connections) > answered, "it has asked the standby")
    assert not standby.manager.is_registered
    bench.log.lead(1, 3)
    await until_async(lambda: standby.manager.is_registered, "the node leads again and takes it")
    await standby.manager.close()


def test_the_leaders_address_is_that_of_the_first_listener_it_has() -> None:
    endpoints = (VoterEndpoint("OLD", "a", 1), VoterEndpoint("NEW", "b", 2))
    leadership = Leadership(3, 1, endpoints)
    assert leader_address(leadership, ["NEW", "OLD"]) == LeaderAddress(3, "b", 2)
    assert leader_address(leadership, ["MISSING", "OLD"]) == LeaderAddress(3, "a", 1)
    assert leader_address(leadership, ["MISSING"]) is None
    assert leader_address(Leadership(-1, 1), ["NEW"]) is None


async def test_a_registration_that_raises_is_reported_and_tried_again(
    bench: ControllerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarts, "FIRST_PAUSE_MS", 1)
    told: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: told.append(context["exception"])
    )
    standby = Registering(bench, request(2))
    failures = iter([KeyError("controller.id")])

    def leader() -> LeaderAddress:
        for error in failures:
            raise error
        return address(bench)

    monkeypatch.setattr(standby.manager, "leader", leader)
    standby.manager.start()
    await until_async(lambda: standby.known(2) is not None, "its registration")
    assert [str(error) for error in told] == ["'controller.id'"]
    await standby.manager.close()
