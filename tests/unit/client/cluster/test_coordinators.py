"""Coordinators that move, load, go away or refuse some of the keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from moldau.client import (
    Admin,
    AuthorizationFailed,
    Broker,
    KafkaError,
    KeyType,
    NoBrokerAvailable,
    UnsupportedByBroker,
)
from moldau.protocol.api_keys import ApiKey
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages import p10_find_coordinator as find
from moldau.protocol.messages import p42_delete_groups as delete
from moldau.protocol.schema import Message
from tests.unit.client.scripted_broker import NODE_ID, ScriptedBroker


def coordinators(
    where: Callable[[str], ScriptedBroker], errors: dict[str, ErrorCode] | None = None
) -> Callable[[Any], Message]:
    """An answer to FindCoordinator: the broker of each key, or its error."""

    def answer(request: find.FindCoordinatorRequest) -> find.FindCoordinatorResponse:
        found = []
        for key in request.coordinator_keys:
            host, _, port = where(key).address.rpartition(":")
            code = (errors or {}).get(key, ErrorCode.NONE)
            found.append(
                find.Coordinator(
                    key=key, node_id=NODE_ID, host=host, port=int(port), error_code=code
                )
            )
        return find.FindCoordinatorResponse(coordinators=found)

    return answer


def deleted(**codes: ErrorCode) -> Callable[[Any], Message]:
    """An answer to DeleteGroups with these codes, NONE for all others."""

    def answer(request: delete.DeleteGroupsRequest) -> delete.DeleteGroupsResponse:
        return delete.DeleteGroupsResponse(
            results=[
                delete.DeletableGroupResult(
                    group_id=name, error_code=codes.get(name, ErrorCode.NONE)
                )
                for name in request.groups_names
            ]
        )

    return answer


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        scripted.script(ApiKey.FIND_COORDINATOR, coordinators(lambda _: scripted))
        yield scripted


@pytest.fixture
async def other() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as scripted:
        yield scripted


@pytest.fixture
async def admin(broker: ScriptedBroker) -> AsyncIterator[Admin]:
    async with Admin(
        broker.address, retry_backoff_ms=1, reconnect_backoff_ms=1, default_api_timeout_ms=5_000
    ) as client:
        yield client


async def test_keys_are_asked_for_together_by_coordinator(
    admin: Admin, broker: ScriptedBroker, other: ScriptedBroker
):
    broker.script(
        ApiKey.FIND_COORDINATOR, coordinators(lambda key: other if key == "c" else broker)
    )
    broker.script(ApiKey.DELETE_GROUPS, deleted(b=ErrorCode.NON_EMPTY_GROUP))
    other.script(ApiKey.DELETE_GROUPS, deleted())
    outcome = await admin.delete_groups(["a", "b", "c", "a"])
    assert list(outcome) == ["a", "b", "c"]
    assert (outcome["a"], outcome["c"]) == (None, None)
    assert isinstance(outcome["b"], KafkaError)
    assert outcome["b"].code is ErrorCode.NON_EMPTY_GROUP
    assert len(broker.requests_of(find.FindCoordinatorRequest)) == 1
    asked = broker.requests_of(delete.DeleteGroupsRequest)
    assert [each.groups_names for each in asked] == [["a", "b"]]  # type: ignore[attr-defined]


async def test_a_coordinator_that_has_moved_is_looked_for_again(
    admin: Admin, broker: ScriptedBroker, other: ScriptedBroker
):
    broker.script(
        ApiKey.FIND_COORDINATOR, coordinators(lambda _: broker), coordinators(lambda _: other)
    )
    broker.script(ApiKey.DELETE_GROUPS, deleted(a=ErrorCode.NOT_COORDINATOR))
    other.script(ApiKey.DELETE_GROUPS, deleted())
    assert await admin.delete_groups(["a", "b"]) == {"a": None, "b": None}
    [asked] = other.requests_of(delete.DeleteGroupsRequest)
    assert asked.groups_names == ["a"], "b was deleted already"  # type: ignore[attr-defined]


async def test_a_coordinator_that_loads_is_asked_again_without_looking(
    admin: Admin, broker: ScriptedBroker
):
    broker.script(
        ApiKey.DELETE_GROUPS, deleted(a=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), deleted()
    )
    assert await admin.delete_groups(["a"]) == {"a": None}
    assert len(broker.requests_of(find.FindCoordinatorRequest)) == 1


async def test_a_coordinator_that_hangs_up_is_looked_for_again(
    admin: Admin, broker: ScriptedBroker, other: ScriptedBroker
):
    broker.script(
        ApiKey.FIND_COORDINATOR, coordinators(lambda _: other), coordinators(lambda _: broker)
    )
    other.script(ApiKey.DELETE_GROUPS, lambda _: None)
    broker.script(ApiKey.DELETE_GROUPS, deleted())
    assert await admin.delete_groups(["a"]) == {"a": None}


async def test_a_coordinator_that_never_comes_is_raised_with_its_own_error(
    admin: Admin, broker: ScriptedBroker
):
    """The others are done by then."""
    broker.script(
        ApiKey.FIND_COORDINATOR,
        coordinators(lambda _: broker, {"late": ErrorCode.COORDINATOR_NOT_AVAILABLE}),
    )
    broker.script(ApiKey.DELETE_GROUPS, deleted())
    outcome = await admin.delete_groups(["late", "a"], timeout_ms=50)
    assert outcome["a"] is None
    problem = outcome["late"]
    assert problem is not None
    assert problem.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len(broker.requests_of(delete.DeleteGroupsRequest)) == 1


async def test_a_group_that_may_not_be_looked_for(admin: Admin, broker: ScriptedBroker):
    broker.script(
        ApiKey.FIND_COORDINATOR,
        coordinators(lambda _: broker, {"mine": ErrorCode.GROUP_AUTHORIZATION_FAILED}),
    )
    broker.script(ApiKey.DELETE_GROUPS, deleted())
    outcome = await admin.delete_groups(["mine", "a"])
    assert isinstance(outcome["mine"], AuthorizationFailed)
    assert outcome["a"] is None


async def test_a_key_that_is_left_out_of_an_answer(admin: Admin, broker: ScriptedBroker):
    broker.script(ApiKey.DELETE_GROUPS, lambda _: delete.DeleteGroupsResponse())
    outcome = await admin.delete_groups(["a"])
    assert "left it out" in str(outcome["a"])


async def test_find_returns_each_and_waits_for_what_comes(admin: Admin, broker: ScriptedBroker):
    refused = {"mine": ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    broker.script(
        ApiKey.FIND_COORDINATOR,
        coordinators(lambda _: broker, {"a": ErrorCode.COORDINATOR_NOT_AVAILABLE, **refused}),
        coordinators(lambda _: broker, refused),
    )
    found = await admin.find_coordinators(KeyType.TRANSACTION, ["a", "mine"])
    assert isinstance(found["mine"], AuthorizationFailed)
    assert isinstance(found["a"], Broker)
    assert found["a"].node_id == NODE_ID
    requests = broker.requests_of(find.FindCoordinatorRequest)
    assert {each.key_type for each in requests} == {1}  # type: ignore[attr-defined]


async def test_brokers_that_know_only_one_key_per_request(broker: ScriptedBroker):
    broker.served = {
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.METADATA: (0, 13),
        ApiKey.FIND_COORDINATOR: (0, 3),
        ApiKey.DELETE_GROUPS: (0, 2),
    }
    host, _, port = broker.address.rpartition(":")
    broker.script(
        ApiKey.FIND_COORDINATOR,
        lambda _: find.FindCoordinatorResponse(node_id=NODE_ID, host=host, port=int(port)),
    )
    broker.script(ApiKey.DELETE_GROUPS, deleted())
    async with Admin(broker.address) as admin:
        assert await admin.delete_groups(["a", "b"]) == {"a": None, "b": None}
    asked = broker.requests_of(find.FindCoordinatorRequest)
    assert [each.key for each in asked] == ["a", "b"]  # type: ignore[attr-defined]


async def test_brokers_that_do_not_serve_the_call(broker: ScriptedBroker):
    broker.served = {
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.METADATA: (0, 13),
        ApiKey.FIND_COORDINATOR: (0, 6),
    }
    async with Admin(broker.address) as admin:
        [problem] = (await admin.delete_groups(["a"])).values()
    assert isinstance(problem, UnsupportedByBroker)
    assert "delete group" in str(problem)


async def test_an_unreachable_cluster_has_no_coordinator():
    async with Admin("127.0.0.1:1", retry_backoff_ms=1, default_api_timeout_ms=20) as admin:
        [problem] = (await admin.delete_groups(["a"])).values()
    assert isinstance(problem, NoBrokerAvailable | TimeoutError)
