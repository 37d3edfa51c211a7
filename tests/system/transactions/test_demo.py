"""A short run of `make demo-transactions`: every kind of process is killed, nothing is lost."""

from __future__ import annotations

import itertools
import random
import secrets
from collections import Counter

import pytest

from demo.flights_data import flights
from demo.transactions import plan, run, show
from demo.transactions_stage import KINDS

FLIGHTS = 20_000

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


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
        assert output.is_exactly_once(FLIGHTS), f"{topic}: {output}"


def test_everybody_is_killed_at_random_moments():
    killings = plan(random.Random(1), 2 * len(KINDS), 1_000)
    assert Counter(killing.kind for killing in killings) == Counter(KINDS * 2)
    assert [killing.at_count for killing in killings] == sorted(k.at_count for k in killings)
    assert plan(random.Random(2), 2 * len(KINDS), 1_000) != killings
