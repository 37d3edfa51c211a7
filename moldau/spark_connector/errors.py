"""The errors that a user of the connector meets in Spark, in pipelines and in results stores.

Owns the classes of all three. Must not import Spark or a client's internals. Invariant: every text
says what was wrong, with which topic, partition, option or key of a file, and what can be done.
Spark shows the text inside its own exception; only the text and the class's name get there,
so everything that matters is in the text. What cannot be exactly once fails before it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class SparkConnectorError(Exception):
    """Base of everything the connector raises by itself."""


# -- found before anything is sent --------------------------------------------------------------


class InvalidOption(SparkConnectorError, ValueError):
    """An option that is unknown, missing, not supported, or cannot have that value."""


class SchemaNotAllowed(SparkConnectorError, ValueError):
    """A schema given by the user for reading: the source's is fixed."""


class InvalidSchema(SparkConnectorError, ValueError):
    """Columns to write that the sink cannot make records of."""


# -- the way to the cluster ---------------------------------------------------------------------


class ClusterUnreachable(SparkConnectorError):
    """The brokers did not answer in time."""


class AccessDenied(SparkConnectorError):
    """The cluster refuses this principal, or its credentials."""


class ClusterError(SparkConnectorError):
    """Something else that the cluster refused."""


# -- reading ------------------------------------------------------------------------------------


class TopicsNotFound(SparkConnectorError):
    """Topics or partitions that do not exist."""


class OffsetsNotFound(SparkConnectorError):
    """A place to start or end that no record marks, or offsets that do not fit the partitions."""


class InvalidCheckpoint(SparkConnectorError, ValueError):
    """Offsets in a checkpoint that are not those of a Kafka source."""


class DataLoss(SparkConnectorError):
    """Records that were to be read are gone, and `failOnDataLoss` is true."""


class ReadStalled(SparkConnectorError, TimeoutError):
    """The records of a planned range did not come within `kafkaConsumer.pollTimeoutMs`."""


# -- writing exactly once -----------------------------------------------------------------------


class SinkFenced(SparkConnectorError):
    """Another driver is in charge of the sink: a successor of this one, or another query."""


class TransactionLost(SparkConnectorError):
    """A task's transaction ended before the batch could be committed; nothing of it is wrong."""


class RowsLost(SparkConnectorError):
    """Rows that were decided to be committed are not there, or that cannot be known, and only the
    user can decide what to do.
    """


class CheckpointRewound(SparkConnectorError):
    """The query comes with a batch that lies behind what the sink has committed for it."""


class QueryMoved(SparkConnectorError):
    """The query has written under another sink id: it may write a batch a second time under this
    one.
    """


class ForeignSink(SparkConnectorError):
    """The sink has batches of another query, and a new one may not follow it (`onNewQuery`)."""


class ReplayDiffers(SparkConnectorError):
    """A batch that was committed comes again with other rows."""


class LedgerUnusable(SparkConnectorError):
    """The ledger topic cannot serve: its shape, its contents, or that it is gone."""


class LedgerBusy(SparkConnectorError):
    """The ledger could not be read to its end, or written, in time."""


# -- pipelines ----------------------------------------------------------------------------------


class Problem(NamedTuple):
    """One thing that is wrong with a file: line numbers count from 1, `key` is dotted."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where}: {self.key}: {self.text}" if self.key else f"{where}: {self.text}"


class PipelineError(SparkConnectorError):
    """Base of what a pipeline raises."""


class PipelineFileError(PipelineError, ValueError):
    """A file that is no pipeline: everything that was found wrong with it, in `problems`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(each) for each in problems))
        self.problems = tuple(problems)


class PipelineFailed(PipelineError):
    """A pipeline that could not start, or has ended by an error."""


class JavaNotFound(PipelineError):
    """Spark needs a Java virtual machine, and there is none that it can use."""


# -- results outside of Kafka --------------------------------------------------------------------


class ResultsError(SparkConnectorError):
    """Base of what the helpers raise."""


class InvalidResults(ResultsError, ValueError):
    """Rows or a table that the helper cannot work with."""


class ResultsBehind(ResultsError):
    """Batches are missing in the store: it has lost what it had acknowledged."""


class RowsOutOfOrder(ResultsError):
    """A batch that was never written has rows that lie before those of the query's own batches:
    of a topic that was deleted and created again, or in no order.
    """


class ForeignResults(ResultsError):
    """The store's results are those of another query, whose batches are numbered for themselves."""
