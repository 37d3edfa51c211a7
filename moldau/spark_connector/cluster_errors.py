"""The client's errors, as the connector's: what a user of Spark sees when the cluster says no.

Owns the one table from one to the other. Must not retry. Invariant: the client's own words, which
say what was wrong and what to do, are kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from moldau.client import (
    AuthenticationFailed,
    AuthorizationFailed,
    ConfigurationError,
    InvalidTopic,
    KafkaError,
    NoBrokerAvailable,
    RequestTimeout,
    TlsFailed,
    UnknownTopicOrPartition,
)
from moldau.spark_connector.errors import (
    AccessDenied,
    ClusterError,
    ClusterUnreachable,
    InvalidOption,
    SparkConnectorError,
    TopicsNotFound,
)

_CLASSES: Final[tuple[tuple[type[KafkaError], type[SparkConnectorError]], ...]] = (
    (ConfigurationError, InvalidOption),
    (NoBrokerAvailable, ClusterUnreachable),
    (RequestTimeout, ClusterUnreachable),
    (TlsFailed, AccessDenied),
    (AuthenticationFailed, AccessDenied),
    (AuthorizationFailed, AccessDenied),
    (UnknownTopicOrPartition, TopicsNotFound),
    (InvalidTopic, InvalidOption),
)


@contextmanager
def cluster_errors(doing: str) -> Iterator[None]:
    """Around calls of a client: its errors leave as the connector's.

    Args:
        doing: what is being done, to begin the text with.
    """
    try:
        yield
    except KafkaError as error:
        kind = next((ours for theirs, ours in _CLASSES if isinstance(error, theirs)), ClusterError)
        raise kind(f"{doing}: {error}") from error
