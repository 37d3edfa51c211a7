"""The fault table decides between telling and stopping."""

from __future__ import annotations

import logging

import pytest

from moldau.broker.faults import FaultHandler, Verdict, verdict


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (AssertionError("x"), Verdict.STOP),
        (MemoryError(), Verdict.STOP),
        (OSError(5, "I/O error"), Verdict.REPORT),
        (KeyError("k"), Verdict.REPORT),
        (SystemExit(1), Verdict.STOP),
    ],
)
def test_the_table(error: BaseException, expected: Verdict) -> None:
    assert verdict(error) is expected


def test_a_stop_is_asked_for_once(caplog: pytest.LogCaptureFixture) -> None:
    reasons: list[str] = []
    handler = FaultHandler(reasons.append)
    with caplog.at_level(logging.ERROR, "moldau.broker.faults"):
        handler(ValueError("reported"))
        handler(AssertionError("log end below high watermark"))
        handler(AssertionError("again"))
    assert reasons == [
        "the node stops, because going on could do harm: "
        "AssertionError: log end below high watermark"
    ]
    assert handler.fault_count == 3
    assert any(record.exc_info for record in caplog.records)
