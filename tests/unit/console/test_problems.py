"""Errors of a cluster become problems with a status, Kafka's code, and Confluent's number."""

from __future__ import annotations

import pytest

from moldau.client import BrokerError, NoBrokerAvailable, RequestTimeout
from moldau.client.errors import error_for
from moldau.console.problems import Problem, as_confluents, confluent_number, problem_of
from moldau.protocol.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "status", "number"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 403, 40301),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 403, 40301),
        (ErrorCode.SASL_AUTHENTICATION_FAILED, 401, 40101),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 404, 40403),
        (ErrorCode.GROUP_ID_NOT_FOUND, 404, 404),
        (ErrorCode.TOPIC_ALREADY_EXISTS, 409, 40002),
        (ErrorCode.NON_EMPTY_GROUP, 409, 40002),
        (ErrorCode.INVALID_TOPIC_EXCEPTION, 422, 40002),
        (ErrorCode.INVALID_CONFIG, 422, 40002),
        (ErrorCode.POLICY_VIOLATION, 422, 40002),
        (ErrorCode.MESSAGE_TOO_LARGE, 413, 41301),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 429, 429),
        (ErrorCode.NOT_CONTROLLER, 503, 50003),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 500, 50002),
        (ErrorCode.UNSUPPORTED_VERSION, 501, 50101),
    ],
)
def test_codes_have_a_status(code: ErrorCode, status: int, number: int) -> None:
    problem = problem_of(error_for(code, "why", "what"))
    assert (problem.status, confluent_number(problem)) == (status, number)
    document = problem.document("/x", is_confluents=False)
    assert document["error_code"] == code
    assert document["kafka_error"] == code.name
    assert document["detail"] == document["message"]
    assert "why" in document["detail"]
    assert problem.document("/x", is_confluents=True)["error_code"] == number


def test_every_code_has_a_status_of_http() -> None:
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            assert 400 <= problem_of(BrokerError("x", code=code)).status <= 599


@pytest.mark.parametrize("error", [NoBrokerAvailable("gone"), RequestTimeout("late")])
def test_a_cluster_that_does_not_answer_may_be_asked_again(error: Exception) -> None:
    problem = problem_of(error)  # type: ignore[arg-type]
    assert problem.status == 503
    assert ("Retry-After", "1") in problem.headers


def test_a_problem_is_as_rfc_9457_has_it() -> None:
    problem = Problem(404, "there is no cluster x here")
    assert problem.document("/v3/clusters/x", is_confluents=False) == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "there is no cluster x here",
        "instance": "/v3/clusters/x",
        "error_code": 404,
        "kafka_error": None,
        "message": "there is no cluster x here",
    }


def test_texts_of_others_are_cut_and_in_one_line() -> None:
    detail = Problem(400, "a\nb\x1b[31m" + "x" * 5_000).detail
    assert detail.startswith(r"a\nb\x1b[31m")
    assert len(detail) < 1_100


def test_confluents_readers_know_no_409_and_422() -> None:
    for status, expected in ((409, 400), (422, 400), (404, 404), (503, 503)):
        made = as_confluents(Problem(status, "x", ("Retry-After", "1")))
        assert (made.status, made.detail) == (expected, "x")
        assert made.headers == (("Retry-After", "1"),)


def test_what_is_no_json_and_what_cannot_be_have_two_numbers() -> None:
    for status, number in ((400, 400), (409, 40002), (422, 40002)):
        made = as_confluents(Problem(status, "x"))
        assert (made.status, confluent_number(made)) == (400, number)
        assert made.document("/v3", is_confluents=True)["error_code"] == number
