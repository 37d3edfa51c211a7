"""The readers' process `spark`: a structured stream whose drivers are killed.

Owns the drivers, one after the other over one checkpoint, each its own process group; the
databases and the Redis that they write to; and what is reported of both. Must not judge, nor run
Spark itself. Invariant: a loss is reported before the rows that were stored after it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import fakeredis

from tests.system.topics.account import Read
from tests.system.topics.events import MEMBER, Tail, Teller
from tests.system.topics.readers import Stop
from tests.system.topics.spark_driver import ROWS, ROWS_AFTER
from tests.system.topics.spark_source import FILE_VARIABLE, losses_of
from tests.system.topics.stores import (
    DIRECTORY_VARIABLE,
    POSTGRES,
    Table,
    create_tables,
    own_postgres,
    read_of,
)

REPOSITORY: Final = Path(__file__).parents[3]
DRIVER: Final = "tests.system.topics.spark_driver"
DRIVER_S: Final = (10.0, 90.0)
"""How long a driver lives after its first rows before it is killed."""
LOOK_S: Final = 0.1
END_S: Final = 30.0
SHOWN: Final = 2_000
OPTIONS: Final = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "false",
    "includeTopicId": "true",
    "maxOffsetsPerTrigger": "20000",
    "kafka.isolation.level": "read_committed",
    "kafka.default.api.timeout.ms": "20000",
    "kafka.request.timeout.ms": "4000",
    "kafka.metadata.max.age.ms": "2000",
    "kafka.reconnect.backoff.max.ms": "500",
}


def spark_stream(teller: Teller, bootstrap: str, topics: list[str]) -> None:
    """Drivers until the end of the input."""
    directory = Path(os.environ[DIRECTORY_VARIABLE]) / "spark"
    directory.mkdir()
    stop, dice = Stop(), Random()
    with own_postgres() as postgres_url, fake_redis() as (server, redis_url):
        job = {
            "options": {
                **OPTIONS,
                "kafka.bootstrap.servers": bootstrap,
                "subscribe": ",".join(topics),
            },
            "checkpoint": str(directory / "checkpoint"),
            "sqlite": f"sqlite:///{directory}/results.db",
            "postgres": postgres_url,
            "redis": redis_url,
        }
        create_tables(job["sqlite"])
        stored = Stored(teller, job, server, directory / "warnings")
        while not stop:
            driver = Driver(job, directory)
            end: float | None = None
            while not stop and driver.is_running and (end is None or time.monotonic() < end):
                if stored.tell() and end is None:
                    end = time.monotonic() + dice.uniform(*DRIVER_S)
                stop.wait(LOOK_S)
            if stop:
                driver.end()
            elif driver.is_running:
                driver.kill()
                teller.note("spark-sql", "a driver was killed")
            else:
                teller.wrong("spark-sql", f"the driver has ended: {driver.said()}")
                break
            stored.tell()


@contextmanager
def fake_redis() -> Iterator[tuple[fakeredis.FakeServer, str]]:
    """A Redis that outlives the drivers, and its URL."""
    server = fakeredis.TcpFakeServer(("127.0.0.1", 0))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.fake_server, f"redis://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Driver:
    """One driver's process group. States: running → ended."""

    def __init__(self, job: dict[str, Any], directory: Path) -> None:
        self._errors = directory / "errors"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", DRIVER, json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=REPOSITORY,
                env={
                    **os.environ,
                    FILE_VARIABLE: str(directory / "warnings"),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYTHONPATH": str(REPOSITORY),
                },
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def end(self) -> None:
        """Let it end after what it is at."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self.kill()

    def kill(self) -> None:
        """End it, with its Java machine and all workers, as a power cut would."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def said(self) -> str:
        """Its last words."""
        text = self._errors.read_text(errors="replace")
        return " ".join(text.split())[-SHOWN:]


class Stored:
    """What has come into the stores, and what the source has warned of."""

    def __init__(
        self, teller: Teller, job: dict[str, Any], server: fakeredis.FakeServer, warnings: Path
    ) -> None:
        self._teller = teller
        self._tables = {
            "spark-sql": Table(job["sqlite"], "with_ids"),
            "spark-unique": Table(job["sqlite"], "unique_rows"),
        }
        if job["postgres"] is not None:
            self._tables[f"spark-sql{POSTGRES}"] = Table(job["postgres"], "with_ids")
        self._redis = fakeredis.FakeRedis(server=server)
        self._counts = {"spark-redis": 0, "spark-redis-offsets": 0}
        warnings.touch()
        self._warnings = Tail(warnings)

    def tell(self) -> bool:
        """What is new. The rows are looked up before the losses, and reported after them.

        Returns:
            Whether there were rows.
        """
        reads: dict[str, list[Read]] = {}
        for name, table in self._tables.items():
            reads[name] = [read_of(row) for row in table.new()]
        for name, key in (("spark-redis", ROWS), ("spark-redis-offsets", ROWS_AFTER)):
            new = self._redis.lrange(key, self._counts[name], -1)
            self._counts[name] += len(new)
            reads[name] = [read_of(json.loads(each)) for each in new]
        for who, text in self._warnings.new():
            told = False
            for loss, reason in losses_of(who, text):
                told = True
                self._teller.loss(f"spark-sql{MEMBER}{who}", loss)
                self._teller.note("spark-sql", f"{who.split()[0]} told a loss: {reason}")
            if not told:
                self._teller.note("spark-sql", f"{who.split()[0]}: {text}")
        for name, found in reads.items():
            if found:
                self._teller.polled(name, found)
        return any(reads.values())
