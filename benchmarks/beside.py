"""One client that is measured, alone and beside others: its requests, the turns, what they show.

Owns the measured client's requests, one after the other with a pause after each, and the table of
all rounds. Invariant: what is measured alone and beside others takes turns within a round, and the
node is quiet before each. The node has its own core; on the other one the measured client
comes first (`first_on_load_core`), and the others have what is left (`give_way`). Every figure is
taken twice: of all requests, and of those soon after whose begin the machine held up no core
(`benchmarks.stalls`).
"""

from __future__ import annotations

import itertools
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.figures import Report, Spread, Table, at_most, ratio_of_all
from benchmarks.nodes import BrokerNode, wait_until_quiet
from benchmarks.processes import awake
from benchmarks.stalls import Span, Stalls, selections, timed, touched
from benchmarks.wire import ProduceFrame, Wire

ALONE: Final = "none"
HARMLESS: Final = "harmless requests, the control"
RECORD_BYTES: Final = 1_000
PAUSE_S: Final = 0.0025

Asks = Sequence[Callable[[], object]]
"""Requests that take turns; each is called to send it and wait for its answer."""

Round = Mapping[str, Sequence[Span]]
"""The client's requests by what was beside it, alone first."""


def produce(wire: Wire, topic: str) -> Callable[[], object]:
    """A batch of 1 KB with acks=all."""
    frame = ProduceFrame(topic, record_bytes=RECORD_BYTES, batch_bytes=RECORD_BYTES)
    return lambda: wire.exchange(frame.frame)


def requests(asks: Asks, count: int) -> list[Span]:
    """Each of `count` requests."""
    found = []
    for ask in itertools.islice(itertools.cycle(asks), count):
        found.append(timed(ask))
        time.sleep(PAUSE_S)
    return found


def by_turns(
    node: BrokerNode,
    asks: Asks,
    count: int,
    turn_count: int,
    others: Mapping[str, subprocess.Popen[bytes]],
) -> Round:
    """So many turns of `count` requests, alone and beside each of the others, which are stopped."""
    found: dict[str, list[Span]] = defaultdict(list)
    for _ in range(turn_count):
        found[ALONE] += requests(asks, count)
        for name, other in others.items():
            with awake(other):
                found[name] += requests(asks, count)
            wait_until_quiet(node)
    return found


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that p99 beside another client may be, of p99 alone and, if that is asked for, of
    p99 beside the harmless one.
    """

    per_alone: float
    per_control: float | None = None


def tell(
    report: Report,
    rounds: Sequence[Round],
    stalls: Stalls | None,
    what: str,
    title: str,
    limits: Limits,
) -> None:
    """Add the table, the targets, and a note on the stalls. `what`: the requests, in the plural."""
    names = list(rounds[0])
    peers = [name for name in (ALONE, HARMLESS) if name in names]
    ratios = ("p99 / alone", "p99 / control")[: len(peers)]
    table = Table(
        ("beside", what, "p50 ms", "p99 ms", "longest ms", *ratios),
        f"{title}, minimum / median / maximum over the rounds; ratios are of all rounds together, "
        "with one left out in turn:",
    )
    for kind, selected in selections(stalls).items():
        found = {name: [selected(each[name]) for each in rounds] for name in names}
        for name, beside in found.items():
            per_alone, *per_control = (ratio_of_all(beside, found[peer], 99) for peer in peers)
            longest = Spread.of([max(each) for each in beside])
            halves, tails = (Spread.of_percentile(beside, percent) for percent in (50, 99))
            cells = (halves, tails, longest, per_alone, *per_control)
            table.add(name, kind, *(cell.text() for cell in cells))
            asked = f"p99 beside {name} ({kind}) ≤"
            if name != ALONE:
                text = f"{asked} {limits.per_alone:g} x undisturbed"
                report.targets.append(at_most(text, per_alone, limits.per_alone))
            if name not in peers and limits.per_control is not None:
                text = f"{asked} {limits.per_control:g} x the control's"
                report.targets.append(at_most(text, per_control[0], limits.per_control))
    report.tables.append(table)
    spans = {name: [one for each in rounds for one in each[name]] for name in names}
    report.notes.append(touched(stalls, spans, what))
