"""What can go wrong with results outside of Kafka.

Owns the errors of this package. Invariant: what cannot be exactly once fails before it writes.
"""

from __future__ import annotations

from moldau.spark_connector.errors import SparkConnectorError


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
