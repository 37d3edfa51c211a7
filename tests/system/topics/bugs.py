"""Bugs that are injected into a reader's process, to show that the account finds them.

Owns what is replaced. Must be called before anything is read.
"""

from __future__ import annotations

import logging
from typing import Final
from uuid import UUID

from moldau.client.consumer import positions
from moldau.client.consumer.core.partition_state import PartitionState
from moldau.spark_connector import failures
from moldau.spark_connector.core import ranges
from moldau.spark_connector.source import planners
from tests.kit.injected_bugs import InjectedBug, Patch, table

BUG_VARIABLE: Final = "MOLDAU_SOAK_TOPICS_BUG"
TELLING: Final = (positions.logger, failures._log)


def ignores_topic_ids(patch: Patch) -> None:
    """A position counts for whatever topic has the name, as it did before positions had ids."""

    def topic_seen(state: PartitionState, topic_id: UUID) -> bool:
        state.topic_id = topic_id
        return False

    patch.setattr(PartitionState, "topic_seen", topic_seen)
    for module in (ranges, planners):
        patch.setattr(module, "is_replaced", lambda *_: False)


def _is_told(record: logging.LogRecord) -> bool:
    """Whether a warning says that a topic was created again, or that Spark's stream lost it."""
    text = record.getMessage()
    return "was deleted and created again" in text or "does not exist any more" in text


def reports_nothing(_patch: Patch) -> None:
    """Neither the client nor Spark's source says that a topic was created again."""
    for logger in TELLING:
        logger.addFilter(lambda record: not _is_told(record))


def reports_twice(_patch: Patch) -> None:
    """They say it twice."""

    def again(record: logging.LogRecord) -> bool:
        if _is_told(record):
            logging.getLogger("moldau").handle(record)
        return True

    for logger in TELLING:
        logger.addFilter(again)


def keeps_old_offsets(patch: Patch) -> None:
    """Results stores know offsets by topic and partition alone, and leave out what lies before."""
    from moldau.spark_connector.results.positions import Place, Positions

    place_of = Positions.place_of

    def by_name(
        self: Positions, topic: str, topic_id: str | None, partition: int, last_offset: int
    ) -> Place:
        return place_of(self, topic, None, partition, last_offset)

    def skip(self: Positions, place: Place, first_offset: int, count: int = 1) -> None:
        self._skipped[place] += count
        self._first_skipped.setdefault(place, first_offset)

    patch.setattr(Positions, "place_of", by_name)
    patch.setattr(Positions, "skip", skip)


BUGS: Final = table(
    InjectedBug(ignores_topic_ids),
    InjectedBug(reports_nothing),
    InjectedBug(reports_twice),
    InjectedBug(keeps_old_offsets),
)
