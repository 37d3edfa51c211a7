"""The client's errors become the connector's, with the client's words."""

from __future__ import annotations

import pytest

from moldau import client
from moldau.spark_connector import errors
from moldau.spark_connector.source.failures import cluster_errors


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
