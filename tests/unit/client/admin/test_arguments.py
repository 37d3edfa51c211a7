"""Calls that take several things refuse one of them, whose letters or fields look like several."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.client import Admin, ConfigResource, ConfigResourceType, NewTopic, TopicPartition, sync

COLLECTION = re.compile(r"(Collection|Iterable|Sequence)\[")


def collections() -> Iterator[tuple[str, str]]:
    """Every public call of the admin client, with each parameter that takes several."""
    for name, method in inspect.getmembers(Admin, inspect.iscoroutinefunction):
        if name.startswith("_"):
            continue
        for parameter in inspect.signature(method).parameters.values():
            if COLLECTION.match(str(parameter.annotation)):
                yield name, parameter.name


def arguments_with(call: str, parameter: str, value: object) -> dict[str, Any]:
    """`value` for the parameter, and None for the others that have no default."""
    needed = {
        name: None
        for name, each in inspect.signature(getattr(Admin, call)).parameters.items()
        if each.default is inspect.Parameter.empty and name != "self"
    }
    return {**needed, parameter: value}


def test_there_are_such_calls():
    assert {("delete_topics", "names"), ("delete_groups", "group_ids")} <= set(collections())


@pytest.mark.parametrize("value", ["qrs", b"qrs", TopicPartition("qrs", 0)])
@pytest.mark.parametrize(("call", "parameter"), sorted(set(collections())))
async def test_one_is_not_several(call: str, parameter: str, value: object):
    # Nothing listens there: what is refused has asked no broker.
    admin = Admin("127.0.0.1:1", default_api_timeout_ms=1, request_timeout_ms=1)
    try:
        with pytest.raises(TypeError, match=r"several.*qrs"):
            await getattr(admin, call)(**arguments_with(call, parameter, value))
    finally:
        await admin.close()


def test_the_blocking_client_refuses_it_too():
    with (
        sync.Admin("127.0.0.1:1", default_api_timeout_ms=1) as admin,
        pytest.raises(TypeError, match="several"),
    ):
        admin.delete_topics("qrs")


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        ("create_topics", ["q"], "takes NewTopic objects, not str"),
        ("create_topics", iter([NewTopic("t"), {"name": "q"}]), "takes NewTopic objects, not dict"),
        ("create_partitions", ["q"], "takes NewPartitions by topic, in a mapping, not list"),
        ("create_partitions", {"q": 3}, "takes NewPartitions objects, not int"),
        ("describe_configs", [("topic", "t")], "takes ConfigResource objects, not tuple"),
        ("alter_configs", {"t": []}, "takes ConfigResource objects, not str"),
        (
            *("alter_configs", {ConfigResource(ConfigResourceType.TOPIC, "t"): [("a", "1")]}),
            "takes ConfigChange objects, not tuple",
        ),
        ("create_acls", ["User:a"], "takes AclBinding objects, not str"),
        ("delete_acls", ["User:a"], "takes AclFilter objects, not str"),
        (
            "alter_user_scram_credentials",
            [("alice", "secret")],
            "takes ScramUpsertion or ScramDeletion objects, not tuple",
        ),
    ],
)
async def test_objects_of_another_kind_are_refused(call: str, given: object, said: str):
    async with Admin("127.0.0.1:1", default_api_timeout_ms=1) as admin:
        with pytest.raises(TypeError, match=said) as refused:
            await getattr(admin, call)(given)
    assert "secret" not in str(refused.value)
