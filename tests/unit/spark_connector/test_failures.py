"""Every refusal and error has a class, keeps the client's words, and says what to do."""

from __future__ import annotations

import pytest

from moldau import client
from moldau.client import (
    AuthenticationFailed,
    BrokerError,
    KafkaError,
    NoBrokerAvailable,
    ProducerFenced,
    RequestTimeout,
    SerializationError,
    TransactionalIdAuthorizationFailed,
    UnknownTopicOrPartition,
)
from moldau.protocol.errors import ErrorCode
from moldau.spark_connector import errors
from moldau.spark_connector.core.commit_protocol import RefusalKind, Refused
from moldau.spark_connector.failures import cluster_errors, explained, failure, refusal


@pytest.mark.parametrize("kind", RefusalKind)
@pytest.mark.promise("refusal-advice")
def test_every_refusal_has_advice(kind: RefusalKind) -> None:
    error = refusal(Refused(kind, "what was found"))
    assert type(error) is not errors.SparkConnectorError
    text = str(error)
    assert text.startswith("what was found. ")
    assert len(text) > 60


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (NoBrokerAvailable("nobody"), errors.ClusterUnreachable, "bootstrap.servers"),
        (RequestTimeout("late"), errors.ClusterUnreachable, "default.api.timeout.ms"),
        (AuthenticationFailed("no"), errors.AccessDenied, "no"),
        (TransactionalIdAuthorizationFailed("no"), errors.AccessDenied, "WRITE and DESCRIBE on"),
        (ProducerFenced("gone"), errors.TransactionLost, "Spark tries the task again"),
        (
            BrokerError("long", code=ErrorCode.INVALID_TRANSACTION_TIMEOUT),
            errors.InvalidOption,
            "Set kafka.transaction.timeout.ms",
        ),
        (SerializationError("column"), errors.InvalidSchema, "column"),
        (UnknownTopicOrPartition("t-9"), errors.TopicsNotFound, "t-9"),
        (KafkaError("other"), errors.ClusterError, "other"),
    ],
)
@pytest.mark.promise("refusal-topics")
def test_errors_of_the_client(error: KafkaError, kind: type[Exception], advice: str) -> None:
    found = failure(error, "writing")
    assert type(found) is kind
    assert str(found).startswith("writing: ")
    assert advice in str(found)


def test_explained_keeps_what_it_does_not_know() -> None:
    with pytest.raises(ZeroDivisionError), explained("writing"):
        raise ZeroDivisionError
    with pytest.raises(errors.SinkFenced), explained("writing"):
        raise Refused(RefusalKind.FENCED, "found")
    with pytest.raises(errors.ClusterUnreachable) as caught, explained("writing"):
        raise RequestTimeout("late")
    assert isinstance(caught.value.__cause__, RequestTimeout)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (client.NoBrokerAvailable("nobody"), errors.ClusterUnreachable),
        (client.RequestTimeout("slow"), errors.ClusterUnreachable),
        (client.TlsFailed("no TLS"), errors.AccessDenied),
        (client.AuthenticationFailed("who?"), errors.AccessDenied),
        (client.TopicAuthorizationFailed("not you"), errors.AccessDenied),
        (client.UnknownTopicOrPartition("gone"), errors.TopicsNotFound),
        (client.InvalidTopic("a/b"), errors.InvalidOption),
        (client.ConfigurationError("linger.ms"), errors.InvalidOption),
        (client.BrokerError("something else"), errors.ClusterError),
    ],
)
def test_each_kind_has_its_class(theirs, ours):
    with pytest.raises(errors.SparkConnectorError) as raised, cluster_errors("looking"):
        raise theirs
    assert type(raised.value) is ours
    assert str(raised.value) == f"looking: {theirs}"
    assert raised.value.__cause__ is theirs


def test_other_errors_pass():
    with pytest.raises(errors.DataLoss), cluster_errors("looking"):
        raise errors.DataLoss("gone")
