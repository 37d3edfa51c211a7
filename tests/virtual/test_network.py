"""The simulated network under the production server and connection."""

from __future__ import annotations

from random import Random

import pytest

from moldau.protocol.messages.p18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from moldau.runtime.authentication import TlsError
from moldau.runtime.connection import Connection, ConnectionLost, RequestTimedOut
from moldau.server.server import ListenerSpec, Server
from tests.simulation.cluster.certificates import ALERT, alert, expired
from tests.virtual.loop import Process, VirtualClock, VirtualLoop
from tests.virtual.network import Fabric, NetworkSettings

PORT = 9093


class World:
    """A server process on host `s` that answers ApiVersions, and a client process on host `c`."""

    def __init__(self, seed=1, **settings):
        self.loop = VirtualLoop()
        self.fabric = Fabric(self.loop, Random(seed), NetworkSettings(**settings))
        self.client = Process(self.loop, "client")
        self.client.fails_with_tasks = False
        self.client_network = self.fabric.port_of(self.client, "c")
        self.clock = VirtualClock(self.loop)
        self.received = []
        self.answers_wait_ms = 0.0
        self.start_server()

    def start_server(self):
        self.process = Process(self.loop, "server")
        network = self.fabric.port_of(self.process, "s")
        self.server = Server(self._handle, network=network, clock=self.clock)
        self.run(self.server.start([ListenerSpec("L", "", PORT)]), self.process)

    def _handle(self, request):
        self.received.append(request.client_id)
        request.release_body()
        response = ApiVersionsResponse(finalized_features=[])
        if self.answers_wait_ms:
            self.loop.call_later(self.answers_wait_ms / 1000, request.respond, response)
        else:
            request.respond(response)

    def run(self, coroutine, process=None):
        return self.loop.run_until_complete((process or self.client).spawn(coroutine))

    def connect(self, **options):
        options = {"client_id": "c", "clock": self.clock, "negotiate": False, **options}
        return self.run(Connection.connect(self.client_network, "s", PORT, **options))

    def pass_time(self, duration_ms):
        self.loop.run_until_complete(self.loop.elapse(duration_ms))


@pytest.fixture
def make_world():
    worlds = []

    def make(**settings):
        worlds.append(World(**settings))
        return worlds[-1]

    yield make
    for world in worlds:
        world.loop.dispose()


def request(version="1"):
    return ApiVersionsRequest(client_software_name="test", client_software_version=version)


async def burst(connection, count):
    futures = [connection.submit(request(), api_version=3) for _ in range(count)]
    return [(await future).error_code for future in futures]


def test_requests_are_answered_in_order_over_segments_cut_anywhere(make_world):
    world = make_world(split_segment=0.9)
    connection = world.connect()
    assert world.run(burst(connection, 100)) == [0] * 100
    assert world.fabric.counts["segments"] > 20, "most writes were cut into several"


def test_the_same_seed_gives_the_same_run_and_another_one_another(make_world):
    def trace(seed):
        world = make_world(seed=seed, split_segment=0.5)
        world.run(burst(world.connect(), 50))
        return (world.loop.time(), world.loop.step_count, dict(world.fabric.counts))

    assert trace(5) == trace(5)
    assert trace(5) != trace(6)


def test_more_than_the_window_waits_and_arrives_whole(make_world):
    world = make_world()
    connection = world.connect()
    big = [connection.submit(request("1" * 30_000), api_version=3) for _ in range(20)]
    world.pass_time(0.01)
    assert not connection._writable.is_set(), "600 kB do not fit into the window"
    small = connection.submit(request(), api_version=3)
    world.pass_time(1_000)
    assert connection._writable.is_set()
    assert all(future.done() for future in [*big, small])
    assert len(world.received) == 21


def test_connecting_to_a_closed_port_or_an_unknown_host_raises(make_world):
    world = make_world()
    with pytest.raises(ConnectionRefusedError):
        world.run(Connection.connect(world.client_network, "s", PORT + 1, client_id=None))
    with pytest.raises(OSError, match="no such host"):
        world.run(Connection.connect(world.client_network, "nowhere", PORT, client_id=None))


def test_a_dead_machine_lets_connects_hang_until_they_time_out(make_world):
    world = make_world()
    world.process.kill()
    world.fabric.host_down("s")
    began = world.loop.time()
    with pytest.raises(TimeoutError):
        world.connect(connect_timeout_ms=3_000)
    assert world.loop.time() - began == pytest.approx(3)


@pytest.mark.parametrize("direction", [("c", "s"), ("s", "c")])
def test_a_one_way_partition_is_a_black_hole_until_the_request_times_out(make_world, direction):
    world = make_world()
    connection = world.connect()
    world.fabric.block(*direction)
    with pytest.raises(RequestTimedOut):
        world.run(connection.send(request(), api_version=3, timeout_ms=2_000))
    assert len(world.received) == (0 if direction == ("c", "s") else 1)


def test_a_silenced_end_is_heard_no_more_by_this_connection_alone(make_world):
    world = make_world()
    connection, other = world.connect(), world.connect()
    silent = connection._transport.peer
    world.fabric.silence(silent)
    with pytest.raises(RequestTimedOut):
        world.run(connection.send(request(), api_version=3, timeout_ms=2_000))
    world.fabric.heal("s", "c")
    assert world.run(burst(other, 1)) == [0]
    assert len(world.received) == 2


@pytest.mark.parametrize(
    ("error", "text"),
    [(expired(), "its certificate is refused: certificate has expired"), (alert(), ALERT)],
    ids=["of-the-server", "of-the-client"],
)
def test_who_is_not_trusted_has_no_connection(make_world, error, text):
    """As with TLS 1.3: a server refuses a client when that one has connected."""
    world = make_world()
    world.fabric.distrust = lambda source, host: error if (source, host) == ("c", "s") else None
    with pytest.raises(TlsError, match=text):
        world.connect(negotiate=True)
    world.fabric.distrust = None
    assert world.run(burst(world.connect(), 1)) == [0]


def test_what_a_partition_held_back_arrives_after_it_heals(make_world):
    world = make_world(reset_on_heal=0.0)
    connection = world.connect()
    world.fabric.block("c", "s")
    future = connection.submit(request(), api_version=3)
    world.pass_time(1_000)
    assert world.received == []
    world.fabric.heal("c", "s")
    world.pass_time(1_000)
    assert future.result().error_code == 0


def test_a_kernel_gives_up_a_partition_that_lasts(make_world):
    world = make_world(give_up_after_ms=(5_000, 6_000))
    connection = world.connect()
    world.fabric.block("c", "s")
    future = connection.submit(request(), api_version=3, timeout_ms=60_000)
    world.pass_time(7_000)
    with pytest.raises(ConnectionLost, match="timed out"):
        future.result()


def test_a_killed_process_resets_its_connections(make_world):
    world = make_world()
    world.answers_wait_ms = 60_000
    connection = world.connect()
    future = connection.submit(request(), api_version=3)
    world.pass_time(100)
    world.process.kill()
    world.pass_time(100)
    with pytest.raises(ConnectionLost):
        future.result()
    world.start_server()
    world.answers_wait_ms = 0
    assert world.run(burst(world.connect(), 1)) == [0]


def test_a_machine_that_lost_power_is_silent_and_resets_when_it_is_back(make_world):
    world = make_world()
    connection = world.connect()
    world.process.kill()
    world.fabric.host_down("s")
    future = connection.submit(request(), api_version=3, timeout_ms=60_000)
    world.pass_time(2_000)
    assert not future.done()
    world.fabric.host_up("s")
    connection.submit(request(), api_version=3)
    world.pass_time(2_000)
    with pytest.raises(ConnectionLost):
        future.result()


def test_a_stopped_process_accepts_in_its_kernel_and_answers_when_it_goes_on(make_world):
    world = make_world()
    world.process.stop_for(5_000)
    connection = world.connect()
    assert world.loop.time() < 1
    future = connection.submit(request(), api_version=3)
    world.pass_time(4_000)
    assert not future.done()
    world.pass_time(2_000)
    assert future.result().error_code == 0


def test_a_reset_between_any_two_segments_only_costs_the_connection(make_world):
    for seed in range(30):
        world = make_world(seed=seed, split_segment=0.8)
        connection = world.connect()
        world.loop.call_later(0.0005 * (seed + 1), world.fabric.reset_one)
        try:
            assert world.run(burst(connection, 40)) == [0] * 40
        except ConnectionLost:
            assert connection.is_closed
        world.pass_time(100)
        assert world.run(burst(world.connect(), 3)) == [0] * 3
        assert world.loop.unheard_failures() == []
