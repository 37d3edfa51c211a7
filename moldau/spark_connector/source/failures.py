"""What a reader raises: the client's errors as the connector's, and losses (`failOnDataLoss`).

Owns the table from the client's errors to the connector's, and the error and the warning about
losses. Must not retry. Invariants: the client's own words, which say what was wrong and what to do,
are kept; no loss is passed over in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
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
from moldau.spark_connector.core.ranges import Loss
from moldau.spark_connector.errors import (
    AccessDenied,
    ClusterError,
    ClusterUnreachable,
    DataLoss,
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
_log: Final = logging.getLogger("moldau.spark_connector")
MAX_SHOWN: Final = 10


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


def report(losses: Sequence[Loss], *, fail_on_data_loss: bool) -> None:
    """Stop the query, or say what it goes on without.

    Raises:
        DataLoss: there are losses, and they shall stop the query.
    """
    if not losses:
        return
    shown = "; ".join(str(loss) for loss in losses[:MAX_SHOWN])
    if len(losses) > MAX_SHOWN:
        shown += f"; and {len(losses) - MAX_SHOWN} more partitions"
    if fail_on_data_loss:
        raise DataLoss(
            f"records are lost to this query. {shown}. To go on with what there is, set "
            "failOnDataLoss=false"
        )
    _log.warning("going on without records that are lost (failOnDataLoss=false). %s", shown)


def check_found(missing: Sequence[str]) -> None:
    """Refuse to begin with something that does not exist. Raises: TopicsNotFound"""
    if missing:
        raise TopicsNotFound(
            f"there is no {', '.join(missing)}: create it first, or see whether "
            "kafka.bootstrap.servers names the right cluster"
        )
