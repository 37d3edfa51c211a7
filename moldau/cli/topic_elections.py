"""`moldau topics elect-leaders`.

Must not talk to a cluster except through `moldau.client`. Invariant: nothing that can lose records
is asked for unless somebody said yes to exactly that.
"""

from __future__ import annotations

import sys
from enum import StrEnum
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
from moldau.cli.output import fail, print_json
from moldau.cli.partition_targets import Targets, describe_targets, parse_targets
from moldau.client import Admin, BrokerError, ElectionType, TopicPartition
from moldau.protocol.errors import ErrorCode

UNCLEAN_WARNING = (
    "an unclean election may make a replica the leader that lacks acknowledged records: "
    "these are then lost on all replicas"
)


class Election(StrEnum):
    """Who may be elected."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def elect_leaders(
    targets: Targets = None,
    election: Annotated[
        Election, typer.Option(help="unclean elects a replica that may lack records.")
    ] = Election.PREFERRED,
    everything: Annotated[
        bool, typer.Option("--all", help="All partitions of all topics.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask before an unclean election.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Give partitions back to their preferred leader, or a leader at all."""
    if everything == bool(targets):
        fail("say which: TOPIC[:PARTITION]… or --all", status=2)
    wanted = parse_targets(targets)
    if election is Election.UNCLEAN and not yes:
        _ask()
    kind = ElectionType.PREFERRED if election is Election.PREFERRED else ElectionType.UNCLEAN

    async def work(admin: Admin) -> dict[TopicPartition, BrokerError | None]:
        partitions = (await describe_targets(admin, wanted))[1] if wanted else None
        return await admin.elect_leaders(kind, partitions)

    outcome = with_admin(bootstrap_server, command_config, timeout_ms, work)
    failed = {
        partition: error
        for partition, error in outcome.items()
        if error is not None and error.code is not ErrorCode.ELECTION_NOT_NEEDED
    }
    if as_json:
        print_json(
            [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "elected": error is None,
                    "error": None if error is None else error.code.name,
                }
                for partition, error in sorted(outcome.items())
            ]
        )
    else:
        for partition, error in sorted(outcome.items()):
            if partition not in failed:
                typer.echo(f"{partition} {'elected' if error is None else 'needed no election'}")
        if not outcome:
            typer.echo("no partition needed an election")
    if failed:
        texts = "; ".join(str(error) for error in list(failed.values())[:3])
        fail(f"{len(failed)} of {len(outcome)} elections failed: {texts}")


def _ask() -> None:
    if not sys.stdin.isatty():
        fail(f"{UNCLEAN_WARNING}; give --yes if that is what you want", status=2)
    typer.echo(f"moldau: {UNCLEAN_WARNING}", err=True)
    if not typer.confirm("Elect all the same?", err=True):
        fail("nothing was elected")
