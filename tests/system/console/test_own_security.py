"""Users, quotas and explanations of access through the console's own resources."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.client import AclBinding, AclOperation, AclResourceType, Admin
from tests.system.console.asking import ask_own, name_in_path, own
from tests.system.console.site import Answer, Site, basic
from tests.unit.console.command_lines import parsed


def user_path(name: str) -> str:
    return f"security/users/{name_in_path(name)}"


async def users(site: Site) -> dict[str, list[dict[str, Any]]]:
    found = await own(site, "security/users")
    return {each["name"]: each["mechanisms"] for each in found["data"]}


@pytest.mark.parametrize("name", ["dora", "d o/r", "ü"])
async def test_a_users_life(open_site: Site, name: str) -> None:
    path = user_path(name)
    done = await own(open_site, path, method="PUT", body={"password": "first-secret"})
    assert "secret" not in done["command"]
    assert parsed(done["command"]) == ("users create", {"name": name})
    more = {"password": "x", "mechanism": "SCRAM-SHA-256", "iterations": 8_192}
    done = await own(open_site, path, method="PUT", body=more)
    words, given = parsed(done["command"])
    assert (words, given["name"], given["iterations"]) == ("users create", name, 8_192)
    assert (await users(open_site))[name] == [
        {"mechanism": "SCRAM-SHA-256", "iterations": 8_192},
        {"mechanism": "SCRAM-SHA-512", "iterations": 4_096},
    ]
    done = await own(open_site, path, method="DELETE")
    assert parsed(done["command"]) == ("users delete", {"name": name})
    assert name not in await users(open_site)
    gone = await ask_own(open_site, path, method="DELETE")
    assert (gone.status, gone.document["kafka_error"]) == (404, "RESOURCE_NOT_FOUND")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"password": ""},
        {"password": "x", "mechanism": "PLAIN"},
        {"password": "x", "iterations": 4_095},
        {"password": "x", "iterations": 16_385},
    ],
)
async def test_passwords_that_cannot_be_set(open_site: Site, body: dict[str, Any]) -> None:
    answer = await ask_own(open_site, user_path("refused"), method="PUT", body=body)
    assert answer.status == 422, answer.document
    assert "refused" not in await users(open_site)


async def changed(site: Site, entity: dict[str, Any], **more: Any) -> Answer:
    body = {"entity": entity, **more}
    return await ask_own(site, "security/quotas", method="PUT", body=body)


async def quotas(site: Site) -> list[Any]:
    found: list[Any] = (await own(site, "security/quotas"))["data"]
    return found


async def test_a_quotas_life(open_site: Site) -> None:
    alice = {"user": "alice", "client-id": None}
    rates = {"producer_byte_rate": 1_000, "request_percentage": 12.5}
    done = await changed(open_site, alice, set=rates)
    assert done.document["command"] == (
        "moldau quotas alter --user alice --client-id= --set producer_byte_rate=1000 "
        "--set request_percentage=12.5"
    )
    await changed(open_site, {"ip": "10.0.0.1"}, set={"connection_creation_rate": 3})
    assert await quotas(open_site) == [
        {"entity": alice, "values": rates},
        {"entity": {"ip": "10.0.0.1"}, "values": {"connection_creation_rate": 3}},
    ]
    await changed(open_site, alice, set={"request_percentage": 50}, remove=["producer_byte_rate"])
    assert {"entity": alice, "values": {"request_percentage": 50}} in await quotas(open_site)
    await changed(open_site, alice, remove=["request_percentage"])
    await changed(open_site, {"ip": "10.0.0.1"}, remove=["connection_creation_rate"])
    assert await quotas(open_site) == []


@pytest.mark.parametrize(
    ("entity", "more"),
    [
        ({}, {"set": {"producer_byte_rate": 1}}),
        ({"group": "g"}, {"set": {"producer_byte_rate": 1}}),
        ({"user": "a"}, {}),
        ({"user": "a"}, {"set": {"no_such_rate": 1}}),
        ({"user": "a"}, {"set": {"producer_byte_rate": -1}}),
        ({"user": "a"}, {"set": {"producer_byte_rate": "x"}}),
        ({"user": "a"}, {"set": {"producer_byte_rate": 1}, "remove": ["producer_byte_rate"]}),
        ({"ip": "no address"}, {"set": {"connection_creation_rate": 1}}),
        ({"ip": "10.0.0.1", "user": "a"}, {"set": {"producer_byte_rate": 1}}),
    ],
)
async def test_quotas_that_cannot_be(
    open_site: Site, entity: dict[str, Any], more: dict[str, Any]
) -> None:
    answer = await changed(open_site, entity, **more)
    assert answer.status in (400, 422), answer.document


def question(principal: str, operation: str, name: str, **more: str) -> str:
    asked = {
        "principal": principal,
        "operation": operation,
        "resource_type": "TOPIC",
        "resource_name": name,
        **more,
    }
    pairs = (f"{key}={name_in_path(value)}" for key, value in asked.items())
    return f"security/explain?{'&'.join(pairs)}"


async def test_without_an_authorizer_all_is_allowed(open_site: Site) -> None:
    shown = await own(open_site, question("User:a", "READ", "t"))
    assert shown["is_allowed"]
    assert "no authorizer" in shown["because"]
    saved = await own(open_site, "saved")
    assert saved == {"filters": [], "favourites": []}


@pytest.mark.parametrize(
    "query",
    [
        "security/explain",
        question("", "READ", "t"),
        question("User:a", "READ", ""),
        question("User:a", "CREATE_TOKENS", "t"),
        question("User:a", "ALL", "t"),
        question("User:a", "READ", "t", resource_type="ANY"),
    ],
)
async def test_questions_without_meaning(open_site: Site, query: str) -> None:
    assert (await ask_own(open_site, query)).status == 422


async def test_why_a_person_may(secure_site: Site) -> None:
    async with Admin(config=secure_site.cluster.client_properties) as admin:
        await admin.create_acls(
            [
                AclBinding(
                    AclResourceType.CLUSTER, "kafka-cluster", "User:carol", AclOperation.DESCRIBE
                )
            ]
        )
    carol = basic("carol")
    shown = await own(secure_site, question("User:alice", "WRITE", "a-topic"), headers=carol)
    assert shown["is_allowed"]
    assert shown["because"] == "An entry allows it."
    assert shown["rules"] == [
        {
            "resource_type": "TOPIC",
            "resource_name": "a",
            "pattern_type": "PREFIXED",
            "principal": "User:alice",
            "host": "*",
            "operation": "ALL",
            "permission": "ALLOW",
            "decides": True,
        }
    ]
    refused = await own(secure_site, question("User:alice", "READ", "other"), headers=carol)
    assert (refused["is_allowed"], refused["rules"]) == (False, [])
    assert "super.users names them, which you may not see" in refused["because"]
    cluster = question("User:carol", "DESCRIBE", "", resource_type="CLUSTER")
    assert (await own(secure_site, cluster, headers=carol))["is_allowed"]


async def test_people_without_rights_ask_in_vain(secure_site: Site) -> None:
    bob = basic("bob")
    entity = {"entity": {"user": "bob"}, "set": {"producer_byte_rate": 1}}
    for path, more in (
        (question("User:bob", "READ", "t"), {}),
        ("security/users", {}),
        ("security/quotas", {}),
        ("security/quotas", {"method": "PUT", "body": entity}),
        (user_path("bob"), {"method": "PUT", "body": {"password": "x"}}),
        (user_path("bob"), {"method": "DELETE"}),
    ):
        answer = await ask_own(secure_site, path, headers=bob, **more)
        assert (answer.status, answer.document["kafka_error"]) == (
            403,
            "CLUSTER_AUTHORIZATION_FAILED",
        ), path
