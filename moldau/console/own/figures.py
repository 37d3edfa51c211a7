"""What the node that serves the console adds to rows of brokers, for those who may describe the
cluster.
"""

from __future__ import annotations

from collections.abc import Iterable

from moldau.console.calls import Call
from moldau.console.figures import NodeFigures
from moldau.console.own.gathering import Directories
from moldau.console.own.lists import Row


async def add_figures(
    call: Call, rows: Iterable[Row], directories: Directories
) -> NodeFigures | None:
    """Put into rows of brokers what the node knows of itself and of listeners; None where no node
    serves the console, or the person may not describe the cluster.
    """
    ask = call.site.settings.node_figures
    if ask is None or not any(isinstance(each, list) for each in directories.values()):
        return None
    figures = await ask()
    if figures is None:
        return None
    for row in rows:
        row["listeners"] = figures.listeners.get(row["broker_id"])
        if row["broker_id"] == figures.broker_id:
            row["version"] = figures.version
            row["connections"] = figures.connections
            row["loop_lag_ms"] = round(figures.loop_lag_ms, 3)
    return figures
