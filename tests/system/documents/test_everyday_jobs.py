"""The sixteen jobs of docs/comparison.md: what is written there runs, and is short.

Each command of ours is typed into a shell on a terminal of 80 columns, which answers questions.
"""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin, Consumer, Producer
from moldau.testing import Cluster
from tests.system.documents.terminal import SHELL, Terminal
from tests.tidy.sources import ROOT

PAGE: Final = ROOT / "docs" / "comparison.md"
HEADING: Final = "## Beside rpk and kcat"
MOST_MORE_KEYS: Final = 5
DEADLINE_S: Final = 60.0
PASSWORD: Final = "s3cret"
#: What a question looks like when input is no longer thrown away, and what is typed.
ANSWERS: Final = {r"(?:Password|confirmation): $": PASSWORD, r"\[y/N\] $": "y"}


class Job(NamedTuple):
    """A row of the table."""

    name: str
    ours: str
    our_keys: int
    rpk: str
    rpk_keys: int
    kcat: str


def jobs() -> list[Job]:
    """The rows, as a reader of the page sees them."""
    text = PAGE.read_text(encoding="utf-8").partition(HEADING)[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    found = []
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        name, ours, our_keys, rpk, rpk_keys, kcat = (
            cell.strip("`").replace("\\|", "|") for cell in cells
        )
        found.append(Job(name, ours, int(our_keys), rpk, int(rpk_keys), kcat))
    return found


def test_there_are_sixteen_jobs():
    names = [job.name for job in jobs()]
    assert len(set(names)) == len(names) == 16


@pytest.mark.parametrize("job", jobs(), ids=lambda job: job.name)
def test_no_command_is_longer_than_rpks_by_more_than_five_keys(job: Job):
    assert (job.our_keys, job.rpk_keys) == (len(job.ours), len(job.rpk))
    assert job.our_keys <= job.rpk_keys + MOST_MORE_KEYS
    assert all(word in job.ours for word in ("moldau",))
    assert job.rpk.count("rpk ") == job.ours.count("moldau "), "the same steps"


# -- running them ----------------------------------------------------------------------------------


class Typist:
    """Types commands at a terminal of 80 columns, and answers what they ask."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal

    def run(self, command: str, *, until: str | None = None) -> str:
        """All that a command shows; one that goes on is ended by Ctrl-C behind `until`."""
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 80))
        process = subprocess.Popen(
            [*SHELL, command],
            cwd=self._terminal.home,
            env={**self._terminal.environ, "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        try:
            shown = "".join(self._answered(ours, process, until))
            status = process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.wait()
            os.close(ours)
        assert status == (0 if until is None else 130), f"{command}: {status}: {shown}"
        return shown

    def _answered(
        self, ours: int, process: subprocess.Popen[bytes], until: str | None
    ) -> Iterator[str]:
        asked = shown = ""
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            if not select.select([ours], [], [], 0.2)[0]:
                continue
            try:
                text = os.read(ours, 65_536).decode(errors="replace").replace("\r\n", "\n")
            except OSError:  # how the end of a terminal looks
                return
            yield text
            asked, shown = asked + text, shown + text
            for question, answer in ANSWERS.items():
                if re.search(question, asked):
                    os.write(ours, f"{answer}\n".encode())
                    asked = ""
            if until is not None and until in shown:
                os.killpg(process.pid, signal.SIGINT)
                until = None
        pytest.fail(f"not done within {DEADLINE_S} s: {shown}")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "default.replication.factor": "2",
        "offsets.topic.replication.factor": "2",
        "min.insync.replicas": "1",
    }
    with Cluster(brokers=3, config=config) as running:
        yield running


@pytest.fixture(scope="module")
def typist(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typist]:
    home = tmp_path_factory.mktemp("home")
    with Terminal(home, cluster.bootstrap_server) as terminal:
        yield Typist(terminal)


def fill(cluster: Cluster) -> None:
    """Records with keys in partition 1, and a group that has read some of them."""
    with Admin(cluster.bootstrap_server) as admin:
        admin.create_topics([NewTopic("small", 1)])
    with Producer(cluster.bootstrap_server) as producer:
        for number in range(200):
            producer.send("orders", b"v%d" % number, key=b"k%d" % number, partition=1)
    with Consumer(
        cluster.bootstrap_server, group_id="billing", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe(["orders"])
        for _ in range(50):
            consumer.getone()
        consumer.commit()


@contextmanager
def sending(cluster: Cluster) -> Iterator[None]:
    """A record again and again: a reader at the end sees only what is written while it reads."""
    is_over = threading.Event()

    def send() -> None:
        with Producer(cluster.bootstrap_server) as producer:
            while not is_over.wait(0.2):
                producer.send("orders", b"sent", key=b"18")

    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(send)
        try:
            yield
        finally:
            is_over.set()
            sent.result()


@pytest.mark.system
@pytest.mark.timeout(300)
def test_each_job_is_done(cluster: Cluster, typist: Typist, tmp_path: Path):
    said: dict[str, str] = {}
    ours = {job.name: job.ours for job in jobs()}
    create = ours.pop("create with 6 partitions and a day's retention")
    said["create"] = typist.run(create)
    fill(cluster)
    follow = ours.pop("follow with a format")
    for name, command in ours.items():
        said[name] = typist.run(command)
    print(*(f"$ {ours.get(name, create)}\n{text}" for name, text in said.items()), sep="\n")
    assert said["create"] == "created orders\n"
    assert re.search(r"orders +6 +2 ", said["list topics"])
    assert "retention.ms=86400000" in said["describe with configuration"]
    assert "orders: 1 records" in said["produce a keyed record"]
    assert "v199\n" in said["last 10 records"]
    assert said["find a record by key"].split() == ["paid"]
    assert re.search(r"orders +1 +\d+ +200 +\d+", said["lag of a group"])
    assert "1 group, lag 15" in said["lag of all groups"]
    assert re.search(r"orders +1 +\d+ +0\n", said["reset a group"])
    assert said["change retention"] == "altered orders\n"
    assert "120" in said["delete up to an offset"]
    assert re.search(r"\norders .*\nsmall ", said["largest topics"])
    assert said["is it healthy?"].startswith("healthy: 3 brokers, ")
    assert PASSWORD not in said["a user with read access"]
    assert "User:ann" in said["a user with read access"]
    assert "moves to" in said["empty a broker"]
    with Admin(cluster.bootstrap_server) as admin:
        assert "ann" in admin.describe_user_scram_credentials()
        typist.run("moldau brokers empty 3 --wait")
        topics = admin.describe_topics().values()
        assert all(3 not in each.replicas for topic in topics for each in topic.partitions)
    with sending(cluster):
        assert "18 sent\n" in typist.run(follow, until="18 sent\n")
