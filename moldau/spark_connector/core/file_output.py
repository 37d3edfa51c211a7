"""Whether a checkpoint may go on with the output that Spark's file sink has written.

Owns the rule. Must not read files. Invariant: when `mismatch_of` finds none, the file sink passes
over no batch but one that this very query has written before.

The file sink lists each batch that it has written in the output's `_spark_metadata`, under the
batch's number, and passes over every batch up to the last number there without a word. The number
says nothing about the query: a new checkpoint begins again with batch 0. Of one query and its own
output the list is level with the checkpoint, or one batch ahead:

    (1) the checkpoint's `offsets` get batch n         (2) the sink writes it and lists it
    (3) the driver dies before `commits` get n         (4) the restart has the same batch n again
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

NONE: Final = -1
"""The number of the last batch where there is no batch."""

_COMPACTED: Final = ".compact"


class Mismatch(Enum):
    """Why a checkpoint may not go on with an output."""

    FOREIGN = "the output belongs to another query"
    OUTPUT_AHEAD = "the output has batches that the checkpoint does not know"


@dataclass(frozen=True, slots=True)
class CheckpointState:
    """Where a query stands.

    Attributes:
        query_id: Spark's id of the query.
        planned: the last batch in `offsets`.
        committed: the last batch in `commits`.
        runs: the last run of the query from this checkpoint, and the one before it while the output
            may still have that one. A copy of the checkpoint does not get the later ones.
    """

    query_id: str
    planned: int = NONE
    committed: int = NONE
    runs: tuple[str, ...] = ()

    @property
    def is_replaying(self) -> bool:
        """Whether the next batch was planned before: Spark runs it with the same offsets."""
        return self.planned > NONE and self.committed != self.planned

    @property
    def next_batch(self) -> int:
        """The batch that the query begins with."""
        return self.planned if self.is_replaying else self.planned + 1


@dataclass(frozen=True, slots=True)
class OutputState:
    """What an output holds.

    Attributes:
        last_batch: the last batch in `_spark_metadata`.
        writer_id: the query that the output was claimed for; None: it never was (an output of an
            earlier release, or of a query outside of the pipelines).
        run: the last run of that query that was started for the output.
    """

    last_batch: int = NONE
    writer_id: str | None = None
    run: str | None = None


def last_batch(names: Iterable[str]) -> int:
    """The last batch among the files of a log of Spark's, compacted ones too; `NONE` without."""
    numbers = (name.removesuffix(_COMPACTED) for name in names)
    return max((int(each) for each in numbers if each.isascii() and each.isdigit()), default=NONE)


def mismatch_of(
    checkpoint: CheckpointState, output: OutputState, *, is_alone: bool
) -> Mismatch | None:
    """Why the query may not go on with the output; None when it may.

    Args:
        is_alone: no other query can write to the output now. Then one that was claimed and holds no
            batch is free.
    """
    is_foreign = output.writer_id is not None and output.writer_id != checkpoint.query_id
    if is_foreign and not (is_alone and output.last_batch == NONE):
        return Mismatch.FOREIGN
    if output.last_batch < checkpoint.next_batch:
        return None
    is_own_replay = checkpoint.is_replaying and output.last_batch == checkpoint.next_batch
    # Two copies of one checkpoint have the same id, and may have planned the batch differently: the
    # output's is this one's only if no other run has begun since. An output that was never claimed
    # may be of any query: the first batch of a new one proves nothing, but one batch more than a
    # query with a history does.
    is_last_run = output.run in checkpoint.runs
    if output.writer_id is None:
        is_last_run = checkpoint.committed > NONE
    return None if is_own_replay and is_last_run else Mismatch.OUTPUT_AHEAD
