"""`moldau topics reassign`: plan and execute; what follows them is in `reassign_follow`.

Must not talk to a cluster except through `moldau.client`. Invariant: what cannot work is refused
before anything is changed, the throttle included.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from moldau.cli.output import fail, print_json, print_table, size_text
from moldau.cli.partition_targets import (
    Targets,
    ids_text,
    parse_ids,
    parse_targets,
)
from moldau.cli.reassign_files import assignment_document, read_assignment, write_assignment
from moldau.cli.reassign_follow import (
    Interval,
    WaitTimeoutMs,
    cancel,
    finish,
    list_moves,
    until_done,
    verify,
)
from moldau.cli.reassign_plan import Plan, Wish, make_plan, partition_sizes
from moldau.cli.reassign_throttle import Move, set_throttle
from moldau.client import Admin, TopicPartition

app = typer.Typer(
    help="Move partitions to other brokers: plan, execute, verify, cancel, list.",
    no_args_is_help=True,
)
app.command("verify")(verify)
app.command("cancel")(cancel)
app.command("list")(list_moves)

Brokers = Annotated[
    str | None,
    typer.Option(metavar="ID,ID,…", help="The brokers to use; all that serve when left out."),
]
Without = Annotated[
    str | None,
    typer.Option(metavar="ID,ID,…", help="Brokers not to use, for instance to empty them."),
]
Racks = Annotated[
    str | None, typer.Option(metavar="RACK,RACK,…", help="Use brokers in these racks only.")
]
Factor = Annotated[
    int | None, typer.Option(min=1, help="How many replicas; as many as now when left out.")
]
IgnoreRacks = Annotated[
    bool, typer.Option("--disable-rack-aware", help="Do not spread replicas over racks.")
]
FromJson = Annotated[
    Path | None,
    typer.Option("--from-json", help="A file as kafka-reassign-partitions takes and prints it."),
]
Rollback = Annotated[
    Path | None,
    typer.Option(help="Write the replicas as they are now to this file, to go back with it."),
]


@app.command("plan")
def plan(
    targets: Targets = None,
    brokers: Brokers = None,
    without: Without = None,
    racks: Racks = None,
    replication_factor: Factor = None,
    disable_rack_aware: IgnoreRacks = False,
    from_json: FromJson = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the plan to this file.")
    ] = None,
    rollback: Rollback = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
    as_json: AsJson = False,
) -> None:
    """Say what would move, and how much; nothing is changed.

    The partitions that are named (all, when none is) are spread evenly over the brokers, each over
    as many racks as there are, with as few copies as possible. --json and --output have the form of
    Kafka's files: `moldau topics reassign execute --from-json FILE` carries the plan out.
    """
    wish = _wish(
        targets, None, from_json, brokers, without, racks, replication_factor, disable_rack_aware
    )

    async def work(admin: Admin) -> tuple[Plan, dict[TopicPartition, int | None]]:
        made = await make_plan(admin, wish)
        return made, await partition_sizes(admin, made)

    made, sizes = with_admin(bootstrap_server, command_config, timeout_ms, work)
    if output is not None:
        write_assignment(output, made.after)
    if rollback is not None:
        write_assignment(rollback, made.before)
    if as_json:
        print_json(assignment_document(made.after))
    else:
        _show(made, sizes)


@app.command("execute")
def execute(
    targets: Targets = None,
    replicas: Annotated[
        str | None,
        typer.Option(metavar="ID,ID,…", help="These brokers, the preferred leader first."),
    ] = None,
    from_json: FromJson = None,
    brokers: Brokers = None,
    without: Without = None,
    racks: Racks = None,
    replication_factor: Factor = None,
    disable_rack_aware: IgnoreRacks = False,
    throttle: Annotated[
        int | None,
        typer.Option(help="Bytes per second that each broker may send and receive for the moves."),
    ] = None,
    additional: Annotated[
        bool, typer.Option("--additional", help="Even while other moves are going on.")
    ] = False,
    same_factor: Annotated[
        bool,
        typer.Option(
            "--disallow-replication-factor-change", help="Refuse another number of replicas."
        ),
    ] = False,
    rollback: Rollback = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Show how it goes until it is done, as verify does.")
    ] = False,
    interval: Interval = 1.0,
    wait_timeout_ms: WaitTimeoutMs = None,
    bootstrap_server: BootstrapServer = None,
    command_config: CommandConfig = None,
    timeout_ms: TimeoutMs = DEFAULT_TIMEOUT_MS,
) -> None:
    """Move partitions: to --replicas, as a file says, or as `plan` with the same options would.

    A throttle stays until `verify` or `cancel` finds that nothing is being moved any more. The same
    command with another --throttle changes it for moves that are going on.
    """
    if throttle is not None and throttle <= 0:
        fail(f"--throttle {throttle}: nothing would ever be copied; give more than 0", status=2)
    wish = _wish(
        targets, replicas, from_json, brokers, without, racks, replication_factor,
        disable_rack_aware,
    )  # fmt: skip
    if not wish.targets and wish.listed is None:
        fail("say what to move: TOPIC[:PARTITION]… or --from-json", status=2)

    async def work(admin: Admin) -> None:
        made = await make_plan(admin, wish)
        if made.moves:
            await _begin(admin, made, throttle, additional, same_factor, rollback)
        elif made.wanted.keys() & made.ongoing.keys():
            typer.echo("all partitions are where they should be, or on the way")
            if throttle is not None:
                await _throttle(admin, made, throttle)
        else:
            typer.echo("all partitions are where they should be")
            return
        if wait:
            await finish(admin, made.wanted, interval, wait_timeout_ms, clear=throttle is not None)

    with until_done():
        with_admin(bootstrap_server, command_config, timeout_ms, work)


async def _begin(
    admin: Admin,
    made: Plan,
    throttle: int | None,
    additional: bool,
    same_factor: bool,
    rollback: Path | None,
) -> None:
    if made.ongoing and not additional:
        some = ", ".join(map(str, sorted(made.ongoing)[:3]))
        fail(
            f"{len(made.ongoing)} partitions are being moved already ({some}): "
            "wait, cancel that, or give --additional"
        )
    if rollback is not None:
        write_assignment(rollback, made.before)
    if throttle is not None:
        await _throttle(admin, made, throttle)
    outcome = await admin.try_partition_reassignments(
        made.after, allow_replication_factor_change=not same_factor
    )
    refused = [error for error in outcome.values() if error is not None]
    for partition in sorted(outcome):
        if outcome[partition] is None:
            typer.echo(f"{partition} moves to {ids_text(made.after[partition])}")
    if refused:
        fail(f"{len(refused)} of {len(outcome)} could not be moved: {refused[0]}")


async def _throttle(admin: Admin, made: Plan, bytes_per_second: int) -> None:
    """Throttle what begins and, anew, what is on its way: a topic's list has to name them all."""
    moving = {
        partition: Move(move.original_replicas, move.target_replicas)
        for partition, move in made.ongoing.items()
    }
    live = made.live_broker_ids
    down = await set_throttle(admin, {**moving, **made.moves}, bytes_per_second, live)
    if down:
        typer.echo(f"moldau: not throttled, since they are down: {ids_text(down)}", err=True)


def _wish(
    targets: list[str] | None,
    replicas: str | None,
    from_json: Path | None,
    brokers: str | None,
    without: str | None,
    racks: str | None,
    replication_factor: int | None,
    disable_rack_aware: bool,
) -> Wish:
    """The options as values; exits with status 2 when they make no sense together."""
    rules = {
        "--brokers": brokers,
        "--without": without,
        "--racks": racks,
        "--replication-factor": replication_factor,
        "--disable-rack-aware": disable_rack_aware or None,
    }
    given = [name for name, value in rules.items() if value is not None]
    if from_json is not None:
        excluded = [*(["TOPIC"] if targets else []), *(["--replicas"] if replicas else []), *given]
        if excluded:
            fail(f"--from-json and {' and '.join(excluded)} exclude each other", status=2)
        return Wish([], listed=read_assignment(from_json))
    if replicas is not None and given:
        fail(f"--replicas and {' and '.join(given)} exclude each other", status=2)
    return Wish(
        parse_targets(targets),
        replicas=None if replicas is None else parse_ids(replicas, "--replicas"),
        brokers=None if brokers is None else parse_ids(brokers, "--brokers"),
        without=None if without is None else parse_ids(without, "--without"),
        racks=None if racks is None else [each.strip() for each in racks.split(",")],
        replication_factor=replication_factor,
        rack_aware=not disable_rack_aware,
    )


def _show(made: Plan, sizes: Mapping[TopicPartition, int | None]) -> None:
    if not made.moves:
        typer.echo("all partitions are where they should be")
        return

    def to_copy(partition: TopicPartition, move: Move) -> int | None:
        size = sizes[partition]
        return 0 if not move.added else None if size is None else size * len(move.added)

    rows: list[tuple[Any, ...]] = []
    for partition, move in sorted(made.moves.items()):
        size = to_copy(partition, move)
        rows.append(
            (
                partition.topic,
                partition.partition,
                ids_text(move.before),
                ids_text(move.after),
                ids_text(move.added),
                ids_text(move.removed),
                None if size is None else size_text(size),
            )
        )
    print_table(("topic", "partition", "replicas", "becomes", "adds", "removes", "to-copy"), rows)
    sizes_to_copy = [to_copy(*each) for each in made.moves.items()]
    known = sum(size for size in sizes_to_copy if size is not None)
    copies = sum(len(move.added) for move in made.moves.values())
    at_least = "at least " if None in sizes_to_copy else ""
    typer.echo(
        f"{len(made.moves)} partitions change, {copies} replicas are copied, "
        f"{at_least}{size_text(known)}"
    )
