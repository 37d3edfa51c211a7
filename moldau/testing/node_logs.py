"""What the nodes of a session's clusters logged while a test ran, for the report of its failure.

The files are removed with the clusters, before a person reads the report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from moldau.local.node_process import NodeProcess
from moldau.testing.cluster import Cluster

MOST_LINES: Final = 20
"""The last so many lines of each node are shown."""
_BEGIN: Final = re.compile(r"\d{4}-\d\d-\d\d \S+ (\w+) ")
_COMPLAINTS: Final = ("WARNING", "ERROR", "CRITICAL")


def lengths(clusters: Iterable[Cluster]) -> dict[Path, int]:
    """How many bytes each node has logged."""
    paths = [node.log_path for cluster in clusters for node in _nodes(cluster)]
    return {path: path.stat().st_size for path in paths if path.exists()}


def complaints(clusters: Iterable[Cluster], since: Mapping[Path, int]) -> list[tuple[str, str]]:
    """Warnings and errors that nodes logged behind `since`, and which of them do not run: a title
    and a text for each node that has something to show.
    """
    sections = []
    for cluster in clusters:
        for node_id, node in zip(cluster.node_ids, _nodes(cluster), strict=True):
            state = "" if node.running else f"does not run (exit status {node.exit_code})"
            lines = list(_complaints(node.log_tail(since.get(node.log_path, 0))))
            if state or lines:
                title = f"Moldau node {node_id} of {cluster.bootstrap_server}"
                shown = [*([state] if state else []), *lines[-MOST_LINES:]]
                sections.append((title, "\n".join(shown)))
    return sections


def _nodes(cluster: Cluster) -> list[NodeProcess]:
    return [cluster.node(node_id) for node_id in cluster.node_ids]


def _complaints(log: str) -> Iterator[str]:
    """Lines of a warning or an error, with those of its traceback."""
    shown = False
    for line in log.splitlines():
        begin = _BEGIN.match(line)
        if begin is not None:
            shown = begin[1] in _COMPLAINTS
        if shown:
            yield line
