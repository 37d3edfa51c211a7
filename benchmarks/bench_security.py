"""What security costs: TLS beside Apache Kafka's and our PLAINTEXT, handshakes, ACLs, quotas.

Kafka's node and ours have the same key store, version of TLS and suite. Throughput, over one
connection and over twenty at once, and the handshakes that a core of clients can do take turns on
both. A thousand connections come, ask once, stay and go: what the nodes' memory does during that;
and whether it grows while connections come and go for `MOLDAU_BENCH_CHURN_S` seconds. The
authorizer has ten thousand entries, some of which are about the client. Producers are timed beside
a client that is held to its quota. `MOLDAU_BENCH_PARTS` names the parts to run, divided by commas;
without it all are.
"""

from __future__ import annotations

import os
from typing import Final

from benchmarks.bench_start_up import WITHOUT_KAFKA
from benchmarks.figures import Effort, Report
from benchmarks.nodes import temporary_directory
from benchmarks.secured import SUITE, TLS_VERSION, key_store, secured_nodes
from benchmarks.security_connections import churn, handshakes, memory
from benchmarks.security_limits import authorizer, quota
from benchmarks.security_throughput import throughput

PARTS_VARIABLE: Final = "MOLDAU_BENCH_PARTS"
PARTS: Final = ("throughput", "handshakes", "memory", "churn", "authorizer", "quota")


def run(effort: Effort) -> Report:
    """One part after the other. Raises: ValueError: there is no such part."""
    report = Report("Security")
    parts = os.environ.get(PARTS_VARIABLE, ",".join(PARTS)).split(",")
    if unknown := set(parts).difference(PARTS):
        raise ValueError(f"{PARTS_VARIABLE}: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    with temporary_directory() as directory:
        store = key_store(directory)
        if "throughput" in parts or "handshakes" in parts:
            with secured_nodes(effort, directory, store) as nodes:
                if "throughput" in parts:
                    throughput(effort, report, nodes, store)
                if "handshakes" in parts:
                    handshakes(effort, report, nodes, store)
                if len(nodes) == 1:
                    report.notes.append(WITHOUT_KAFKA)
        if "memory" in parts:
            memory(effort, report, directory, store)
        if "churn" in parts:
            churn(effort, report, directory, store)
    if "authorizer" in parts:
        authorizer(effort, report)
    if "quota" in parts:
        quota(effort, report)
    report.notes.append(f"{TLS_VERSION}, {SUITE}, certificates with keys of the curve P-256.")
    return report
