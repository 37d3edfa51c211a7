"""`…/security/users`: who may log in with a password; it is salted here, and never sent on."""

from __future__ import annotations

from typing import Final

from moldau.client import (
    KafkaError,
    ScramCredentialInfo,
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
)
from moldau.console.calls import Call, Reply
from moldau.console.own.brokers import DONE
from moldau.console.own.commands import command, option
from moldau.console.own.lists import OWN, Row
from moldau.console.routes import Route
from moldau.console.schemas import INTEGER, STRING, array, named, one_of, record

MECHANISMS: Final = {each.name.replace("_", "-"): each for each in reversed([*ScramMechanism])}
"""The mechanisms as clients are configured with them, the stronger one first."""
USUAL: Final = "SCRAM-SHA-512"
LEAST_ITERATIONS, MOST_ITERATIONS = 4_096, 16_384
MAX_PASSWORD: Final = 4_096
USER: Final = named(
    "User",
    record(
        {
            "name": STRING,
            "mechanisms": array(record({"mechanism": STRING, "iterations": INTEGER})),
        }
    ),
)
NEW_PASSWORD: Final = record(
    {"password": {"type": "string", "minLength": 1, "maxLength": MAX_PASSWORD}},
    {
        "mechanism": one_of(*MECHANISMS),
        "iterations": {**INTEGER, "minimum": LEAST_ITERATIONS, "maximum": MOST_ITERATIONS},
    },
)


async def list_users(call: Call) -> Reply:
    """The users that have a password."""
    clients = await call.clients()
    found = await clients.admin.describe_user_scram_credentials()
    return Reply(
        {
            "data": [
                {"name": name, "mechanisms": [*map(_mechanism, infos)]}
                for name, infos in sorted(found.items())
                if not isinstance(infos, KafkaError)
            ]
        }
    )


def _mechanism(info: ScramCredentialInfo) -> Row:
    number = info.mechanism
    name = number.name.replace("_", "-") if isinstance(number, ScramMechanism) else str(number)
    return {"mechanism": name, "iterations": info.iterations}


async def set_password(call: Call) -> Reply:
    """Let a user log in with a password, or change it."""
    name, body = call.path["user"], call.body
    mechanism = body.get("mechanism", USUAL)
    iterations = body.get("iterations", LEAST_ITERATIONS)
    wanted = ScramUpsertion(name, body["password"], MECHANISMS[mechanism], iterations)
    await _alter(call, [wanted])
    words = option("--mechanism", None if mechanism == USUAL else mechanism)
    words += option("--iterations", None if iterations == LEAST_ITERATIONS else iterations)
    return Reply({"command": command("users", "create", *words, names=[name])})


async def delete_user(call: Call) -> Reply:
    """Let a user log in no more. Raises: KafkaError: RESOURCE_NOT_FOUND, without a password."""
    clients, name = await call.clients(), call.path["user"]
    found = (await clients.admin.describe_user_scram_credentials([name]))[name]
    if isinstance(found, KafkaError):
        raise found
    for each in found:
        await _alter(call, [ScramDeletion(name, ScramMechanism(each.mechanism))])
    return Reply({"command": command("users", "delete", names=[name])})


async def _alter(call: Call, alterations: list[ScramUpsertion | ScramDeletion]) -> None:
    clients = await call.clients()
    for problem in (await clients.admin.alter_user_scram_credentials(alterations)).values():
        if problem is not None:
            raise problem


_ALL: Final = f"{OWN}/security/users"
_ONE: Final = f"{_ALL}/{{user}}"
_ALTER: Final = "Alter on the cluster"
ROUTES: Final = (
    Route(
        method="GET",
        path=_ALL,
        handler=list_users,
        name="listUsers",
        summary="Users that have a password, and how each logs in",
        needs="Describe on the cluster",
        answer=record({"data": array(USER)}),
    ),
    Route(
        method="PUT",
        path=_ONE,
        handler=set_password,
        name="setPassword",
        summary="Let a user log in with a password, or change it",
        needs=_ALTER,
        body=NEW_PASSWORD,
        answer=DONE,
    ),
    Route(
        method="DELETE",
        path=_ONE,
        handler=delete_user,
        name="deleteUser",
        summary="Let a user log in no more",
        needs=_ALTER,
        answer=DONE,
    ),
)
