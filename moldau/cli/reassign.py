"""`moldau topics reassign`: plan, execute, verify, cancel, list; by `reassignment`.

Invariants: what cannot work is refused before anything is changed, the throttle included; throttles
are taken away only when no partition of the cluster is being moved any more, since moves share the
brokers' rates.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from moldau import client
from moldau.cli.options import (
    MIN_INTERVAL_S,
    AsJson,
    ClusterAccess,
    Target,
    Targets,
    describe_targets,
    ids_text,
    parse_ids,
    parse_targets,
    partitions_of,
)
from moldau.cli.output import (
    INTERRUPTED,
    fail,
    live_view,
    print_json,
    print_table,
    say,
    size_text,
    warn,
)
from moldau.cli.parameters import Within
from moldau.cli.reassignment import (
    COLUMNS,
    Move,
    Plan,
    Wish,
    assignment_document,
    clear_throttles,
    look,
    make_plan,
    partition_sizes,
    progress_cells,
    read_assignment,
    set_throttle,
    wait_for_moves,
    write_assignment,
)

app = typer.Typer(help="Move partitions to other brokers.", no_args_is_help=True)

Rollback = Annotated[Path | None, "Write the present replicas to this file, for going back."]
SETTLE_S = 3.0
ExecutedJson = Annotated[Path | None, "The file that was given to `execute`."]
PreserveThrottles = Annotated[bool, "--preserve-throttles", "Do not remove throttles."]
Interval = Annotated[float, Within(MIN_INTERVAL_S), "Seconds between two updates of --wait."]
WaitTimeoutMs = Annotated[
    int | None, Within(1), "Stop waiting after this many milliseconds; the moves go on."
]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The options that say where partitions are to be."""

    targets: Targets = None
    brokers: Annotated[
        str | None, "--brokers ID,ID,…", "The brokers to use; by default all that serve."
    ] = None
    without: Annotated[
        str | None, "--without ID,ID,…", "Brokers not to use, for instance to empty them."
    ] = None
    racks: Annotated[str | None, "--racks RACK,RACK,…", "Use brokers in these racks only."] = None
    replication_factor: Annotated[
        int | None, Within(1), "How many replicas; by default as many as now."
    ] = None
    disable_rack_aware: Annotated[bool, "Do not spread replicas over racks."] = False
    from_json: Annotated[
        Path | None, "A file as kafka-reassign-partitions takes and prints it."
    ] = None

    def wish(self, replicas: str | None = None) -> Wish:
        """The options as values; exits with status 2 when they make no sense together."""
        rules = {
            "--brokers": self.brokers,
            "--without": self.without,
            "--racks": self.racks,
            "--replication-factor": self.replication_factor,
            "--disable-rack-aware": self.disable_rack_aware or None,
        }
        given = [name for name, value in rules.items() if value is not None]
        if self.from_json is not None:
            named = [*(["TOPIC"] if self.targets else []), *(["--replicas"] if replicas else [])]
            if excluded := named + given:
                fail(f"--from-json and {' and '.join(excluded)} exclude each other", status=2)
            return Wish([], listed=read_assignment(self.from_json))
        if replicas is not None and given:
            fail(f"--replicas and {' and '.join(given)} exclude each other", status=2)
        return Wish(
            parse_targets(self.targets),
            replicas=_ids(replicas, "--replicas"),
            brokers=_ids(self.brokers, "--brokers"),
            without=_ids(self.without, "--without"),
            racks=None if self.racks is None else [each.strip() for each in self.racks.split(",")],
            replication_factor=self.replication_factor,
            rack_aware=not self.disable_rack_aware,
        )


def _ids(text: str | None, option: str) -> list[int] | None:
    return None if text is None else parse_ids(text, option)


class PartitionState(NamedTuple):
    """Where a partition is: "complete", "in progress", or "different" from what a file plans."""

    topic: str
    partition: int
    state: str
    replicas: Sequence[int]
    planned_replicas: Sequence[int] | None


@app.command("verify")
def verify(
    access: ClusterAccess,
    targets: Targets = None,
    from_json: ExecutedJson = None,
    wait: Annotated[bool, "Show the progress until nothing is being moved."] = False,
    interval: Interval = 1.0,
    wait_timeout_ms: WaitTimeoutMs = None,
    preserve_throttles: PreserveThrottles = False,
    as_json: AsJson = False,
) -> None:
    """Check whether moves are complete, and remove throttles.

    Throttles are removed once nothing is being moved any more. The exit status is 1 when something
    is still being moved, or is not where the file says.
    """
    wanted, planned = _wanted(targets, from_json)
    with until_done(), access.asking(client.Admin) as (admin, loop):
        _, partitions = loop.run(describe_targets(admin, wanted))
        if wait:
            with live_view(plain=as_json) as view:
                waiting = wait_for_moves(
                    *(admin, partitions, view),
                    interval_s=interval,
                    timeout_ms=wait_timeout_ms,
                    quiet=as_json,
                )
                loop.run(waiting)
        rows = loop.run(_verified(admin, partitions, planned, as_json, not preserve_throttles))
    if as_json:
        print_json([row._asdict() for row in rows])
    _refuse_incomplete(rows)


@app.command("cancel")
def cancel(
    access: ClusterAccess,
    targets: Targets = None,
    from_json: ExecutedJson = None,
    everything: Annotated[bool, "--all", "Cancel all moves."] = False,
    preserve_throttles: PreserveThrottles = False,
) -> None:
    """Cancel moves: partitions stay on their earlier brokers."""
    if sum((bool(targets), from_json is not None, everything)) != 1:
        fail("say which: TOPIC[:PARTITION]…, --from-json or --all", status=2)
    wanted, _ = _wanted(targets, from_json)
    with access.asking(client.Admin) as (admin, loop):
        topics, partitions = loop.run(describe_targets(admin, wanted))
        listing = admin.list_partition_reassignments(None if everything else partitions)
        moves = loop.run(listing)
        if not moves:
            what = "no partition" if everything else "none of these partitions"
            fail(f"{what} is being moved")
        outcome = loop.run(admin.try_partition_reassignments(dict.fromkeys(moves)))
        refused = [error for error in outcome.values() if error is not None]
        for partition in sorted(outcome):
            if outcome[partition] is None:
                say(f"{partition} stays on {ids_text(moves[partition].original_replicas)}")
        if refused:
            fail(f"{len(refused)} of {len(outcome)} moves could not be cancelled: {refused[0]}")
        if not preserve_throttles:
            loop.run(_clear(admin, topics))


@app.command("list")
def list_moves(access: ClusterAccess, targets: Targets = None, as_json: AsJson = False) -> None:
    """Show the moves that are going on, and their progress."""
    wanted = parse_targets(targets)
    with access.asking(client.Admin) as (admin, loop):
        partitions = loop.run(describe_targets(admin, wanted))[1] if wanted else None
        moves, rows = loop.run(look(admin, partitions))
    if as_json:
        print_json(
            [
                {
                    **partition._asdict(),
                    **asdict(move),
                    "progress": [row.document() for row in rows if row.partition == partition],
                }
                for partition, move in sorted(moves.items())
            ]
        )
    elif not moves:
        say("no partition is being moved")
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


@app.command("plan")
def plan(
    access: ClusterAccess,
    wanted: Wanted,
    output: Annotated[Path | None, "--output -o", "Write the plan to this file."] = None,
    rollback: Rollback = None,
    as_json: AsJson = False,
) -> None:
    """Show what would move, and how much, without moving it.

    The partitions that are named (all, when none is) are spread evenly over the brokers, each over
    as many racks as there are, with as few copies as possible. --json and --output have the form of
    Kafka's files: `moldau topics reassign execute --from-json FILE` carries the plan out.
    """
    wish = wanted.wish()
    with access.asking(client.Admin) as (admin, loop):
        made = loop.run(make_plan(admin, wish))
        sizes = loop.run(partition_sizes(admin, made))
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
    access: ClusterAccess,
    wanted: Wanted,
    replicas: Annotated[
        str | None, "--replicas ID,ID,…", "The brokers to move to, the preferred leader first."
    ] = None,
    throttle: Annotated[
        int | None, "Bytes per second that each broker may send and receive for the moves."
    ] = None,
    additional: Annotated[bool, "Start even while other moves are going on."] = False,
    same_factor: Annotated[
        bool, "--disallow-replication-factor-change", "Refuse to change the number of replicas."
    ] = False,
    rollback: Rollback = None,
    wait: Annotated[bool, "Show the progress until it is done, as verify does."] = False,
    interval: Interval = 1.0,
    wait_timeout_ms: WaitTimeoutMs = None,
) -> None:
    """Move partitions to other brokers.

    They go to --replicas, as a file says, or as `plan` with the same options would. A throttle
    stays until `verify` or `cancel` finds that nothing is being moved any more. The same command
    with another --throttle changes it for moves that are going on.
    """
    if throttle is not None and throttle <= 0:
        fail(f"--throttle {throttle}: nothing would ever be copied; give more than 0", status=2)
    wish = wanted.wish(replicas)
    if not wish.targets and wish.listed is None and not wish.without:
        fail("say what to move: TOPIC[:PARTITION]…, --without or --from-json", status=2)
    with until_done(), access.asking(client.Admin) as (admin, loop):
        made = loop.run(make_plan(admin, wish))
        if made.moves:
            loop.run(_begin(admin, made, throttle, additional, same_factor, rollback))
        elif made.wanted.keys() & made.ongoing.keys():
            say("all partitions are where they should be, or on the way")
            if throttle is not None:
                loop.run(_throttle(admin, made, throttle))
        else:
            say("all partitions are where they should be")
            return
        if wait:
            is_throttled = throttle is not None
            loop.run(finish(admin, made.wanted, interval, wait_timeout_ms, clear=is_throttled))


async def _begin(
    admin: client.Admin,
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
            say(f"{partition} moves to {ids_text(made.after[partition])}")
    if refused:
        fail(f"{len(refused)} of {len(outcome)} could not be moved: {refused[0]}")


async def _throttle(admin: client.Admin, made: Plan, bytes_per_second: int) -> None:
    """Throttle the moves that begin, and again those that are on their way: a topic's list has to
    name them all.
    """
    moving = {
        partition: Move(move.original_replicas, move.target_replicas)
        for partition, move in made.ongoing.items()
    }
    live = made.live_broker_ids
    down = await set_throttle(admin, {**moving, **made.moves}, bytes_per_second, live)
    if down:
        warn(f"not throttled, since they are down: {ids_text(down)}")


def _show(made: Plan, sizes: Mapping[client.TopicPartition, int | None]) -> None:
    if not made.moves:
        say("all partitions are where they should be")
        return
    rows: list[tuple[object, ...]] = []
    sizes_to_copy: list[int | None] = []
    for partition, move in sorted(made.moves.items()):
        size = sizes[partition] if move.added else 0
        size = None if size is None else size * len(move.added)
        sizes_to_copy.append(size)
        rows.append(
            (
                *partition,
                ids_text(move.before),
                ids_text(move.after),
                ids_text(move.added),
                ids_text(move.removed),
                None if size is None else size_text(size),
            )
        )
    print_table(("topic", "partition", "replicas", "becomes", "adds", "removes", "to-copy"), rows)
    known = sum(size for size in sizes_to_copy if size is not None)
    copies = sum(len(move.added) for move in made.moves.values())
    at_least = "at least " if None in sizes_to_copy else ""
    say(
        f"{len(made.moves)} partitions change, {copies} replicas are copied, "
        f"{at_least}{size_text(known)}"
    )


async def finish(
    admin: client.Admin,
    after: Mapping[client.TopicPartition, Sequence[int]],
    interval_s: float,
    wait_timeout_ms: int | None,
    *,
    clear: bool,
) -> None:
    """Wait for moves that have just begun; exits with status 1 when they do not end as planned."""
    with live_view() as view:
        done = await wait_for_moves(
            admin, after, view, interval_s=interval_s, timeout_ms=wait_timeout_ms
        )
    if not done:
        fail(f"not done within {wait_timeout_ms} ms; the moves go on")
    await _settle(admin, after)
    rows = await _verified(admin, list(after), after, False, clear)
    _refuse_incomplete(rows)


async def _settle(
    admin: client.Admin, after: Mapping[client.TopicPartition, Sequence[int]]
) -> None:
    """Wait for a short time until the brokers have the metadata of the controllers."""
    names = {partition.topic for partition in after}
    deadline_s = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline_s:
        told = partitions_of(await admin.describe_topics(names))
        if all(each in told and told[each].replicas == tuple(after[each]) for each in after):
            return
        await asyncio.sleep(MIN_INTERVAL_S)


@contextmanager
def until_done() -> Iterator[None]:
    """Ctrl-C while waiting: moves are the cluster's work and go on."""
    try:
        yield
    except KeyboardInterrupt:
        fail(
            "interrupted; moves that have begun go on (`moldau topics reassign list`)",
            status=INTERRUPTED,
        )


async def _verified(
    admin: client.Admin,
    partitions: Collection[client.TopicPartition],
    planned: Mapping[client.TopicPartition, Sequence[int]],
    quiet: bool,
    clear: bool,
) -> list[PartitionState]:
    """Print and return the state of each partition; with `clear`, take throttles away when no move
    is left.
    """
    # Moves first: one that ends between the two questions is then seen as it was, not as wrong.
    moves = await admin.list_partition_reassignments()
    topics, _ = await describe_targets(admin, partitions)
    there = partitions_of(topics)
    rows = [
        _state(each, moves.get(each), there[each].replicas, planned.get(each))
        for each in partitions
    ]
    if not quiet:
        for row in rows:
            say(f"{row.topic}-{row.partition} {_state_text(row)}")
    if clear and not moves:
        await _clear(admin, topics, quiet)
    return rows


async def _clear(admin: client.Admin, topics: Collection[str], quiet: bool = False) -> None:
    """Take throttles away, unless others of the cluster's moves still need them."""
    if await admin.list_partition_reassignments():
        return
    cleared = await clear_throttles(admin, topics)
    if cleared and not quiet:
        say(f"throttles are taken from {', '.join(cleared)}")


def _refuse_incomplete(rows: Collection[PartitionState]) -> None:
    incomplete = [row for row in rows if row.state != "complete"]
    if incomplete:
        fail(f"{len(incomplete)} of {len(rows)} partitions are not where they should be")


def _state(
    partition: client.TopicPartition,
    move: client.Reassignment | None,
    replicas: Sequence[int],
    planned: Sequence[int] | None,
) -> PartitionState:
    if move is not None:
        state = "in progress"
    elif planned is not None and tuple(planned) != tuple(replicas):
        state = "different"
    else:
        state = "complete"
    return PartitionState(*partition, state, replicas, planned)


def _state_text(row: PartitionState) -> str:
    if row.state == "in progress":
        return "is being moved"
    if row.state == "different":
        return f"is on {ids_text(row.replicas)}, not on {ids_text(row.planned_replicas or ())}"
    return f"is on {ids_text(row.replicas)}"


def _wanted(
    targets: list[str] | None, from_json: Path | None
) -> tuple[list[Target], dict[client.TopicPartition, list[int]]]:
    """The partitions that are meant, and the replicas that a file plans for them."""
    if from_json is None:
        return parse_targets(targets), {}
    if targets:
        fail("--from-json and TOPIC exclude each other", status=2)
    planned = read_assignment(from_json)
    return list(planned), planned
