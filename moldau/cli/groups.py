"""`moldau groups`: list and delete; what has a module of its own is added here.

Must not talk to a cluster except through `moldau.client`.
"""

from __future__ import annotations

from typing import Annotated

import typer

from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    with_admin,
)
from moldau.cli.group_targets import AllGroups, GroupIds, chosen_groups, require_groups
from moldau.cli.groups_delete_offsets import delete_offsets
from moldau.cli.groups_describe import describe
from moldau.cli.groups_reset import reset_offsets
from moldau.cli.output import complain, print_json, print_table
from moldau.client import Admin, GroupListing, KafkaError

app = typer.Typer(
    help="Groups: list, describe, reset or delete offsets, delete.", no_args_is_help=True
)
app.command("describe")(describe)
app.command("reset-offsets")(reset_offsets)
app.command("delete-offsets")(delete_offsets)


@app.command("list")
def list_groups(
    states: Annotated[
        list[str] | None,
        typer.Option("--state", help="Only groups in this state; may be repeated."),
    ] = None,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only groups of this type (classic, consumer)."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """List the groups, with their type, protocol and state."""

    async def work(admin: Admin) -> list[GroupListing]:
        return await admin.list_groups(states=states or (), group_types=types or ())

    rows = [
        {
            "group_id": each.group_id,
            "type": each.group_type,
            "protocol": each.protocol_type,
            "state": each.state,
            "coordinator": each.coordinator_id,
        }
        for each in with_admin(bootstrap_server, command_config, timeout_ms, work)
    ]
    if as_json:
        print_json(rows)
        return
    print_table(
        ("group", "type", "protocol", "state", "coordinator"),
        ((cell if cell != "" else None for cell in row.values()) for row in rows),
    )


@app.command("delete")
def delete(
    group_ids: GroupIds = None,
    all_groups: AllGroups = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Delete groups that nobody is in, with everything they have committed."""
    require_groups(group_ids, all_groups)

    async def work(admin: Admin) -> dict[str, KafkaError | None]:
        return await admin.delete_groups(await chosen_groups(admin, group_ids, all_groups))

    outcome = with_admin(bootstrap_server, command_config, timeout_ms, work)
    for group_id, error in outcome.items():
        if error is None:
            typer.echo(f"deleted {group_id}")
    complain(error for error in outcome.values() if error is not None)
