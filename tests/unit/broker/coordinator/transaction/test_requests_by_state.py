"""What every request is answered in every state: the whole table, for EndTxn v5 and below.

The producer of a request is the pair to be used `now`, or the one that was used `before` the end of
the transaction gave it another (transaction version 2, KIP-890).
"""

from __future__ import annotations

import pytest

from moldau.broker.coordinator.core.result import Producer
from moldau.broker.coordinator.transaction.core.transaction import TransactionStatus
from moldau.protocol.errors import ErrorCode
from tests.unit.broker.coordinator.transaction.bench import P0, Bench
from tests.unit.broker.coordinator.transaction.records import logged

ERRORS = {
    "ok": ErrorCode.NONE,
    "busy": ErrorCode.CONCURRENT_TRANSACTIONS,
    "fenced": ErrorCode.PRODUCER_FENCED,
    "state": ErrorCode.INVALID_TXN_STATE,
    "mapping": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "abortable": ErrorCode.TRANSACTION_ABORTABLE,
}

# fmt: off
REQUESTS_V2 = [
    "init", "init/now", "init/before", "add/now", "add/before", "verify/now", "verify/before",
    "commit/now", "commit/before", "abort/now", "abort/before",
]

ANSWERS_V2 = {
    "EMPTY":           "ok   ok   -    ok   -      abortable -      state  -     ok     -",
    "ONGOING":         "busy busy -    ok   -      ok        -      ok     -     ok     -",
    "PREPARE_COMMIT":  "busy busy busy busy busy   busy      fenced busy   busy  busy   busy",
    "PREPARE_ABORT":   "busy busy busy busy busy   busy      fenced busy   busy  busy   busy",
    "COMPLETE_COMMIT": "ok   ok   ok   ok   fenced abortable fenced state  ok    ok     state",
    "COMPLETE_ABORT":  "ok   ok   ok   ok   fenced abortable fenced state  state ok     ok",
}

REQUESTS_V0 = ["init", "init/now", "add/now", "verify/now", "commit/now", "abort/now"]

ANSWERS_V0 = {
    "EMPTY":           "ok   ok   ok   abortable state state",
    "ONGOING":         "busy busy ok   ok        ok    ok",
    "PREPARE_COMMIT":  "busy busy busy busy      busy  busy",
    "PREPARE_ABORT":   "busy busy busy busy      busy  busy",
    "COMPLETE_COMMIT": "ok   ok   ok   abortable ok    state",
    "COMPLETE_ABORT":  "ok   ok   ok   abortable state ok",
}
# fmt: on


def rows(requests: list[str], answers: dict[str, str]) -> list[tuple[str, str, ErrorCode]]:
    found = []
    for status, words in answers.items():
        for request, word in zip(requests, words.split(), strict=True):
            if word != "-":
                found.append((status, request, ERRORS[word]))
    return found


def bench_in(status: TransactionStatus, client_version: int) -> Bench:
    """Id "t" in that state, reached by requests alone; P0 is in the transaction if there is one."""
    bench = Bench()
    producer = bench.init().answer.producer
    if status is TransactionStatus.EMPTY:
        return bench
    bench.add("t", producer, [P0], client_version)
    if status is TransactionStatus.ONGOING:
        return bench
    bench.ended_by = producer
    is_commit = status.name.endswith("COMMIT")
    bench.end("t", producer, is_commit=is_commit, client_version=client_version)
    if not status.is_prepared:
        bench.answer_markers()
    assert bench.status() is status
    return bench


def ask(bench: Bench, request: str, client_version: int) -> ErrorCode:
    name, _, whose = request.partition("/")
    now, before = bench.transaction().client_producer, bench.ended_by
    producer = before if whose == "before" else now
    if name == "init":
        expected = {"": None, "now": now, "before": before}[whose]
        error: ErrorCode = bench.init(expected=expected).answer.error
        return error
    if name == "add":
        return only(bench.add("t", producer, [P0], client_version).answer)
    if name == "verify":
        return only(bench.verify("t", producer, [P0]).answer)
    ended = bench.end("t", producer, is_commit=name == "commit", client_version=client_version)
    error = ended.answer.error
    return error


def only(errors: dict[object, ErrorCode]) -> ErrorCode:
    (error,) = errors.values()
    return error


@pytest.mark.parametrize(("status", "request_", "error"), rows(REQUESTS_V2, ANSWERS_V2))
def test_answers_by_transaction_version_2(status: str, request_: str, error: ErrorCode) -> None:
    bench = bench_in(TransactionStatus[status], client_version=2)
    assert ask(bench, request_, client_version=2) is error


@pytest.mark.parametrize(("status", "request_", "error"), rows(REQUESTS_V0, ANSWERS_V0))
def test_answers_below_transaction_version_2(status: str, request_: str, error: ErrorCode) -> None:
    bench = bench_in(TransactionStatus[status], client_version=0)
    assert ask(bench, request_, client_version=0) is error


STATUSES = list(ANSWERS_V2)


@pytest.mark.parametrize("client_version", [0, 2])
@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("request_", ["add", "verify", "commit", "abort"])
def test_a_pair_of_another_producer_is_refused(
    status: str, client_version: int, request_: str
) -> None:
    for make, error in (
        (lambda now: Producer(77, now.producer_epoch), "mapping"),
        (lambda now: now._replace(producer_epoch=now.producer_epoch + 1), "fenced"),
        (lambda now: now._replace(producer_epoch=-1), "fenced"),
    ):
        bench = bench_in(TransactionStatus[status], client_version)
        before = logged(bench)
        is_busy = bench.status().is_prepared and request_ != "verify"
        producer = make(bench.transaction().client_producer)
        if request_ == "add":
            got = only(bench.add("t", producer, [P0], client_version).answer)
        elif request_ == "verify":
            got = only(bench.verify("t", producer, [P0]).answer)
        else:
            got = bench.end(
                "t", producer, is_commit=request_ == "commit", client_version=client_version
            ).answer.error
        assert got is ERRORS["busy" if is_busy else error]
        assert logged(bench) == before


@pytest.mark.parametrize("client_version", [0, 2])
def test_an_id_that_was_never_heard_of(client_version: int) -> None:
    bench = Bench()
    producer = Producer(1000, 0)
    assert only(bench.add("t", producer, [P0], client_version).answer) is ERRORS["mapping"]
    assert only(bench.verify("t", producer, [P0]).answer) is ERRORS["mapping"]
    for is_commit in (True, False):
        ended = bench.end("t", producer, is_commit=is_commit, client_version=client_version)
        assert ended.answer.error is ERRORS["mapping"]
    assert bench.describe().answer is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND


def test_the_empty_id_is_an_invalid_request() -> None:
    bench = Bench()
    producer = Producer(1000, 0)
    invalid = ErrorCode.INVALID_REQUEST
    assert bench.init("").answer.error is invalid
    assert only(bench.add("", producer, [P0]).answer) is invalid
    assert only(bench.verify("", producer, [P0]).answer) is invalid
    assert bench.end("", producer, is_commit=True).answer.error is invalid
