"""`…/security/quotas`: how much users, client ids and addresses may do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from moldau.console.calls import Call, Reply
from moldau.console.own.brokers import DONE
from moldau.console.own.commands import command, option
from moldau.console.own.lists import OWN
from moldau.console.problems import Problem
from moldau.console.routes import Route
from moldau.console.schemas import STRING, array, mapping, named, nullable, record

KINDS: Final = ("user", "client-id", "ip")
MAX_NAME: Final = 32_767
_NAME: Final = nullable({"type": "string", "maxLength": MAX_NAME})
_VALUE: Final = {"type": "number", "minimum": 0, "maximum": 1e300}
ENTITY: Final = record({}, dict.fromkeys(KINDS, _NAME))
QUOTA: Final = named("Quota", record({"entity": ENTITY, "values": mapping({"type": "number"})}))
CHANGE: Final = record(
    {"entity": {**ENTITY, "additionalProperties": False}},
    {"set": mapping(_VALUE), "remove": array(STRING, most=100)},
)
Entity = tuple[tuple[str, str | None], ...]


async def list_quotas(call: Call) -> Reply:
    """Every quota; a name that is null stands for all that have none of their own."""
    clients = await call.clients()
    found = await clients.admin.describe_client_quotas()
    rows = sorted(found.items(), key=lambda each: [(kind, name or "") for kind, name in each[0]])
    data = [{"entity": dict(entity), "values": values} for entity, values in rows]
    return Reply({"data": data})


async def change_quotas(call: Call) -> Reply:
    """Set and remove quotas of one entity, all or none."""
    body = call.body
    entity = entity_of(body["entity"])
    given, removed = body.get("set", {}), body.get("remove", [])
    twice = given.keys() & set(removed)
    if twice or not (given or removed):
        what = f"{', '.join(sorted(twice))} is set and removed" if twice else "nothing is changed"
        raise Problem(422, what)
    changes = {**{key: float(value) for key, value in given.items()}, **dict.fromkeys(removed)}
    clients = await call.clients()
    for problem in (await clients.admin.alter_client_quotas({entity: changes})).values():
        if problem is not None:
            raise problem
    return Reply({"command": quota_command(entity, changes)})


def entity_of(names: Mapping[str, str | None]) -> Entity:
    """The entity of a body, "" and null for the default. Raises: Problem."""
    unknown = names.keys() - {*KINDS}
    if unknown or not names:
        raise Problem(422, f"an entity has one or more of {', '.join(KINDS)}")
    return tuple((kind, names[kind] or None) for kind in KINDS if kind in names)


def quota_command(entity: Entity, changes: Mapping[str, float | None]) -> str:
    """The command that does it; a quota that is None is removed."""
    words = [word for kind, name in entity for word in option(f"--{kind}", name or "")]
    for key, value in changes.items():
        words += option("--delete", key) if value is None else option("--set", _set(key, value))
    return command("quotas", "alter", *words)


def _set(key: str, value: float) -> str:
    return f"{key}={int(value) if value.is_integer() else value}"


_PATH: Final = f"{OWN}/security/quotas"
ROUTES: Final = (
    Route(
        method="GET",
        path=_PATH,
        handler=list_quotas,
        name="listQuotas",
        summary="Quotas of users, client ids and addresses",
        needs="DescribeConfigs on the cluster",
        answer=record({"data": array(QUOTA)}),
    ),
    Route(
        method="PUT",
        path=_PATH,
        handler=change_quotas,
        name="changeQuotas",
        summary="Set and remove quotas, all or none",
        needs="AlterConfigs on the cluster",
        body=CHANGE,
        answer=DONE,
    ),
)
