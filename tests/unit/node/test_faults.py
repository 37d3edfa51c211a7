"""The fault table decides between reporting and stopping."""

from __future__ import annotations

import logging

import pytest

from moldau.node.faults import FaultHandler, Verdict, verdict
from moldau.runtime.restarts import JOB_KEY


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AssertionError("x"), Verdict.STOP),
        (MemoryError(), Verdict.STOP),
        (OSError(5, "I/O error"), Verdict.REPORT),
        (KeyError("k"), Verdict.REPORT),
        (SystemExit(1), Verdict.STOP),
        (ExceptionGroup("flushes", [OSError(5, "I/O error"), KeyError("k")]), Verdict.REPORT),
        (ExceptionGroup("flushes", [KeyError("k"), AssertionError("x")]), Verdict.STOP),
        (ExceptionGroup("a", [ExceptionGroup("b", [AssertionError("x")])]), Verdict.STOP),
        (BaseExceptionGroup("a", [SystemExit(1)]), Verdict.STOP),
    ],
)
def test_the_table(error: BaseException, expected: Verdict) -> None:
    assert verdict(error) is expected


def test_a_stop_is_asked_for_once(caplog: pytest.LogCaptureFixture) -> None:
    reasons: list[str] = []
    handler = FaultHandler(reasons.append)
    with caplog.at_level(logging.ERROR, "moldau.node.faults"):
        handler(ValueError("reported"))
        handler(AssertionError("log end below high watermark"))
        handler(AssertionError("again"))
    assert reasons == [
        "the node stops, because going on could do harm: "
        "AssertionError: log end below high watermark"
    ]
    assert handler.fault_count == 3
    assert any(record.exc_info for record in caplog.records)


def test_failures_of_jobs_are_counted_and_logged_with_the_jobs_name(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[None] = []
    reasons: list[str] = []
    handler = FaultHandler(reasons.append, lambda: counted.append(None))
    with caplog.at_level(logging.ERROR, "moldau.node.faults"):
        handler.from_loop(None, {"message": "no job's", "exception": KeyError("k")})
        assert not counted
        told = {"message": "flush failed", "exception": KeyError("k"), JOB_KEY: "flush"}
        handler.from_loop(None, told)
        assert not reasons
        handler.from_loop(None, {**told, "exception": AssertionError("log end")})
    assert len(counted) == 2
    assert len(reasons) == 1
    assert "flush failed" in caplog.text
