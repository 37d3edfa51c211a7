"""Java's clients and Kafka's tools, each way."""

from __future__ import annotations

import re
import uuid
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest

from moldau.client import AclFilter
from tests.interop.security_matrix import cells
from tests.interop.security_matrix.access import MTLS, SIGNED, TOKEN, WAYS, Access
from tests.interop.security_matrix.clients import Moldau
from tests.interop.security_matrix.conftest import IS_KAFKA
from tests.interop.security_matrix.front import CLOSED, FAULTS, OPEN, Front
from tests.interop.security_matrix.java_client import JavaClient
from tests.kit.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(300)]

CLIENT = cells.rows("clients", is_kafka=IS_KAFKA)["Java"]
ROWS = cells.rows("tools", is_kafka=IS_KAFKA)
TOOL_WAYS = ("SSL", MTLS, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", SIGNED, TOKEN)


class Tool(NamedTuple):
    """A tool as the user of one way has it."""

    java: JavaClient
    front: Front
    access: Access
    way: str

    def run(self, name: str, *arguments: object) -> str:
        return self.java.check(name, self.access, *arguments)


def acls(tool: Tool) -> None:
    user = f"User:u-{uuid.uuid4().hex}"
    consumer = ("--allow-principal", user, "--consumer", "--group", "g", "--topic", "t")
    tool.run("kafka-acls", "--add", *consumer)
    tool.run("kafka-acls", "--add", "--deny-principal", user, "--operation", "All", "--topic",
             "t-", "--resource-pattern-type", "prefixed", "--deny-host", "10.0.0.9")  # fmt: skip
    listed = tool.run("kafka-acls", "--list", "--principal", user)
    assert f"principal={user}, host=*, operation=READ, permissionType=ALLOW" in listed
    assert f"principal={user}, host=10.0.0.9, operation=ALL, permissionType=DENY" in listed
    tool.run("kafka-acls", "--remove", "--force", *consumer)
    [left] = tool.front.admin.describe_acls(AclFilter(principal=user))
    assert (left.resource_name, left.host) == ("t-", "10.0.0.9")


def scram(tool: Tool) -> None:
    user = f"u-{uuid.uuid4().hex}"
    entity = ("--entity-type", "users", "--entity-name", user)
    login = replace(tool.front.access("SCRAM-SHA-256"), name=user, password="first")
    added = "SCRAM-SHA-256=[iterations=8192,password=first]"
    tool.run("kafka-configs", "--alter", *entity, "--add-config", added)
    assert "SCRAM-SHA-256=iterations=8192" in tool.run("kafka-configs", "--describe", *entity)
    assert "ClusterAuthorizationFailed" in Moldau().refusal(login, CLOSED)
    tool.run("kafka-configs", "--alter", *entity, "--delete-config", "SCRAM-SHA-256")
    assert "AuthenticationFailed" in Moldau().refusal(login, CLOSED)


ENTITIES = (
    (("users", "{}"), "producer_byte_rate=1024,consumer_byte_rate=2048,request_percentage=12.5"),
    (("clients", "{}"), "controller_mutation_rate=5"),
    (("ips", "127.0.0.{}"), "connection_creation_rate=3"),
    (("users", "{}", "clients", None), "producer_byte_rate=1024"),
    (("users", "{}", "clients", "c"), "consumer_byte_rate=2048"),
    (("users", "{}"), "request_percentage=200"),
    (("ips", "127.0.1.{}"), "connection_creation_rate=7"),
)
"""For each way another kind of entity; users' names begin with the way's number."""

KINDS = {"users": "user", "clients": "client-id", "ips": "ip"}


def quotas(tool: Tool) -> None:
    number = TOOL_WAYS.index(tool.way)
    parts, rates = ENTITIES[number]
    named = {
        kind: None if name is None else name.format(number)
        for kind, name in zip(parts[::2], parts[1::2], strict=True)
    }
    entity: list[str] = []
    for kind, name in named.items():
        which = ["--entity-default"] if name is None else ["--entity-name", name]
        entity += ["--entity-type", kind, *which]
    wanted = {key: float(value) for key, value in (each.split("=") for each in rates.split(","))}
    asked = {KINDS[kind]: name for kind, name in named.items()}

    def known() -> dict[str, float]:
        found = tool.front.admin.describe_client_quotas(asked, strict=True)
        return next(iter(found.values()), {})

    tool.run("kafka-configs", "--alter", *entity, "--add-config", rates)
    until(lambda: known() == wanted, what="the quota")
    described = tool.run("kafka-configs", "--describe", *entity)
    assert all(f"{key}={value}" in described for key, value in wanted.items())
    first, *others = wanted
    tool.run("kafka-configs", "--alter", *entity, "--delete-config", first)
    until(lambda: known().keys() == set(others), what="the quota's end")


def delegation_tokens(tool: Tool) -> None:
    name = "kafka-delegation-tokens"
    made = tool.run(name, "--create", "--max-life-time-period", -1, "--renewer-principal",
                    "User:bob")  # fmt: skip
    user = WAYS[tool.way].user
    found = re.search(rf"^(\S+)\s+(\S+==)\s+User:{user}\s", made, re.MULTILINE)
    assert found is not None, made
    token_id, secret = found.groups()
    assert len(b64decode(secret)) == 64
    # Apache Kafka's broker may learn of it a moment later.
    describe = (name, "--describe", "--owner-principal", f"User:{user}")
    until(lambda: token_id in tool.run(*describe), what="the token")
    renewed = tool.run(name, "--renew", "--renew-time-period", -1, "--hmac", secret)
    assert "Completed renew operation" in renewed
    own = replace(tool.front.access(TOKEN), name=token_id, password=secret)
    assert "TopicAuthorizationFailed" in Moldau().refusal(own, CLOSED)
    ended = tool.run(name, "--expire", "--expiry-time-period", -1, "--hmac", secret)
    assert "Completed expire operation" in ended
    until(lambda: "AuthenticationFailed" in Moldau().refusal(own, CLOSED), what="the token's end")


def topics(tool: Tool) -> None:
    topic = f"{OPEN}-{uuid.uuid4().hex}"
    tool.run("kafka-topics", "--create", "--topic", topic, "--partitions", 2)
    assert "PartitionCount: 2" in tool.run("kafka-topics", "--describe", "--topic", topic)
    tool.run("kafka-topics", "--delete", "--topic", topic)
    listed = tool.run("kafka-topics", "--list").split()
    assert topic not in listed
    assert CLOSED not in listed


def consumer_groups(tool: Tool) -> None:
    topic = tool.front.topic()
    group = ("--group", topic)
    Moldau().write(tool.front.access("PLAIN"), topic, [b"1", b"2"])
    tool.run("kafka-consumer-groups", *group, "--topic", topic, "--reset-offsets", "--to-latest",
             "--execute")  # fmt: skip
    described = tool.run("kafka-consumer-groups", *group, "--describe", "--offsets")
    assert re.search(rf"{topic}\s+{topic}\s+0\s+2\s+2\s+0\b", described), described


TOOLS: dict[str, Callable[[Tool], None]] = {
    "kafka-acls": acls,
    "kafka-configs, SCRAM users": scram,
    "kafka-configs, quotas": quotas,
    "kafka-delegation-tokens": delegation_tokens,
    "kafka-topics": topics,
    "kafka-consumer-groups": consumer_groups,
}

UNALLOWED: dict[str, tuple[object, ...]] = {
    "kafka-acls": ("kafka-acls", "--list"),
    "kafka-configs, SCRAM users": (
        "kafka-configs", "--alter", "--entity-type", "users", "--entity-name", "u",
        "--add-config", "SCRAM-SHA-256=[password=p]",
    ),
    "kafka-configs, quotas": (
        "kafka-configs", "--alter", "--entity-type", "users", "--entity-name", "u",
        "--add-config", "producer_byte_rate=1024",
    ),
    "kafka-delegation-tokens": (
        "kafka-delegation-tokens", "--create", "--max-life-time-period", -1,
        "--owner-principal", "User:alice",
    ),
    "kafka-topics": ("kafka-topics", "--create", "--topic", "u"),
    "kafka-consumer-groups": ("kafka-consumer-groups", "--describe", "--group", CLOSED),
}  # fmt: skip
"""What a user without rights asks of each tool."""


@pytest.mark.parametrize("way", WAYS)
def test_clients(front: Front, java_client: JavaClient, way: str) -> None:
    cells.check(front, java_client, CLIENT, way)


@pytest.mark.parametrize("fault", FAULTS)
def test_refusals(front: Front, java_client: JavaClient, fault: str) -> None:
    said = java_client.refusal(front.refused(fault), front.topic())
    assert cells.has_parts(said, CLIENT.refusals[fault]), said


@pytest.mark.parametrize("way", TOOL_WAYS)
@pytest.mark.parametrize("name", TOOLS)
def test_tools(front: Front, java_client: JavaClient, name: str, way: str) -> None:
    tool = Tool(java_client, front, front.access(way), way)
    row = ROWS[name]
    if way in row.gaps:
        with pytest.raises(AssertionError, match=row.says[way]):
            TOOLS[name](tool)
    else:
        TOOLS[name](tool)


@pytest.mark.parametrize("name", TOOLS)
def test_tools_without_rights(front: Front, java_client: JavaClient, name: str) -> None:
    mallory = front.user("mallory", "m-secret")
    tool, *arguments = UNALLOWED[name]
    done = java_client.tool(str(tool), mallory, *arguments)
    said = done.output + done.errors
    assert cells.has_parts(said, ROWS[name].refusals["no right"]), said


def test_the_table_has_every_tool_and_way() -> None:
    assert cells.columns("tool_ways") == list(TOOL_WAYS)
    assert list(ROWS) == list(TOOLS) == list(UNALLOWED)
    for name, row in ROWS.items():
        assert row.gaps.keys() <= set(TOOL_WAYS), name
