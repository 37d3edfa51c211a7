"""Loads of metadata: how a private cluster serves very many partitions.

Owns the order of the measurements, the private cluster of three controllers and three brokers, the
phantom broker and the topics on it, the clocks (creation, a change on its way to every broker, a
controller's failover), and the figures with their names, units and limits. Must not touch any
cluster that existed before, or print anything but a progress bar. Invariants: whatever happens,
no process and no directory stays behind; every figure is about requests that were answered without
an error, every wait has a deadline; a figure without a value is left out, and a limit is compared
with the median.

No machine could hold 100,000 real partitions: their only replica is on a broker that only the
controllers know (`PhantomBroker`). Controllers and brokers hold and hand on their metadata as any
other; the three real brokers have no directories of these partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from moldau.cli.bench.figures import memory_bytes, percentile, process_cpu_seconds, together
from moldau.cli.bench.image_loading import BROKER, CONTROLLER, SNAPSHOT, LoadFigures
from moldau.cli.bench.plans import MetadataPlan
from moldau.cli.output import progress_bar
from moldau.client import Admin
from moldau.client.admin.cluster import CLIENT_SOFTWARE
from moldau.client.admin.topics import NewTopic, create_topics_request
from moldau.client.cluster.cluster_client import ClusterClient
from moldau.client.cluster.faults import PASSING_FAULTS
from moldau.client.config.client import AdminConfig, ClientConfig, parse_address
from moldau.client.errors import KafkaError, raise_for
from moldau.local.layout import PortHolder
from moldau.local.watchdog import Watchdog
from moldau.metadata.features import SUPPORTED_FEATURES, range_entries
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p03_metadata import MetadataRequest, MetadataRequestTopic
from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest
from moldau.protocol.messages.p19_create_topics import CreateTopicsRequest
from moldau.protocol.messages.p62_broker_registration import (
    BrokerRegistrationRequest,
    Feature,
    Listener,
)
from moldau.protocol.messages.p63_broker_heartbeat import BrokerHeartbeatRequest
from moldau.raft import METADATA_DIRECTORY
from moldau.runtime.event_loop import new_event_loop
from moldau.runtime.fault_words import words_of
from moldau.testing import Cluster

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
PHANTOM_ID: Final = 100
NEVER_BEHIND: Final = 2**63 - 1
HEARTBEAT_S: Final = 1.0
REGISTRATION_TIMEOUT_MS: Final = 60_000
CREATE_TIMEOUT_MS: Final = 60_000
RECORDS_PER_REQUEST: Final = 5_000
"""Well below the 10,000 that one request may make, so that the controller's loop gives way."""
SEEN_POLL_S: Final = 0.001
RETRY_S: Final = 0.01
SEEN_DEADLINE_S: Final = 30.0
FAILOVER_DEADLINE_S: Final = 60.0


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


@dataclass(frozen=True, slots=True)
class CreationFigures:
    """What creating the topics took."""

    topic_count: int
    partition_count: int
    seconds: float


@dataclass(slots=True)
class MetadataFigures:
    """Everything that was measured. `loads` by role and source."""

    creation: CreationFigures = CreationFigures(0, 0, 0.0)
    changes: list[ChangeSample] = field(default_factory=list)
    restarts: list[RestartFigures] = field(default_factory=list)
    failovers_s: list[float] = field(default_factory=list)
    loads: dict[tuple[str, str], list[LoadFigures]] = field(default_factory=dict)
    node_peak_bytes: dict[int, int] = field(default_factory=dict)
    load_averages: list[float] = field(default_factory=list)

    def rows(self) -> list[Row]:
        """Every figure that has a value."""
        return [row for row in self._all_rows() if row.values]

    def _all_rows(self) -> Iterator[Row]:
        made = self.creation
        for what, count in (("topics", made.topic_count), ("partitions", made.partition_count)):
            rates = [count / made.seconds] if made.seconds else []
            yield Row(f"{what}_per_second", f"created {what}/s", rates)
        for (role, source), loads in self.loads.items():
            name, what = f"{role}_load_from_{source}", f"{role}: image from the {source}"
            peaks = [each.peak_bytes / 1e6 for each in loads]
            yield Row(f"{name}_s", f"{what}, s", [each.seconds for each in loads], LOAD_S)
            yield Row(f"{name}_cpu_s", f"{what}, CPU s", [each.cpu_seconds for each in loads])
            yield Row(f"{name}_peak_mb", f"{what}, peak resident MB", peaks, PEAK_MB)
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
        return {
            "note": NOTE,
            "partitions": self.creation.partition_count,
            "topics": self.creation.topic_count,
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
        self.figures = MetadataFigures()

    def run(self) -> MetadataFigures:
        self._look_at_machine()
        copies = Path(tempfile.mkdtemp(prefix="moldau-bench-"))
        watchdog = Watchdog(copies)
        try:
            with progress_bar("starting", 1), Cluster(BROKER_COUNT, CONTROLLER_COUNT) as cluster:
                with asyncio.Runner(loop_factory=new_event_loop) as runner:
                    runner.run(self._measure_cluster(cluster))
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
        # Nodes are stopped on purpose: that they cannot be reached then is no news.
        logger = logging.getLogger("moldau.client")
        level_before = logger.level
        logger.setLevel(logging.ERROR)
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
            with progress_bar("creating partitions", self._plan.partitions) as bar:
                count, per_topic = self._plan.partitions, self._plan.partitions_per_topic
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
            logger.setLevel(level_before)
        if phantom.fenced_count:
            raise BenchFailed(
                "the machine was so busy that the phantom broker was fenced meanwhile"
            )

    async def _measure_changes(self, cluster: Cluster, brokers: ClusterClient) -> None:
        await brokers.refresh_metadata([])
        await one_change(brokers, cluster.broker_ids, "change-first")  # opens the connections
        with progress_bar("creating single topics", self._plan.samples) as bar:
            for number in range(self._plan.samples):
                sample = await one_change(brokers, cluster.broker_ids, f"change-{number:06d}")
                self.figures.changes.append(sample)
                bar.move_to(number + 1)

    async def _measure_failovers(self, cluster: Cluster, brokers: ClusterClient) -> None:
        with progress_bar("killing the active controller", self._plan.kills) as bar:
            for number in range(self._plan.kills):
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
            with progress_bar("starting a broker", self._plan.repeats) as bar:
                for number in range(self._plan.repeats):
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
        expected = self.figures.creation.partition_count
        cases = [(role, source) for role in (BROKER, CONTROLLER) for source in (SNAPSHOT, "log")]
        with progress_bar("loading the image", self._plan.repeats * len(cases)) as bar:
            for number in range(self._plan.repeats):
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


class BenchFailed(Exception):
    """The cluster did not do what is to be measured; one line."""


class PhantomBroker:
    """A broker that only the controllers know: it registers and sends heartbeats, and has neither
    logs nor listeners. States: made → `start` → registered and unfenced → `close`. The client of
    the controllers is not closed here.
    """

    def __init__(self, controllers: ClusterClient) -> None:
        self._controllers = controllers
        self._broker_epoch = -1
        self._heartbeats: asyncio.Task[None] | None = None
        self.fenced_count = 0
        """How many heartbeats found it fenced after the start; then the figures mean nothing."""

    async def start(self) -> None:
        """Register, and wait until the controller has let it in. Raises: KafkaError."""
        await self._controllers.refresh_metadata([])
        request = BrokerRegistrationRequest(
            broker_id=PHANTOM_ID,
            cluster_id=self._controllers.metadata.cluster_id or "",
            incarnation_id=uuid.uuid4(),
            listeners=[Listener(name="PLAINTEXT", host="127.0.0.1", port=9)],  # discard
            features=range_entries(Feature, SUPPORTED_FEATURES.items()),
            rack=None,
            log_dirs=[uuid.uuid4()],
        )

        async def register() -> int:
            response = await self._controllers.ask_controller(request)
            raise_for(response.error_code, None, "register the phantom broker")
            return response.broker_epoch

        async def be_let_in() -> None:
            if await self._beat():
                raise_for(ErrorCode.BROKER_NOT_AVAILABLE, None, "unfence the phantom broker")

        timeout_ms, retry = REGISTRATION_TIMEOUT_MS, self._controllers.retry
        self._broker_epoch = await retry(
            register, what="register the phantom broker", timeout_ms=timeout_ms
        )
        await retry(be_let_in, what="unfence the phantom broker", timeout_ms=timeout_ms)
        self._heartbeats = asyncio.create_task(self._beat_on())

    async def close(self) -> None:
        if self._heartbeats is not None:
            self._heartbeats.cancel()
            await asyncio.wait([self._heartbeats])

    async def _beat(self) -> bool:
        """One heartbeat; whether this broker is fenced. Raises: KafkaError, PASSING_FAULTS."""
        request = BrokerHeartbeatRequest(
            broker_id=PHANTOM_ID,
            broker_epoch=self._broker_epoch,
            # It needs to read nothing; no broker that wants to leave has to wait for it.
            current_metadata_offset=NEVER_BEHIND,
        )
        response = await self._controllers.ask_controller(request, timeout_ms=2_000)
        raise_for(response.error_code, None, "heartbeat of the phantom broker")
        return response.is_fenced

    async def _beat_on(self) -> None:
        while True:
            try:
                self.fenced_count += await self._beat()
            except (KafkaError, *PASSING_FAULTS):
                # The active controller changes: another one is asked next.
                self._controllers.metadata.controller_id = -1
                await asyncio.sleep(RETRY_S)
            else:
                await asyncio.sleep(HEARTBEAT_S)


def phantom_topics(partition_count: int, partitions_per_topic: int) -> Iterator[NewTopic]:
    """Topics with `partition_count` partitions together, all of them on the phantom broker alone;
    the last topic may have fewer than the others.
    """
    number = 0
    while partition_count > 0:
        here = min(partition_count, partitions_per_topic)
        placed = dict.fromkeys(range(here), (PHANTOM_ID,))
        yield NewTopic(f"bench-{number:06d}", replica_assignment=placed)
        number += 1
        partition_count -= here


def creation_requests(topics: Iterator[NewTopic]) -> Iterator[CreateTopicsRequest]:
    """`topics` in requests that make at most RECORDS_PER_REQUEST records each."""
    chunk: list[NewTopic] = []
    record_count = 0
    for topic in topics:
        needed = 1 + len(topic.replica_assignment)
        if chunk and record_count + needed > RECORDS_PER_REQUEST:
            yield create_topics_request(chunk, timeout_ms=CREATE_TIMEOUT_MS)
            chunk, record_count = [], 0
        chunk.append(topic)
        record_count += needed
    if chunk:
        yield create_topics_request(chunk, timeout_ms=CREATE_TIMEOUT_MS)


async def create_partitions(
    brokers: ClusterClient,
    partition_count: int,
    partitions_per_topic: int,
    on_progress: Callable[[int], None],
) -> CreationFigures:
    """Make the many partitions, one request after the other, through a broker."""
    done = topic_count = 0
    begin = time.perf_counter()
    for request in creation_requests(phantom_topics(partition_count, partitions_per_topic)):
        response = await brokers.ask_any(request, timeout_ms=CREATE_TIMEOUT_MS)
        for result in response.topics:
            raise_for(result.error_code, result.error_message, f"create topic {result.name}")
        topic_count += len(request.topics)
        done += sum(len(topic.assignments) for topic in request.topics)
        on_progress(done)
    return CreationFigures(topic_count, done, time.perf_counter() - begin)


@dataclass(frozen=True, slots=True)
class ChangeSample:
    """One created topic's way to every broker, milliseconds."""

    answered_ms: float
    seen_after_sent_ms: float
    seen_after_answer_ms: float


async def one_change(
    brokers: ClusterClient, broker_ids: Sequence[int], topic_name: str
) -> ChangeSample:
    """Create a topic on all of `broker_ids`, and see when the Metadata of each one shows it.

    Every broker is asked again a millisecond after its last answer, so that what is measured is
    late by a round trip at most. Connections must be open.
    """
    request = _real_topic(topic_name, broker_ids)
    begin = time.perf_counter()
    async with together() as group:
        watchers = [group.create_task(_seen(brokers, each, topic_name)) for each in broker_ids]
        response = await brokers.ask_node(broker_ids[0], request)
        answered = time.perf_counter()
        [result] = response.topics
        raise_for(result.error_code, result.error_message, f"create topic {topic_name}")
    seen = max(each.result() for each in watchers)
    return ChangeSample(
        answered_ms=(answered - begin) * 1e3,
        seen_after_sent_ms=(seen - begin) * 1e3,
        seen_after_answer_ms=max(seen - answered, 0.0) * 1e3,
    )


async def _seen(brokers: ClusterClient, broker_id: int, topic_name: str) -> float:
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=topic_name)], allow_auto_topic_creation=False
    )
    deadline = time.perf_counter() + SEEN_DEADLINE_S
    while time.perf_counter() < deadline:
        response = await brokers.ask_node(broker_id, request)
        if response.topics[0].error_code == ErrorCode.NONE:
            return time.perf_counter()
        await asyncio.sleep(SEEN_POLL_S)
    raise BenchFailed(f"broker {broker_id} has not heard of {topic_name} in {SEEN_DEADLINE_S} s")


async def failover_seconds(
    brokers: ClusterClient,
    broker_ids: Sequence[int],
    topic_name: str,
    kill: Callable[[], Awaitable[None]],
) -> float:
    """Kill the active controller and create a topic: seconds from just before the kill until that
    has succeeded. Raises: BenchFailed
    """
    request = _real_topic(topic_name, broker_ids[:1])
    begin = time.perf_counter()
    await kill()
    problem = "no answer"
    while time.perf_counter() < begin + FAILOVER_DEADLINE_S:
        try:
            response = await brokers.ask_node(broker_ids[0], request)
        except PASSING_FAULTS as fault:
            problem = words_of(fault)
        else:
            error = ErrorCode.of(response.topics[0].error_code)
            # An earlier try may have succeeded after all.
            if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return time.perf_counter() - begin
            problem = error.name
        await asyncio.sleep(RETRY_S)
    raise BenchFailed(f"no topic created {FAILOVER_DEADLINE_S:.0f} s after the kill: {problem}")


def _real_topic(topic_name: str, broker_ids: Sequence[int]) -> CreateTopicsRequest:
    """A topic of one partition with a replica on each of the brokers."""
    topic = NewTopic(topic_name, replica_assignment={0: broker_ids})
    return create_topics_request([topic], timeout_ms=CREATE_TIMEOUT_MS)
