"""`moldau topics reassign` and `moldau topics elect-leaders`.

Must not talk to a cluster except through `moldau.client`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.cluster_options import (
    DEFAULT_TIMEOUT_MS,
    AsJson,
    BootstrapServer,
    CommandConfig,
    TimeoutMs,
    with_admin,
)
from moldau.cli.output import fail, print_json, print_table
from moldau.client import Admin, BrokerError, ElectionType, Reassignment, TopicPartition
from moldau.protocol.errors import ErrorCode

MAX_FILE_BYTES = 64 * 1024 * 1024

Targets = Annotated[
    list[str] | None,
    typer.Argument(metavar="TOPIC[:PARTITION]…", help="Partitions; a topic's name means all."),
]


class Election(StrEnum):
    """Who may be elected."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"


def reassign(
    targets: Targets = None,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="ID,ID,…", help="The brokers to move to, the preferred leader first."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Moves as kafka-reassign-partitions takes them, as JSON."),
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Undo moves in progress.")] = False,
    same_factor: Annotated[
        bool,
        typer.Option(
            "--disallow-replication-factor-change", help="Refuse another number of replicas."
        ),
    ] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Move partitions to other brokers; without --replicas, --file or --cancel: list the moves."""
    given = [name for name, value in (("--replicas", replicas), ("--file", file)) if value]
    given += ["--cancel"] if cancel else []
    if len(given) > 1:
        fail(f"{' and '.join(given)} exclude each other", status=2)
    if (replicas or cancel) and not targets:
        fail(f"{given[0]} needs a TOPIC or TOPIC:PARTITION", status=2)
    if file and targets:
        fail("--file names the partitions already", status=2)
    wanted = _targets(targets)
    moves = _moves(file) if file else {}
    broker_ids = _broker_ids(replicas) if replicas else None

    async def work(admin: Admin) -> dict[TopicPartition, Any]:
        partitions = await _partitions(admin, wanted)
        if not given:
            return await admin.list_partition_reassignments(partitions)
        if cancel:
            changes: dict[TopicPartition, Any] = dict.fromkeys(
                await admin.list_partition_reassignments(partitions)
            )
            if not changes:
                fail("none of these partitions is being moved")
        else:
            changes = moves or dict.fromkeys(partitions or (), broker_ids)
        await admin.alter_partition_reassignments(
            changes, allow_replication_factor_change=not same_factor
        )
        return changes

    changes = with_admin(bootstrap_server, command_config, timeout_ms, work)
    if not given:
        _show_moves(changes, as_json)
        return
    for partition, target in changes.items():
        where = "stays where it was" if cancel else f"moves to {','.join(map(str, target))}"
        typer.echo(f"{partition} {where}")


def elect_leaders(
    targets: Targets = None,
    election: Annotated[
        Election, typer.Option(help="unclean elects a replica that may lack records.")
    ] = Election.PREFERRED,
    everything: Annotated[
        bool, typer.Option("--all", help="All partitions of all topics.")
    ] = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Give partitions back to their preferred leader, or a leader at all."""
    if everything == bool(targets):
        fail("say which: TOPIC[:PARTITION]… or --all", status=2)
    wanted = _targets(targets)
    kind = ElectionType.PREFERRED if election is Election.PREFERRED else ElectionType.UNCLEAN

    async def work(admin: Admin) -> dict[TopicPartition, BrokerError | None]:
        return await admin.elect_leaders(kind, await _partitions(admin, wanted))

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


def _show_moves(moves: dict[TopicPartition, Reassignment], as_json: bool) -> None:
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "replicas": list(move.replicas),
            "adding_replicas": list(move.adding_replicas),
            "removing_replicas": list(move.removing_replicas),
        }
        for partition, move in sorted(moves.items())
    ]
    if as_json:
        print_json(rows)
    elif not rows:
        typer.echo("no partition is being moved")
    else:
        print_table(
            ("topic", "partition", "replicas", "adding", "removing"),
            (
                (
                    *partition,
                    _ids(move.replicas),
                    _ids(move.adding_replicas),
                    _ids(move.removing_replicas),
                )
                for partition, move in sorted(moves.items())
            ),
        )


def _ids(broker_ids: tuple[int, ...]) -> str:
    return ",".join(map(str, broker_ids)) or "-"


def _targets(texts: list[str] | None) -> list[tuple[str, int | None]]:
    """Topics with a partition, or None for all of its partitions."""
    targets: list[tuple[str, int | None]] = []
    for text in texts or []:
        topic, colon, index = text.partition(":")
        if not topic or (colon and not (index.isascii() and index.isdigit())):
            fail(f"{text!r} is not TOPIC or TOPIC:PARTITION", status=2)
        targets.append((topic, int(index) if colon else None))
    return targets


async def _partitions(
    admin: Admin, targets: list[tuple[str, int | None]]
) -> list[TopicPartition] | None:
    """The partitions that are meant; None for all there are."""
    if not targets:
        return None
    whole = {topic for topic, index in targets if index is None}
    described = await admin.describe_topics(sorted(whole)) if whole else {}
    found = [TopicPartition(topic, index) for topic, index in targets if index is not None]
    found += [
        TopicPartition(name, each.partition)
        for name, topic in described.items()
        for each in topic.partitions
    ]
    return list(dict.fromkeys(found))


def _broker_ids(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        fail(f"--replicas {text!r} is not a list of broker ids", status=2)
    return [int(part) for part in parts]


def _moves(path: Path) -> dict[TopicPartition, list[int]]:
    """The moves of a file; exits with status 2 when it has another form."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            fail(f"{path}: over {MAX_FILE_BYTES} bytes", status=2)
        document = json.loads(path.read_bytes())
        moves = {
            TopicPartition(str(each["topic"]), int(each["partition"])): [
                int(broker_id) for broker_id in each["replicas"]
            ]
            for each in document["partitions"]
        }
    except OSError as error:
        fail(f"{path}: {error.strerror or error}", status=2)
    except (ValueError, KeyError, TypeError) as error:
        form = '{"version":1,"partitions":[{"topic":…,"partition":…,"replicas":[…]}]}'
        fail(f"{path}: not {form}: {type(error).__name__} {error}", status=2)
    if not moves:
        fail(f"{path} names no partitions", status=2)
    return moves
