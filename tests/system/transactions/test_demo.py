"""A short run of `make demo-transactions`: every kind of process is killed, nothing is lost."""

from __future__ import annotations

import itertools
import random
import secrets
import sys
from collections import Counter
from pathlib import Path

import pytest

from demo.flights_data import flights
from demo.transactions import plan, run, show
from demo.transactions_stage import KINDS, RestartedApplication
from tests.kit import judging
from tests.kit.waiting import until

FLIGHTS = 20_000

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

#: The application with a client library whose first call never returns in its first life.
STUCK_APPLICATION = """
import sys, threading
from pathlib import Path
from demo import transactions_app

first_life = Path(sys.argv.pop(1))


class Stub:
    def __init__(self, config):
        pass

    def init_transactions(self, timeout):
        if not first_life.exists():
            first_life.touch()
            threading.Event().wait()

    def subscribe(self, topics, **listeners):
        print("committed 0", flush=True)

    def consume(self, count, timeout):
        threading.Event().wait(0.01)
        return []

    def close(self):
        pass


transactions_app.Producer = transactions_app.Consumer = Stub
transactions_app.STUCK_S = 0.2
sys.exit(transactions_app.main())
"""


def test_flights_come_out_exactly_once():
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    result = run(
        list(itertools.islice(flights(), FLIGHTS)),
        seed=seed,
        kill_count=len(KINDS),
        records_per_transaction=250,
    )
    show(result)
    assert result.complaints == []
    assert result.killed == Counter(KINDS)
    for topic, output in result.outputs.items():
        with judging():
            assert output.is_exactly_once(FLIGHTS), f"{topic}: {output}"


def test_every_process_is_killed_at_random_moments():
    killings = plan(random.Random(1), 2 * len(KINDS), 1_000)
    assert Counter(killing.kind for killing in killings) == Counter(KINDS * 2)
    assert [killing.at_count for killing in killings] == sorted(k.at_count for k in killings)
    assert plan(random.Random(2), 2 * len(KINDS), 1_000) != killings


def test_an_application_stuck_in_a_call_is_dumped_and_started_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    said: list[str] = []
    command = [sys.executable, "-c", STUCK_APPLICATION, str(tmp_path / "alive"), "nowhere:1", "one"]
    application = RestartedApplication(command, said.append)
    try:
        until(
            lambda: application.committed_count,
            what="the second life of the application",
        )
    finally:
        application.stop()
    assert said == ["an application has ended with status 1; it starts again"]
    assert application.complaints == []
    dumped = capfd.readouterr().err
    assert "Timeout" in dumped
    assert "in init_transactions" in dumped
