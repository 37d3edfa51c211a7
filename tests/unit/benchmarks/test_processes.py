"""Orders that go to a load's process, its outcome that comes back, and the process's end."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass

import pytest

from benchmarks.processes import carry_out, given, outcome_of, running, start_load
from benchmarks.sender import SendOrder
from benchmarks.senders import SendersOrder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="cores are chosen as on Linux")


@dataclass(frozen=True)
class Doubled:
    number: int


def test_an_order_comes_back_from_json_with_the_orders_in_it(monkeypatch: pytest.MonkeyPatch):
    sending = SendOrder(
        *("localhost", 9092, 1, "t", 100, 1_000),
        warm_up_count=1,
        request_count=2,
        in_flight_count=3,
        partitions=[0, 4],
    )
    order = SendersOrder([sending, sending], {"node": 7})
    monkeypatch.setattr(sys, "argv", ["senders", json.dumps(asdict(order))])
    assert given(SendersOrder) == order


def test_a_load_prints_its_outcome_as_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["doubled", '{"number": 21}'])
    carry_out(Doubled, lambda order: Doubled(2 * order.number))
    assert capsys.readouterr().out == '{"number": 42}\n'


@pytest.mark.real
def test_a_process_goes_on_until_its_context_ends():
    with running("stalls", min(os.sched_getaffinity(0)), place=None) as sentry:
        assert sentry.begun == "watching\n"
        assert sentry.process.poll() is None
    assert sentry.process.poll() is not None


@pytest.mark.real
def test_a_process_that_never_says_that_it_has_begun_is_an_error():
    with pytest.raises(AssertionError, match="figures did not begin"), running("figures"):
        pass


@pytest.mark.real
def test_a_load_that_fails_has_no_outcome():
    process = start_load("sender", "no order")
    with pytest.raises(AssertionError, match="the load failed"):
        outcome_of(process)
