"""Loads of metadata: how a private cluster serves very many partitions.

Owns the order of the measurements, the private cluster of three controllers and three brokers, and
the figures with their names, units and limits. Must not touch any cluster that was there before, or
print anything but a progress bar. Invariants: whatever happens, no process and no directory stays
behind; a figure without a value is left out, and a limit is compared with the median.

No machine could hold 100,000 real partitions: their only replica is on a broker that only the
controllers know (`PhantomBroker`). Controllers and brokers hold and hand on their metadata as any
other; the three real brokers have no directories of these partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau.cli.bench.figures import memory_bytes, percentile, process_cpu_seconds
from moldau.cli.bench.image_loading import BROKER, CONTROLLER, SNAPSHOT, LoadFigures
from moldau.cli.bench.phantom import (
    BenchFailed,
    ChangeSample,
    CreationFigures,
    PhantomBroker,
    create_partitions,
    failover_seconds,
    one_change,
)
from moldau.cli.output import progress_bar
from moldau.client import Admin
from moldau.client.admin.cluster import CLIENT_SOFTWARE
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config import AdminConfig, ClientConfig
from moldau.client.config.client import parse_address
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.raft import METADATA_DIRECTORY
from moldau.testing import Cluster
from moldau.testing.layout import PortHolder
from moldau.testing.watchdog import Watchdog

CONTROLLER_COUNT: Final = 3
BROKER_COUNT: Final = 3

# The metadata row of the design's performance table.
LOAD_S: Final = 10.0
PEAK_MB: Final = 800.0
CHANGE_MS: Final = 50.0
FAILOVER_S: Final = 2.0

NOTE: Final = (
    "the partitions are on a phantom broker that only the controllers know: all of their metadata, "
    "none of their logs"
)
COLUMNS: Final = ("figure", "count", "minimum", "median", "p95", "maximum", "asked", "met")
RESTARTED_BROKER: Final = 3
HOST: Final = "127.0.0.1"
CATCH_UP_DEADLINE_S: Final = 120.0
READY_DEADLINE_S: Final = 120.0
LOAD_DEADLINE_S: Final = 600.0
POLL_S: Final = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataPlan:
    """What is created, changed and restarted, and how often."""

    partition_count: int = 100_000
    partitions_per_topic: int = 10
    sample_count: int = 50
    kill_count: int = 5
    restart_count: int = 3
    load_count: int = 3


@dataclass(frozen=True, slots=True)
class RestartFigures:
    """One start of a broker that was stopped, until /readyz says yes."""

    ready_seconds: float
    cpu_seconds: float
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: its name in JSON, what it is, and the most that its median may be."""

    name: str
    what: str
    values: Sequence[float]
    limit: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the median is within the limit; always without a limit."""
        return self.limit is None or statistics.median(self.values) <= self.limit

    def document(self) -> dict[str, object]:
        asked = {} if self.limit is None else {"at_most": self.limit, "met": self.is_met}
        return {**spread(self.values), **asked}


@dataclass(slots=True)
class MetadataFigures:
    """Everything that was measured. `loads` by role and source."""

    plan: MetadataPlan
    creation: CreationFigures | None = None
    changes: list[ChangeSample] = field(default_factory=list)
    restarts: list[RestartFigures] = field(default_factory=list)
    failovers_s: list[float] = field(default_factory=list)
    loads: dict[tuple[str, str], list[LoadFigures]] = field(default_factory=dict)
    node_peak_bytes: dict[int, int] = field(default_factory=dict)
    load_averages: list[float] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Every figure that has a value."""
        rows = [*self._creation_rows(), *self._load_rows(), *self._cluster_rows()]
        return [row for row in rows if row.values]

    def _creation_rows(self) -> Iterator[Row]:
        made = self.creation
        if made is None:
            return
        for what, count in (("topics", made.topic_count), ("partitions", made.partition_count)):
            yield Row(f"{what}_per_second", f"created {what}/s", [count / made.seconds])

    def _load_rows(self) -> Iterator[Row]:
        for (role, source), loads in self.loads.items():
            name, what = f"{role}_load_from_{source}", f"{role}: image from the {source}"
            peaks = [each.peak_bytes / 1e6 for each in loads]
            yield Row(f"{name}_s", f"{what}, s", [each.seconds for each in loads], LOAD_S)
            yield Row(f"{name}_cpu_s", f"{what}, CPU s", [each.cpu_seconds for each in loads])
            yield Row(f"{name}_peak_mb", f"{what}, peak resident MB", peaks, PEAK_MB)

    def _cluster_rows(self) -> Iterator[Row]:
        ready = [each.ready_seconds for each in self.restarts]
        yield Row("broker_ready_s", "broker started on its log: /readyz, s", ready, LOAD_S)
        cpu = [each.cpu_seconds for each in self.restarts]
        yield Row("broker_ready_cpu_s", "of that CPU s", cpu)
        peaks = [each.peak_bytes / 1e6 for each in self.restarts if each.peak_bytes]
        yield Row("broker_ready_peak_mb", "its peak resident MB", peaks, PEAK_MB)
        for name, what, limit in (
            ("answered", "one topic created: answered, ms", None),
            ("seen_after_sent", "on every broker after it was sent, ms", CHANGE_MS),
            ("seen_after_answer", "on every broker after it was answered, ms", CHANGE_MS),
        ):
            values = [getattr(each, f"{name}_ms") for each in self.changes]
            yield Row(f"change_{name}_ms", what, values, limit)
        what = "active controller killed: next topic created, s"
        yield Row("failover_s", what, self.failovers_s, FAILOVER_S)
        peaks = [each / 1e6 for each in self.node_peak_bytes.values()]
        yield Row("node_peak_mb", "most that a node of the cluster had resident, MB", peaks)

    def document(self) -> dict[str, object]:
        """As JSON shows it; MB are 10^6 bytes."""
        made = self.creation
        return {
            "note": NOTE,
            "partitions": 0 if made is None else made.partition_count,
            "topics": 0 if made is None else made.topic_count,
            "controllers": CONTROLLER_COUNT,
            "brokers": BROKER_COUNT,
            "load_average_1m": [round(each, 2) for each in self.load_averages],
            "figures": {row.name: row.document() for row in self.rows()},
        }

    def table(self) -> Iterator[tuple[str, ...]]:
        """Rows of: what, how often, minimum, median, 95th percentile, maximum, asked, met."""
        for row in self.rows():
            numbers = (f"{number:,}" for number in spread(row.values).values())
            asked = "" if row.limit is None else f"<= {row.limit:g}"
            met = "" if row.limit is None else "yes" if row.is_met else "no"
            yield (row.what, *numbers, asked, met)


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    digits = 3 if ordered[-1] < 100 else 1
    return {
        "count": len(ordered),
        "minimum": round(ordered[0], digits),
        "median": round(statistics.median(ordered), digits),
        "p95": round(percentile(ordered, 95), digits),
        "maximum": round(ordered[-1], digits),
    }


def measure(plan: MetadataPlan) -> MetadataFigures:
    """Start a cluster, measure everything, and leave nothing behind. Raises: BenchFailed,
    NodeFailed, KafkaError, OSError
    """
    return _Measurement(plan).run()


class _Measurement:
    def __init__(self, plan: MetadataPlan) -> None:
        self._plan = plan
        self.figures = MetadataFigures(plan)

    def run(self) -> MetadataFigures:
        import uvloop

        self._look_at_machine()
        copies = Path(tempfile.mkdtemp(prefix="moldau-bench-"))
        watchdog = Watchdog(copies)
        try:
            with progress_bar("starting", 1), Cluster(BROKER_COUNT, CONTROLLER_COUNT) as cluster:
                uvloop.run(self._measure_cluster(cluster))
                self._look_at_machine()
                config = _copy_log(cluster, copies)
            self._measure_loads(copies, config)
        finally:
            shutil.rmtree(copies, ignore_errors=True)
            watchdog.close()
        self._look_at_machine()
        return self.figures

    def _look_at_machine(self) -> None:
        self.figures.load_averages.append(os.getloadavg()[0])

    async def _measure_cluster(self, cluster: Cluster) -> None:
        brokers = ClusterClient(ClientConfig(cluster.bootstrap_server))
        controllers = ClusterClient(
            AdminConfig(
                bootstrap_controllers=cluster.bootstrap_controllers,
                request_timeout_ms=2_000,
                socket_connection_setup_timeout_ms=1_000,
            )
        )
        phantom = PhantomBroker(controllers)
        try:
            await phantom.start()
            with progress_bar("creating partitions", self._plan.partition_count) as bar:
                count, per_topic = self._plan.partition_count, self._plan.partitions_per_topic
                self.figures.creation = await create_partitions(
                    brokers, count, per_topic, bar.move_to
                )
            await _caught_up(cluster, brokers)
            await self._measure_changes(cluster, brokers)
            await self._measure_restarts(cluster, brokers)
            await self._measure_failovers(cluster, brokers)
            for node_id in cluster.node_ids:
                peak_bytes = memory_bytes("VmHWM", cluster.node(node_id).pid)
                if peak_bytes:
                    self.figures.node_peak_bytes[node_id] = peak_bytes
        finally:
            await phantom.close()
            await controllers.close()
            await brokers.close()
        if phantom.fenced_count:
            raise BenchFailed(
                "the machine was so busy that the phantom broker was fenced meanwhile"
            )

    async def _measure_changes(self, cluster: Cluster, brokers: ClusterClient) -> None:
        await brokers.refresh_metadata([])
        await one_change(brokers, cluster.broker_ids, "change-first")  # opens the connections
        with progress_bar("creating single topics", self._plan.sample_count) as bar:
            for number in range(self._plan.sample_count):
                sample = await one_change(brokers, cluster.broker_ids, f"change-{number:06d}")
                self.figures.changes.append(sample)
                bar.move_to(number + 1)

    async def _measure_failovers(self, cluster: Cluster, brokers: ClusterClient) -> None:
        with progress_bar("killing the active controller", self._plan.kill_count) as bar:
            for number in range(self._plan.kill_count):
                active_id = await asyncio.to_thread(cluster.active_controller_id)

                async def kill(node_id: int = active_id) -> None:
                    # In a thread: the phantom broker's heart goes on beating.
                    await asyncio.to_thread(cluster.kill, node_id)

                topic_name = f"failover-{number:06d}"
                seconds = await failover_seconds(brokers, cluster.broker_ids, topic_name, kill)
                self.figures.failovers_s.append(seconds)
                await asyncio.to_thread(cluster.restart, active_id)
                # The next one to lead has all of it in its image, as one that runs for long.
                await _caught_up(cluster, brokers)
                bar.move_to(number + 1)

    async def _measure_restarts(self, cluster: Cluster, brokers: ClusterClient) -> None:
        ports = PortHolder(HOST)
        try:
            [port] = ports.take()
            node = cluster.node(RESTARTED_BROKER)
            with node.config_path.open("a", encoding="utf-8") as properties:
                properties.write(f"\nmoldau.http.listener={HOST}:{port}\n")
            with progress_bar("starting a broker", self._plan.restart_count) as bar:
                for number in range(self._plan.restart_count):
                    # One that led something and handed it on may come back at once; of one that did
                    # not, the controller waits for the session's end first, as Kafka's.
                    others = [each for each in cluster.broker_ids if each != RESTARTED_BROKER]
                    await one_change(brokers, [RESTARTED_BROKER, *others], f"restart-{number:06d}")
                    self.figures.restarts.append(await asyncio.to_thread(_restart, cluster, port))
                    bar.move_to(number + 1)
        finally:
            ports.close()

    def _measure_loads(self, copies: Path, config: Path) -> None:
        (copies / SNAPSHOT).mkdir()
        _run_child(SNAPSHOT, copies / "log", copies / SNAPSHOT)
        expected = 0 if self.figures.creation is None else self.figures.creation.partition_count
        cases = [(role, source) for role in (BROKER, CONTROLLER) for source in (SNAPSHOT, "log")]
        with progress_bar("loading the image", self._plan.load_count * len(cases)) as bar:
            for number in range(self._plan.load_count):
                for index, (role, source) in enumerate(cases):
                    loaded = LoadFigures(**json.loads(_run_child(role, copies / source, config)))
                    if loaded.partition_count < expected:
                        raise BenchFailed(
                            f"{loaded.partition_count} of {expected} partitions are in the {source}"
                        )
                    self.figures.loads.setdefault((role, source), []).append(loaded)
                    bar.move_to(number * len(cases) + index + 1)


async def _caught_up(cluster: Cluster, client: ClusterClient) -> None:
    """Wait until every node has the whole metadata in its image, not only in its log."""
    name, version = CLIENT_SOFTWARE
    asked = ApiVersionsRequest(client_software_name=name, client_software_version=version)
    deadline = time.monotonic() + CATCH_UP_DEADLINE_S
    async with Admin(cluster.bootstrap_server) as admin:
        last_offset = (await admin.describe_metadata_quorum()).high_watermark - 1
    for address in f"{cluster.bootstrap_controllers},{cluster.bootstrap_server}".split(","):
        while True:
            with contextlib.suppress(*PASSING_FAULTS):
                answer = await client.ask_address(*parse_address(address), asked)
                # The features are as of the image that they are in.
                if answer.finalized_features_epoch >= last_offset:
                    break
            if time.monotonic() > deadline:
                raise BenchFailed(f"{address} has not caught up in {CATCH_UP_DEADLINE_S:.0f} s")
            await asyncio.sleep(POLL_S)


def _restart(cluster: Cluster, http_port: int) -> RestartFigures:
    # Stopped, not killed: the controllers would make a killed one wait for its session's end.
    cluster.stop(RESTARTED_BROKER)
    node = cluster.node(RESTARTED_BROKER)
    begin = time.perf_counter()
    node.start()
    while not _is_ready(http_port):
        if not node.running:
            node.wait_ready()  # raises, and says how it ended
        if time.perf_counter() > begin + READY_DEADLINE_S:
            raise BenchFailed(f"broker not ready {READY_DEADLINE_S:.0f} s after its start")
        time.sleep(POLL_S)
    seconds = time.perf_counter() - begin
    cpu_seconds = 0.0
    with contextlib.suppress(OSError):  # where no /proc says it
        cpu_seconds = sum(process_cpu_seconds(node.pid))
    figures = RestartFigures(seconds, cpu_seconds, memory_bytes("VmHWM", node.pid))
    node.wait_ready()
    return figures


def _is_ready(http_port: int) -> bool:
    address = f"http://{HOST}:{http_port}/readyz"
    try:
        with urllib.request.urlopen(address, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _copy_log(cluster: Cluster, copies: Path) -> Path:
    """Kill a controller and take its metadata log and its configuration; the path of the latter."""
    node_id = cluster.controller_ids[0]
    cluster.kill(node_id)
    shutil.copytree(
        cluster.data_directory(node_id) / METADATA_DIRECTORY, copies / "log" / METADATA_DIRECTORY
    )
    return Path(shutil.copy(cluster.node(node_id).config_path, copies))


def _run_child(what: str, source: Path, other: Path) -> str:
    module = "moldau.cli.bench.image_loading"
    command = [sys.executable, "-m", module, what, str(source), str(other)]
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, text=True, timeout=LOAD_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"loading the image took longer than {LOAD_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        raise BenchFailed(done.stderr.strip().rpartition("\n")[2].removeprefix("moldau: "))
    return done.stdout
