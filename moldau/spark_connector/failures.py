"""From what stopped a read or a write to the error that the user reads.

Owns the tables from the client's errors and the protocol's refusals to the connector's errors, the
advice, and the error and the warning about losses (`failOnDataLoss`). Must not retry, nor decide
whether anything else is an error. Invariants: the client's own words, which say what was wrong and
what to do, are kept; the text about a write says whether anything wrong or missing can be seen by
readers; no loss is passed over in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from moldau.client import (
    AuthenticationFailed,
    AuthorizationFailed,
    ConfigurationError,
    InvalidTopic,
    KafkaError,
    NoBrokerAvailable,
    ProducerFenced,
    RequestTimeout,
    SerializationError,
    TlsFailed,
    TransactionAbortable,
    UnknownTopicOrPartition,
)
from moldau.spark_connector import errors
from moldau.spark_connector.core.commit_protocol import RefusalKind, Refused
from moldau.spark_connector.core.ledger import LedgerUnreadable
from moldau.spark_connector.core.ranges import Loss
from moldau.spark_connector.errors import SparkConnectorError

_CLASSES: Final[tuple[tuple[type[KafkaError], type[SparkConnectorError]], ...]] = (
    (ConfigurationError, errors.InvalidOption),
    (NoBrokerAvailable, errors.ClusterUnreachable),
    (RequestTimeout, errors.ClusterUnreachable),
    (TlsFailed, errors.AccessDenied),
    (AuthenticationFailed, errors.AccessDenied),
    (AuthorizationFailed, errors.AccessDenied),
    (UnknownTopicOrPartition, errors.TopicsNotFound),
    (InvalidTopic, errors.InvalidOption),
)
_log: Final = logging.getLogger(__name__)
MAX_SHOWN: Final = 10


@contextmanager
def cluster_errors(doing: str) -> Iterator[None]:
    """A block in which a client's errors become the connector's; their text begins with `doing`."""
    try:
        yield
    except KafkaError as error:
        kind = next(
            (ours for theirs, ours in _CLASSES if isinstance(error, theirs)), errors.ClusterError
        )
        raise kind(f"{doing}: {error}") from error


def report(losses: Sequence[Loss], *, fail_on_data_loss: bool) -> None:
    """Stop the query (by DataLoss), or say what it goes on without."""
    if not losses:
        return
    shown = "; ".join(str(loss) for loss in losses[:MAX_SHOWN])
    if len(losses) > MAX_SHOWN:
        shown += f"; and {len(losses) - MAX_SHOWN} more partitions"
    if fail_on_data_loss:
        raise errors.DataLoss(
            f"records are lost to this query. {shown}. To go on with what there is, set "
            "failOnDataLoss=false"
        )
    _log.warning("going on without records that are lost (failOnDataLoss=false). %s", shown)


def check_found(missing: Sequence[str]) -> None:
    """Refuse to begin with something that does not exist. Raises: TopicsNotFound"""
    if missing:
        raise errors.TopicsNotFound(
            f"there is no {', '.join(missing)}: create it first, or see whether "
            "kafka.bootstrap.servers names the right cluster"
        )


_ADVICE: Final[Mapping[RefusalKind, tuple[type[SparkConnectorError], str]]] = {
    RefusalKind.FENCED: (
        errors.SinkFenced,
        "This driver writes nothing more. If it has a successor (a restart of the same query), "
        "that one goes on and nothing is to be done. If two queries have the same sinkId, give "
        "each its own",
    ),
    RefusalKind.REPLAY_DIFFERS: (
        errors.ReplayDiffers,
        "Nothing was written twice. Either the checkpoint was put back to an older state or is an "
        "older copy, and Spark has planned the batch again: use the newest checkpoint, or start "
        "with a new checkpoint and a new sinkId, at the offsets where the output ends. Or the "
        "query gives other results each time (uuid(), rand(), the order of a group): then "
        "onReplayMismatch=skip keeps what was committed first",
    ),
    RefusalKind.REWOUND: (
        errors.CheckpointRewound,
        "Nothing was written. The checkpoint was put back to an older state, or another one was "
        "copied over it. Put the newest one back, or start with a new checkpoint and a new "
        "sinkId, at the offsets where the output ends",
    ),
    RefusalKind.ELSEWHERE: (
        errors.QueryMoved,
        "Nothing was written. If the checkpoint was moved, or the sinkId changed: `moldau pipeline "
        "sinks move OLD NEW` takes what is known of the old sink to the new one. If this is a copy "
        "of the checkpoint that shall write on its own: put another UUID into its file `metadata`",
    ),
    RefusalKind.NEW_QUERY: (
        errors.ForeignSink,
        "Nothing was written: a new checkpoint would write again what is there. Go on with the "
        "newest checkpoint of that query; or give this one a sinkId (sink.id in a pipeline's file) "
        "and an output of its own; or, to write everything once more into the same output, "
        "`moldau pipeline sinks forget SINK` first",
    ),
    RefusalKind.LOST_BEFORE_DECISION: (
        errors.TransactionLost,
        "Nothing of the batch is visible; start the query again, and it is written again. When it "
        "took longer than kafka.transaction.timeout.ms: raise that (and the brokers' "
        "transaction.max.timeout.ms), make batches smaller (maxOffsetsPerTrigger), or use "
        "transactions=prepared. Otherwise a task of an earlier run has used the same id",
    ),
    RefusalKind.LOST_AFTER_DECISION: (
        errors.RowsLost,
        "The other rows of the batch are visible. Start the query again: the same batch comes "
        "again, and exactly the missing rows are written. Time limits and transactions=prepared: "
        "see docs/spark.md",
    ),
    RefusalKind.LOST_FOR_GOOD: (
        errors.RowsLost,
        "Start that query (or make that write) once more from its own checkpoint, so that it "
        "writes them; or write the missing rows yourself, and then `moldau pipeline sinks forget "
        "SINK --query QUERY`",
    ),
    RefusalKind.OUTCOME_UNKNOWN: (
        errors.RowsLost,
        "They were deleted by retention or compaction, or the topic was made anew, before anybody "
        "could look. Compare the output with the source; then `moldau pipeline sinks forget SINK "
        "--query QUERY`: the batch is then written again in full, and what is there of it is there "
        "twice",
    ),
    RefusalKind.CONTENDED: (
        errors.LedgerBusy,
        "Nothing that was not decided is visible; start the query again. If two queries have the "
        "same sinkId, give each its own",
    ),
    RefusalKind.TOO_MANY_TASKS: (
        errors.ClusterError,
        "Nothing of the batch is visible. Write with fewer partitions (coalesce, repartition)",
    ),
}

#: The client's errors, the connector's, and what is added to the client's own words.
_CLIENT_ADVICE: Final[
    Sequence[tuple[tuple[type[KafkaError], ...], type[SparkConnectorError], str]]
] = (
    (
        (AuthorizationFailed,),
        errors.AccessDenied,
        ". The sink's principal needs WRITE and DESCRIBE on the transactional ids that begin with "
        "its sinkId, READ, WRITE and DESCRIBE on the ledger topic (CREATE where it is to be made), "
        "WRITE and DESCRIBE on the topics that it writes, and READ on them to look for lost rows",
    ),
    ((AuthenticationFailed, TlsFailed), errors.AccessDenied, ""),
    (
        (NoBrokerAvailable, RequestTimeout),
        errors.ClusterUnreachable,
        ". Nothing that was not decided is visible, and what was decided is finished by the next "
        "start (kafka.bootstrap.servers, kafka.default.api.timeout.ms)",
    ),
    (
        (ProducerFenced, TransactionAbortable),
        errors.TransactionLost,
        ". Nothing of this attempt is visible: Spark tries the task again. It took longer than "
        "kafka.transaction.timeout.ms, or another task has used its id: one of an earlier run that "
        "still goes on, or of another query with the same sinkId",
    ),
    ((SerializationError,), errors.InvalidSchema, ""),
    (
        (UnknownTopicOrPartition,),
        errors.TopicsNotFound,
        ". Make the topic first, with as many partitions as are written to; brokers with "
        "auto.create.topics.enable make topics, but no partitions of theirs",
    ),
)


def refusal(refused: Refused) -> SparkConnectorError:
    kind, advice = _ADVICE[refused.kind]
    return kind(f"{refused}. {advice}.")


def failure(error: KafkaError, what: str) -> SparkConnectorError:
    """The connector's error for one of the client's; its text begins with `what` was being done."""
    for theirs, ours, advice in _CLIENT_ADVICE:
        if isinstance(error, theirs):
            return ours(f"{what}: {error}{advice}")
    if error.code.name == "INVALID_TRANSACTION_TIMEOUT":
        return errors.InvalidOption(
            f"{what}: {error}. Set kafka.transaction.timeout.ms to at most that"
        )
    return errors.ClusterError(f"{what}: {error}")


@contextmanager
def explained(what: str) -> Iterator[None]:
    try:
        yield
    except Refused as refused:
        raise refusal(refused) from None
    except LedgerUnreadable as error:
        raise errors.LedgerUnusable(
            f"{what}: {error}. A newer release of moldau has written it, or something else has: "
            "install that release, or name another topic with ledgerTopic and a new sinkId"
        ) from None
    except KafkaError as error:
        raise failure(error, what) from error
