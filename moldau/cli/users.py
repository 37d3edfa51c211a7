"""`moldau users`: who may log in with SCRAM; create, list and delete.

A password comes from a prompt or from a file, never from the command line, where other processes
and the shell's history would see it. The cluster keeps keys that are made of it.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from moldau import client
from moldau.cli.asking import Yes, ask_first, refuse_unknown
from moldau.cli.options import AsJson, ClusterAccess, raise_first, read_small_file, value_of
from moldau.cli.output import fail, print_rows, say
from moldau.cli.parameters import Within
from moldau.client.admin.security import (
    ScramDeletion,
    ScramMechanism,
    ScramUpsertion,
    SecurityCalls,
)
from moldau.protocol.errors import ErrorCode

app = typer.Typer()
COLUMNS = ["user", "mechanism", "iterations"]
Name = Annotated[str, "The user's name."]


class Mechanism(StrEnum):
    """The values of `--mechanism`."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def number(self) -> ScramMechanism:
        return ScramMechanism[self.replace("-", "_")]

    @classmethod
    def of(cls, number: ScramMechanism) -> str:
        return number.name.replace("_", "-")


@app.command("create")
def create(
    access: ClusterAccess,
    name: Name,
    mechanism: Annotated[Mechanism, "The user's SASL mechanism."] = Mechanism.SHA_512,
    iterations: Annotated[int, Within(4_096, 16_384), "Work for one login."] = 4_096,
    password_file: Annotated[Path | None, "Read the password from a file's first line."] = None,
) -> None:
    """Let a user log in with a password, or change the password.

    It is asked for at the terminal unless there is a file.
    """
    password = _password(password_file)
    wanted = ScramUpsertion(name, password, mechanism.number, iterations)
    with access.asking(SecurityCalls) as (admin, loop):
        raise_first(loop.run(admin.alter_user_scram_credentials([wanted])).values())
    say(f"user {name} may log in with {mechanism}")


@app.command("list")
def list_users(access: ClusterAccess, as_json: AsJson = False) -> None:
    """Show the users that have a password, and how each logs in."""
    users = access.ask(SecurityCalls, lambda admin: admin.describe_user_scram_credentials())
    rows: list[dict[str, object]] = []
    for user, found in sorted(users.items()):
        if isinstance(found, client.KafkaError):
            fail(str(found))
        for info in found:
            number = ScramMechanism(info.mechanism)
            rows.append(
                {"user": user, "mechanism": Mechanism.of(number), "iterations": info.iterations}
            )
    print_rows(COLUMNS, rows, as_json=as_json)


@app.command("delete")
def delete(
    access: ClusterAccess,
    name: Name,
    mechanism: Annotated[Mechanism | None, "This one alone; all by default."] = None,
    yes: Yes = False,
) -> None:
    """Let a user log in no more. Connections that are open stay so until their sessions end."""
    with access.asking(SecurityCalls) as (admin, loop):
        found = loop.run(admin.describe_user_scram_credentials([name]))[name]
        if isinstance(found, client.KafkaError) and found.code == ErrorCode.RESOURCE_NOT_FOUND:
            refuse_unknown("user", [name], loop.run(admin.describe_user_scram_credentials()))
        numbers = [ScramMechanism(each.mechanism) for each in value_of(found)]
        if mechanism is not None:
            known = [Mechanism.of(each) for each in numbers]
            refuse_unknown(f"password of {name} for", [mechanism.value], known)
            numbers = [mechanism.number]
        passwords = " and ".join(Mechanism.of(each) for each in numbers)
        ask_first(f"delete the {passwords} password of user {name}", yes=yes)
        for number in numbers:
            deletion = ScramDeletion(name, number)
            raise_first(loop.run(admin.alter_user_scram_credentials([deletion])).values())
    for number in numbers:
        say(f"user {name} has no {Mechanism.of(number)} password any more")


def _password(path: Path | None) -> str:
    """The password; exits with status 2 when there is none."""
    if path is not None:
        try:
            [password, *_] = read_small_file(path).decode().splitlines() or [""]
        except UnicodeDecodeError:
            fail(f"{path}: it is not UTF-8", status=2)
    elif sys.stdin.isatty():
        password = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True))
    else:
        fail("there is no terminal to ask at: give a --password-file", status=2)
    if not password:
        fail("the password is empty", status=2)
    return password
