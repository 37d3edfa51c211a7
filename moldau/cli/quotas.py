"""`moldau quotas`: describe and alter client quotas."""

from __future__ import annotations

from typing import Annotated

import typer

from moldau.cli.client_settings import key_values
from moldau.cli.options import AsJson, ClusterAccess, raise_first
from moldau.cli.output import fail, print_json, print_table, say
from moldau.client.admin.security import QuotaEntity, SecurityCalls

app = typer.Typer()

User = Annotated[str | None, "--user", "A user's name, or '' for the default of all users."]
ClientId = Annotated[
    str | None, "--client-id", "A client id, or '' for the default of all client ids."
]
Address = Annotated[str | None, "--ip", "An IP address, or '' for the default of all addresses."]


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str | None]:
    """What the options name; None as a name is the default."""
    given = {"user": user, "client-id": client_id, "ip": ip}
    return {kind: name or None for kind, name in given.items() if name is not None}


@app.command("describe")
def describe(
    access: ClusterAccess,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    strict: Annotated[
        bool, "Only quotas for just what is named: --user alice without client ids."
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show quotas: all, or those of what is named."""
    wanted = _entity(user, client_id, ip)
    if strict and not wanted:
        fail("--strict needs --user, --client-id or --ip", status=2)

    found = access.ask(
        SecurityCalls, lambda admin: admin.describe_client_quotas(wanted, strict=strict)
    )
    entities = sorted(found, key=lambda entity: [(kind, name or "") for kind, name in entity])
    if as_json:
        print_json([{"entity": dict(each), "quotas": found[each]} for each in entities])
        return
    print_table(
        ("user", "client id", "address", "quota", "value"),
        (
            (*(_shown(each, kind) for kind in ("user", "client-id", "ip")), key, f"{value:.15g}")
            for each in entities
            for key, value in sorted(found[each].items())
        ),
    )


def _shown(entity: QuotaEntity, kind: str) -> str:
    parts = dict(entity)
    if kind not in parts:
        return "-"
    name = parts[kind]
    return "(default)" if name is None else name


@app.command("alter")
def alter(
    access: ClusterAccess,
    user: User = None,
    client_id: ClientId = None,
    ip: Address = None,
    set_pairs: Annotated[
        list[str] | None,
        "--set",
        "KEY=VALUE to set; may be repeated. Keys: producer_byte_rate, consumer_byte_rate, "
        "request_percentage, controller_mutation_rate; for --ip connection_creation_rate.",
    ] = None,
    delete_keys: Annotated[list[str] | None, "--delete", "KEY to remove; may be repeated."] = None,
    validate_only: Annotated[bool, "Only check, change nothing."] = False,
) -> None:
    """Set or remove quotas.

    They are of a user, a client id, both, or an address. All are changed, or none.
    """
    entity = tuple(_entity(user, client_id, ip).items())
    if not entity:
        fail("whose quotas? give --user, --client-id or --ip", status=2)
    changes: dict[str, float | None] = dict.fromkeys(delete_keys or [])
    for key, text in key_values(set_pairs or [], "--set").items():
        if key in changes:
            fail(f"{key} cannot be set and deleted at once", status=2)
        try:
            changes[key] = float(text)
        except ValueError:
            fail(f"--set {key}: {text!r} is not a number", status=2)
    if not changes:
        fail("nothing to change: give --set or --delete", status=2)
    with access.asking(SecurityCalls) as (admin, loop):
        altering = admin.alter_client_quotas({entity: changes}, validate_only=validate_only)
        raise_first(loop.run(altering).values())
    say("valid" if validate_only else "altered")
