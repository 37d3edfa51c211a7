"""`moldau topics reassign verify`, `cancel` and `list`: what becomes of moves that have begun.

Must not talk to a cluster except through `moldau.client`. Invariant: throttles are taken away only
when no partition of the cluster is being moved any more, since moves share the brokers' rates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from moldau.cli.live_view import live_view
from moldau.cli.output import fail, print_json, print_table
from moldau.cli.partition_targets import (
    Target,
    Targets,
    describe_targets,
    ids_text,
    parse_targets,
)
from moldau.cli.reassign_files import read_assignment
from moldau.cli.reassign_progress import (
    COLUMNS,
    ReplicaProgress,
    look,
    progress_cells,
    wait_for_moves,
)
from moldau.cli.reassign_throttle import clear_throttles
from moldau.client import Admin, Reassignment, TopicPartition

MIN_INTERVAL_S = 0.1
SETTLE_S = 3.0

FromJson = Annotated[
    Path | None, typer.Option("--from-json", help="The file that `execute` was given.")
]
PreserveThrottles = Annotated[
    bool, typer.Option("--preserve-throttles", help="Leave throttles as they are.")
]
Interval = Annotated[
    float, typer.Option(min=MIN_INTERVAL_S, help="Seconds between two looks while waiting.")
]
WaitTimeoutMs = Annotated[
    int | None,
    typer.Option(min=1, help="Wait no longer than this; the moves go on.", show_default=False),
]


def verify(
    targets: Targets = None,
    from_json: FromJson = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show how it goes until nothing is being moved.")
    ] = False,
    interval: Interval = 1.0,
    wait_timeout_ms: WaitTimeoutMs = None,
    preserve_throttles: PreserveThrottles = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Say whether moves are complete; when nothing is being moved any more, take throttles away.

    Status 1 when something is still being moved, or is not where the file says.
    """
    wanted, planned = _wanted(targets, from_json)

    async def work(admin: Admin) -> list[dict[str, Any]]:
        _, partitions = await describe_targets(admin, wanted)
        if wait:
            with live_view(plain=as_json) as view:
                await wait_for_moves(
                    admin,
                    partitions,
                    view,
                    interval_s=interval,
                    limit_s=None if wait_timeout_ms is None else wait_timeout_ms / 1000,
                    quiet=as_json,
                )
        return await _verified(admin, partitions, planned, as_json, not preserve_throttles)

    with until_done():
        rows = with_admin(bootstrap_server, command_config, timeout_ms, work)
    if as_json:
        print_json(rows)
    incomplete = [row for row in rows if row["state"] != "complete"]
    if incomplete:
        fail(f"{len(incomplete)} of {len(rows)} partitions are not where they should be")


def cancel(
    targets: Targets = None,
    from_json: FromJson = None,
    everything: Annotated[bool, typer.Option("--all", help="All moves there are.")] = False,
    preserve_throttles: PreserveThrottles = False,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Give moves up: partitions stay on the brokers that had them before."""
    if sum((bool(targets), from_json is not None, everything)) != 1:
        fail("say which: TOPIC[:PARTITION]…, --from-json or --all", status=2)
    wanted, _ = _wanted(targets, from_json)

    async def work(admin: Admin) -> None:
        topics, partitions = await describe_targets(admin, wanted)
        moves = await admin.list_partition_reassignments(None if everything else partitions)
        if not moves:
            what = "no partition" if everything else "none of these partitions"
            fail(f"{what} is being moved")
        outcome = await admin.try_partition_reassignments(dict.fromkeys(moves))
        refused = [error for error in outcome.values() if error is not None]
        for partition in sorted(outcome):
            if outcome[partition] is None:
                typer.echo(f"{partition} stays on {ids_text(moves[partition].original_replicas)}")
        if refused:
            fail(f"{len(refused)} of {len(outcome)} moves could not be cancelled: {refused[0]}")
        if not preserve_throttles:
            await _clear(admin, topics)

    with_admin(bootstrap_server, command_config, timeout_ms, work)


def list_moves(
    targets: Targets = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Show the moves that are going on, and how far each new replica is."""
    wanted = parse_targets(targets)

    async def work(
        admin: Admin,
    ) -> tuple[dict[TopicPartition, Reassignment], list[ReplicaProgress]]:
        partitions = (await describe_targets(admin, wanted))[1] if wanted else None
        return await look(admin, partitions)

    moves, rows = with_admin(bootstrap_server, command_config, timeout_ms, work)
    if as_json:
        print_json(
            [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "replicas": list(move.replicas),
                    "adding_replicas": list(move.adding_replicas),
                    "removing_replicas": list(move.removing_replicas),
                    "progress": [row.document() for row in rows if row.partition == partition],
                }
                for partition, move in sorted(moves.items())
            ]
        )
    elif not moves:
        typer.echo("no partition is being moved")
    else:
        print_table(
            ("topic", "partition", "replicas", "adding", "removing"),
            (
                (
                    *partition,
                    ids_text(move.replicas),
                    ids_text(move.adding_replicas),
                    ids_text(move.removing_replicas),
                )
                for partition, move in sorted(moves.items())
            ),
        )
        print_table(COLUMNS, map(progress_cells, rows))


async def finish(
    admin: Admin,
    after: Mapping[TopicPartition, Sequence[int]],
    interval_s: float,
    wait_timeout_ms: int | None,
    *,
    clear: bool,
) -> None:
    """Wait for moves that have just begun; exits with status 1 when they do not end as planned."""
    limit_s = None if wait_timeout_ms is None else wait_timeout_ms / 1000
    with live_view() as view:
        done = await wait_for_moves(admin, after, view, interval_s=interval_s, limit_s=limit_s)
    if not done:
        fail(f"not done within {wait_timeout_ms} ms; the moves go on")
    await _settle(admin, after)
    rows = await _verified(admin, list(after), after, False, clear)
    incomplete = [row for row in rows if row["state"] != "complete"]
    if incomplete:
        fail(f"{len(incomplete)} of {len(rows)} partitions are not where they should be")


async def _settle(admin: Admin, after: Mapping[TopicPartition, Sequence[int]]) -> None:
    """Wait, not for long, until the brokers have heard what the controllers said already."""
    names = {partition.topic for partition in after}
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        topics = await admin.describe_topics(names)
        told = {
            TopicPartition(name, each.partition): each.replicas
            for name, topic in topics.items()
            for each in topic.partitions
        }
        if all(told.get(partition) == tuple(after[partition]) for partition in after):
            return
        await asyncio.sleep(MIN_INTERVAL_S)


@contextmanager
def until_done() -> Iterator[None]:
    """Ctrl-C while waiting: moves are the cluster's work and go on."""
    try:
        yield
    except KeyboardInterrupt:
        fail("interrupted; moves that have begun go on (`moldau topics reassign list`)", status=130)


async def _verified(
    admin: Admin,
    partitions: Collection[TopicPartition],
    planned: Mapping[TopicPartition, Sequence[int]],
    quiet: bool,
    clear: bool,
) -> list[dict[str, Any]]:
    """The state of each partition, said; throttles are taken away when `clear` and all is still."""
    # Moves first: one that ends between the two questions is then seen as it was, not as wrong.
    moves = await admin.list_partition_reassignments()
    topics, _ = await describe_targets(admin, [(each.topic, each.partition) for each in partitions])
    replicas = {
        TopicPartition(name, each.partition): each.replicas
        for name, topic in topics.items()
        for each in topic.partitions
    }
    rows = [_state(each, moves.get(each), replicas[each], planned.get(each)) for each in partitions]
    if not quiet:
        for row in rows:
            name = TopicPartition(row["topic"], row["partition"])
            typer.echo(f"{name} {_state_text(row)}")
    if clear and not moves:
        await _clear(admin, topics, quiet)
    return rows


async def _clear(admin: Admin, topics: Collection[str], quiet: bool = False) -> None:
    """Take throttles away, unless others of the cluster's moves still need them."""
    if await admin.list_partition_reassignments():
        return
    cleared = await clear_throttles(admin, topics)
    if cleared and not quiet:
        typer.echo(f"throttles are taken from {', '.join(cleared)}")


def _state(
    partition: TopicPartition,
    move: Reassignment | None,
    replicas: Sequence[int],
    planned: Sequence[int] | None,
) -> dict[str, Any]:
    if move is not None:
        state = "in progress"
    elif planned is not None and tuple(planned) != tuple(replicas):
        state = "different"
    else:
        state = "complete"
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "state": state,
        "replicas": list(replicas),
        "planned_replicas": None if planned is None else list(planned),
    }


def _state_text(row: Mapping[str, Any]) -> str:
    if row["state"] == "in progress":
        return "is being moved"
    if row["state"] == "different":
        return f"is on {ids_text(row['replicas'])}, not on {ids_text(row['planned_replicas'])}"
    return f"is on {ids_text(row['replicas'])}"


def _wanted(
    targets: list[str] | None, from_json: Path | None
) -> tuple[list[Target], dict[TopicPartition, list[int]]]:
    """The partitions that are meant, and where a file wants them."""
    if from_json is None:
        return parse_targets(targets), {}
    if targets:
        fail("--from-json and TOPIC exclude each other", status=2)
    planned = read_assignment(from_json)
    return [(each.topic, each.partition) for each in planned], planned
