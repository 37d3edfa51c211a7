"""A client that asks for thousands of producer ids which nothing gives: others are served."""

from __future__ import annotations

import json
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.wire import PRODUCE_VERSION, Wire, single_record
from moldau.protocol.errors import ErrorCode
from moldau.protocol.messages.p22_init_producer_id import InitProducerIdRequest
from moldau.testing import Cluster
from tests.kit.waiting import until
from tests.system.greedy_producers import CONNECTIONS, REQUESTS_EACH
from tests.unit.broker.messages import produce

pytestmark = pytest.mark.timeout(180)

USUAL_LIMIT_S = 10
"""A third of what Kafka's clients wait for an answer."""
WAIT_S = 25.0
"""Less than a broker waits for a controller (30 s): what is answered by then was refused."""
ASKING = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
STALL = re.compile(r"held the DataLoop for (\d+) ms")


class Greedy:
    """The client in its process, and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._said.put(json.loads(line))

    def heard(self) -> dict[str, Any] | None:
        """The next thing it says, if that has come."""
        try:
            return self._said.get_nowait()
        except queue.Empty:
            assert self.process.poll() is None, "the greedy client has ended"
            return None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


@contextmanager
def greedy_client(address: str) -> Iterator[Greedy]:
    host, _, port = address.rpartition(":")
    command = [sys.executable, "-m", "tests.system.greedy_producers", host, port]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        greedy = Greedy(process)
        try:
            yield greedy
        finally:
            greedy.close()


def test_producer_ids_that_thousands_wait_for() -> None:
    config = {"broker.session.timeout.ms": "120000", "socket.listen.backlog.size": "4096"}
    with Cluster(brokers=2, controllers=1, config=config) as cluster:
        address = cluster.bootstrap_server.split(",")[0]
        host, _, port = address.rpartition(":")
        with Wire(host, int(port)) as good:
            good.create_topic("events", replicas=[1])
            good.socket.settimeout(USUAL_LIMIT_S)
            cluster.pause(cluster.controller_ids[0])
            with greedy_client(address) as greedy:

                def served_until_heard() -> dict[str, Any] | None:
                    request = produce({("events", 0): single_record(b"x")}, acks=1)
                    response = good.ask(request, PRODUCE_VERSION)
                    assert response.responses[0].partition_responses[0].error_code == 0
                    assert good.partitions("events")[0].leader_id == 1
                    return greedy.heard()

                assert until(served_until_heard, deadline_s=WAIT_S) == {
                    "sent": CONNECTIONS * REQUESTS_EACH
                }
                # More wait than may: refused while the controller is silent.
                refused = until(served_until_heard, deadline_s=WAIT_S)
                assert refused == {"first": "COORDINATOR_LOAD_IN_PROGRESS"}
                cluster.resume(cluster.controller_ids[0])
                end = until(served_until_heard, deadline_s=60)
                assert end.keys() == {"answers", "ids"}
                assert end["ids"] == end["answers"]["NONE"] > 2_000, "each id is given once"
                assert set(end["answers"]) == {"NONE", "COORDINATOR_LOAD_IN_PROGRESS"}
            assert good.ask(ASKING, 4).error_code == ErrorCode.NONE
        log = cluster.node(1).log_path.read_text()
        assert cluster.node(1).running
        assert "Traceback" not in log
        assert [each for each in STALL.findall(log) if int(each) >= 1_000] == []
        assert "InitProducerId: " in log, "the greedy principal is named"
