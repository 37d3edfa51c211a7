"""`moldau bench metadata`: how a cluster bears very many partitions, on nodes of its own.

Owns the order of the measurements, the private cluster of three controllers and three brokers, and
the figures. Must not: touch any cluster that was there before, or print. Invariant: whatever
happens, no process and no directory stays behind.

Nobody could hold 100,000 real partitions on a machine: their only replica is on a broker that the
controllers alone know (`PhantomBroker`). Controllers and brokers hold and hand on their metadata
as any other; the three real brokers just have no directories of theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Protocol

from moldau.cli.bench_metadata_cluster import (
    BenchFailed,
    PhantomBroker,
    create_partitions,
    failover_seconds,
    one_change,
)
from moldau.cli.bench_metadata_figures import (
    BROKER_COUNT,
    CONTROLLER_COUNT,
    MetadataFigures,
    MetadataPlan,
    RestartFigures,
)
from moldau.cli.bench_metadata_load import BROKER, CONTROLLER, SNAPSHOT, LoadFigures, memory_bytes
from moldau.client import Admin
from moldau.client.admin.cluster import CLIENT_SOFTWARE
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config import AdminConfig, ClientConfig
from moldau.client.config.client import parse_address
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.raft import METADATA_DIRECTORY
from moldau.testing import Cluster
from moldau.testing.ports import PortHolder
from moldau.testing.watchdog import Watchdog

RESTARTED_BROKER: Final = 3
HOST: Final = "127.0.0.1"
CATCH_UP_DEADLINE_S: Final = 120.0
READY_DEADLINE_S: Final = 120.0
LOAD_DEADLINE_S: Final = 600.0
POLL_S: Final = 0.02


class Progress(Protocol):
    """How far one phase is."""

    def move_to(self, done: int) -> None:
        """So much of it is done."""


ShowPhase = Callable[[str, int], AbstractContextManager[Progress]]
"""Called at the start of each phase with what it does and how many steps it has."""


class _Silent:
    def move_to(self, done: int) -> None:
        pass


@contextmanager
def show_nothing(_what: str, _total: int) -> Iterator[Progress]:
    """For callers without an audience."""
    yield _Silent()


def measure(plan: MetadataPlan, show: ShowPhase = show_nothing) -> MetadataFigures:
    """Start a cluster, measure everything, and leave nothing behind.

    Raises:
        BenchFailed: the cluster did not do what is to be measured.
        NodeFailed, KafkaError, OSError
    """
    import uvloop

    figures = MetadataFigures(plan)
    figures.load_averages.append(os.getloadavg()[0])
    copies = Path(tempfile.mkdtemp(prefix="moldau-bench-"))
    watchdog = Watchdog(copies)
    try:
        with show("starting", 1), Cluster(BROKER_COUNT, CONTROLLER_COUNT) as cluster:
            uvloop.run(_measure_cluster(cluster, plan, show, figures))
            figures.load_averages.append(os.getloadavg()[0])
            config = _copy_log(cluster, copies)
        _measure_loads(copies, config, plan, show, figures)
    finally:
        shutil.rmtree(copies, ignore_errors=True)
        watchdog.close()
    figures.load_averages.append(os.getloadavg()[0])
    return figures


async def _measure_cluster(
    cluster: Cluster, plan: MetadataPlan, show: ShowPhase, figures: MetadataFigures
) -> None:
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
        with show("creating partitions", plan.partition_count) as bar:
            figures.creation = await create_partitions(
                brokers, plan.partition_count, plan.partitions_per_topic, bar.move_to
            )
        await _caught_up(cluster, brokers)
        await _measure_changes(cluster, brokers, plan, show, figures)
        await _measure_restarts(cluster, brokers, plan, show, figures)
        await _measure_failovers(cluster, brokers, plan, show, figures)
        for node_id in cluster.node_ids:
            peak_bytes = memory_bytes("VmHWM", cluster.node(node_id).pid)
            if peak_bytes:
                figures.node_peak_bytes[node_id] = peak_bytes
    finally:
        await phantom.close()
        await controllers.close()
        await brokers.close()
    if phantom.fenced_count:
        raise BenchFailed("the machine was so busy that the phantom broker was fenced meanwhile")


async def _measure_changes(
    cluster: Cluster,
    brokers: ClusterClient,
    plan: MetadataPlan,
    show: ShowPhase,
    figures: MetadataFigures,
) -> None:
    await brokers.refresh_metadata([])
    await one_change(brokers, cluster.broker_ids, "change-first")  # opens the connections
    with show("creating single topics", plan.sample_count) as bar:
        for number in range(plan.sample_count):
            sample = await one_change(brokers, cluster.broker_ids, f"change-{number:06d}")
            figures.changes.append(sample)
            bar.move_to(number + 1)


async def _measure_failovers(
    cluster: Cluster,
    brokers: ClusterClient,
    plan: MetadataPlan,
    show: ShowPhase,
    figures: MetadataFigures,
) -> None:
    with show("killing the active controller", plan.kill_count) as bar:
        for number in range(plan.kill_count):
            active_id = await asyncio.to_thread(cluster.active_controller_id)

            async def kill(node_id: int = active_id) -> None:
                # In a thread: the phantom broker's heart goes on beating.
                await asyncio.to_thread(cluster.kill, node_id)

            figures.failovers_s.append(
                await failover_seconds(brokers, cluster.broker_ids, f"failover-{number:06d}", kill)
            )
            await asyncio.to_thread(cluster.restart, active_id)
            # The next one to lead has all of it in its image, as one that runs for long.
            await _caught_up(cluster, brokers)
            bar.move_to(number + 1)


async def _caught_up(cluster: Cluster, client: ClusterClient) -> None:
    """Wait until every node has the whole metadata in its image, not only in its log.

    Raises: BenchFailed, KafkaError.
    """
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


async def _measure_restarts(
    cluster: Cluster,
    brokers: ClusterClient,
    plan: MetadataPlan,
    show: ShowPhase,
    figures: MetadataFigures,
) -> None:
    ports = PortHolder(HOST)
    try:
        [port] = ports.take()
        node = cluster.node(RESTARTED_BROKER)
        with node.config_path.open("a", encoding="utf-8") as properties:
            properties.write(f"\nmoldau.http.listener={HOST}:{port}\n")
        with show("starting a broker", plan.restart_count) as bar:
            for number in range(plan.restart_count):
                # One that led something and handed it on may come back at once; of one that did
                # not, the controller waits for the session's end first, as Kafka's.
                others = [each for each in cluster.broker_ids if each != RESTARTED_BROKER]
                await one_change(brokers, [RESTARTED_BROKER, *others], f"restart-{number:06d}")
                figures.restarts.append(await asyncio.to_thread(_restart, cluster, port))
                bar.move_to(number + 1)
    finally:
        ports.close()


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
    figures = RestartFigures(seconds, _cpu_seconds(node.pid), memory_bytes("VmHWM", node.pid))
    node.wait_ready()
    return figures


def _is_ready(http_port: int) -> bool:
    address = f"http://{HOST}:{http_port}/readyz"
    try:
        with urllib.request.urlopen(address, timeout=1.0) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _cpu_seconds(pid: int) -> float:
    """User and system time of a process so far; 0 where no /proc says it."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return 0.0
    user, system = after_name.split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# -- loading the image ---------------------------------------------------------------------------


def _copy_log(cluster: Cluster, copies: Path) -> Path:
    """Kill a controller and take its metadata log and its configuration; the path of the latter."""
    node_id = cluster.controller_ids[0]
    cluster.kill(node_id)
    shutil.copytree(
        cluster.data_directory(node_id) / METADATA_DIRECTORY, copies / "log" / METADATA_DIRECTORY
    )
    return Path(shutil.copy(cluster.node(node_id).config_path, copies))


def _measure_loads(
    copies: Path, config: Path, plan: MetadataPlan, show: ShowPhase, figures: MetadataFigures
) -> None:
    (copies / SNAPSHOT).mkdir()
    _run_child(SNAPSHOT, copies / "log", copies / SNAPSHOT)
    expected = 0 if figures.creation is None else figures.creation.partition_count
    cases = [(role, source) for role in (BROKER, CONTROLLER) for source in (SNAPSHOT, "log")]
    with show("loading the image", plan.load_count * len(cases)) as bar:
        for number in range(plan.load_count):
            for index, (role, source) in enumerate(cases):
                loaded = LoadFigures(**json.loads(_run_child(role, copies / source, config)))
                if loaded.partition_count < expected:
                    raise BenchFailed(
                        f"{loaded.partition_count} of {expected} partitions are in the {source}"
                    )
                figures.loads.setdefault((role, source), []).append(loaded)
                bar.move_to(number * len(cases) + index + 1)


def _run_child(what: str, source: Path, other: Path) -> str:
    command = [
        sys.executable,
        "-m",
        "moldau.cli.bench_metadata_load",
        what,
        *map(str, (source, other)),
    ]
    try:
        done: subprocess.CompletedProcess[str] = subprocess.run(
            command, capture_output=True, text=True, timeout=LOAD_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise BenchFailed(f"loading the image took longer than {LOAD_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        raise BenchFailed(done.stderr.strip().rpartition("\n")[2].removeprefix("moldau: "))
    return done.stdout
