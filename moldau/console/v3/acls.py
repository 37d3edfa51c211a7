"""`/v3/clusters/{cluster_id}/acls`: access control entries."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final
from urllib.parse import urlencode

from moldau.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)
from moldau.console.calls import Call, Reply
from moldau.console.routes import Parameter, Route
from moldau.console.schemas import STRING, Schema, array, one_of, record
from moldau.console.v3.shapes import BASE, Document, Places, described, listed

CREATED: Final = 201
_NAMES: Final[dict[str, type[IntEnum]]] = {
    "resource_type": AclResourceType,
    "pattern_type": AclPatternType,
    "operation": AclOperation,
    "permission": AclPermission,
}
_OPEN: Final = ("UNKNOWN",)
_FILTERS: Final = ("UNKNOWN", "ANY", "MATCH")


def _choice(kind: type[IntEnum], without: tuple[str, ...]) -> Schema:
    return one_of(*(each.name for each in kind if each.name not in without))


_TEXT: Final = {"type": "string", "minLength": 1, "maxLength": 32_767}
ACL: Final = described(
    "AclData",
    {**dict.fromkeys((*_NAMES, "resource_name", "principal", "host"), STRING)},
)
NEW_ACL: Final = record(
    {
        **{name: _choice(kind, _FILTERS) for name, kind in _NAMES.items()},
        **dict.fromkeys(("resource_name", "principal", "host"), _TEXT),
    }
)
NEW_ACLS: Final = record({"data": array(NEW_ACL, most=10_000)})


def _parameters(required: tuple[str, ...]) -> tuple[Parameter, ...]:
    chosen = tuple(
        Parameter(
            name,
            f"The {name.replace('_', ' ')}; ANY for all.",
            _choice(kind, _OPEN),
            is_required=name in required,
        )
        for name, kind in _NAMES.items()
    )
    texts = tuple(
        Parameter(name, f"The {name.replace('_', ' ')}; all without it.", STRING)
        for name in ("resource_name", "principal", "host")
    )
    return (*chosen, *texts)


async def search(call: Call) -> Reply:
    """The entries that match."""
    places, clients = await Places.of(call), await call.clients()
    found = await clients.admin.describe_acls(_filter(call.query))
    data = [_document(places, each) for each in found]
    at = places.at("acls")
    if call.request.query_string:
        at = f"{at}?{call.request.query_string}"
    return Reply({"kind": "KafkaAclList", "metadata": {"self": at, "next": None}, "data": data})


async def create(call: Call) -> Reply:
    """Add one entry."""
    binding = _binding(call.body)
    clients = await call.clients()
    await clients.admin.create_acls([binding])
    places = await Places.of(call)
    return Reply(status=CREATED, headers={"Location": _address(places, binding)})


async def create_several(call: Call) -> Reply:
    """Add entries."""
    clients = await call.clients()
    await clients.admin.create_acls([_binding(each) for each in call.body["data"]])
    return Reply(status=CREATED)


async def delete(call: Call) -> Reply:
    """Delete the entries that match."""
    clients = await call.clients()
    gone = await clients.admin.delete_acls([_filter(call.query)])
    places = await Places.of(call)
    return Reply({"data": [_document(places, each) for each in gone]})


def _filter(query: Mapping[str, Any]) -> AclFilter:
    given = {
        name: kind[query[name]] if query[name] is not None else kind["ANY"]
        for name, kind in _NAMES.items()
    }
    return AclFilter(
        given["resource_type"],
        query["resource_name"],
        query["principal"],
        given["operation"],
        given["permission"],
        query["host"],
        given["pattern_type"],
    )


def _binding(body: dict[str, str]) -> AclBinding:
    chosen = {name: kind[body[name]] for name, kind in _NAMES.items()}
    return AclBinding(
        chosen["resource_type"],
        body["resource_name"],
        body["principal"],
        chosen["operation"],
        chosen["permission"],
        body["host"],
        chosen["pattern_type"],
    )


def acl_fields(binding: AclBinding) -> dict[str, str]:
    """An entry's fields as JSON has them."""
    return {
        "resource_type": _name(binding.resource_type),
        "resource_name": binding.resource_name,
        "pattern_type": _name(binding.pattern_type),
        "principal": binding.principal,
        "host": binding.host,
        "operation": _name(binding.operation),
        "permission": _name(binding.permission),
    }


def _name(value: int) -> str:
    """A member's name; a number that is newer than this release is UNKNOWN."""
    return value.name if isinstance(value, IntEnum) else "UNKNOWN"


def _address(places: Places, binding: AclBinding) -> str:
    return f"{places.at('acls')}?{urlencode(acl_fields(binding))}"


def _document(places: Places, binding: AclBinding) -> Document:
    return {
        "kind": "KafkaAcl",
        "metadata": {"self": _address(places, binding)},
        "cluster_id": places.cluster_id,
        **acl_fields(binding),
    }


_PATH: Final = f"{BASE}/acls"
_ALTER: Final = "Alter on the cluster"
ROUTES: Final = (
    Route(
        method="GET",
        path=_PATH,
        handler=search,
        name="getKafkaV3Acls",
        summary="Search ACLs",
        needs="Describe on the cluster",
        query=_parameters(()),
        answer=listed("AclDataList", ACL),
    ),
    Route(
        method="POST",
        path=_PATH,
        handler=create,
        name="createKafkaV3Acls",
        summary="Create an ACL",
        needs=_ALTER,
        body=NEW_ACL,
        status=CREATED,
    ),
    Route(
        method="POST",
        path=f"{_PATH}:batch",
        handler=create_several,
        name="batchCreateKafkaV3Acls",
        summary="Create ACLs",
        needs=_ALTER,
        body=NEW_ACLS,
        status=CREATED,
    ),
    Route(
        method="DELETE",
        path=_PATH,
        handler=delete,
        name="deleteKafkaV3Acls",
        summary="Delete ACLs",
        needs=_ALTER,
        query=_parameters(tuple(_NAMES)),
        answer=record({"data": array(ACL)}),
    ),
)
