"""The claim on a Parquet output: one query, known by its checkpoint, and one driver at a time.

Owns the claim: a small file in the output with the query that writes it and its newest run, the
list of runs beside the checkpoint's own files, and, where the output lies on this machine, a lock
on its directory for as long as the query runs. Must not write records. Invariant: a query is
started only when Spark's file sink passes over no batch but one that this very query has written
before (`mismatch_of`), and no other query of a pipeline begins there while it runs.

The file sink lists each batch that it has written in the output's `_spark_metadata`, under the
batch's number, and passes over every batch up to the last number there without a word. The number
says nothing about the query: a new checkpoint begins again with batch 0. Of one query and its own
output the list is level with the checkpoint, or one batch ahead:

    (1) the checkpoint's `offsets` get batch n         (2) the sink writes it and lists it
    (3) the driver dies before `commits` get n         (4) the restart has the same batch n again

A query's id is in its checkpoint, in `metadata`, which Spark writes when it is not there; a
checkpoint without it gets its id here, before the output is claimed. In a file system without locks
two drivers with copies of one checkpoint are not kept apart; two queries are, by the claim.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.model import ParquetSink, Pipeline
from moldau.spark_connector.pipelines.small_files import HadoopFiles, SmallFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLAIM: Final = "_moldau_query.json"
"""Readers of Parquet pass over names that begin with `_`."""
RUNS: Final = "moldau-runs.json"
METADATA: Final = "metadata"
SINK_LOG: Final = "_spark_metadata"
NONE: Final = -1
"""The number of the last batch where there is no batch."""


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
    numbers = (name.removesuffix(".compact") for name in names)
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


class OutputClaim:
    """An output that one query of this process writes; `release` it when the query has ended."""

    def __init__(self, lock: int | None) -> None:
        self._lock = lock

    def release(self) -> None:
        """Let others have the output. May be called again."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def claim_output(spark: SparkSession, pipeline: Pipeline) -> OutputClaim:
    """Claim a pipeline's Parquet output for its checkpoint. Raises: PipelineFailed: the output is
    another query's, another driver writes it now, or the checkpoint does not go with it: Spark
    would pass over records
    """
    assert isinstance(pipeline.sink, ParquetSink), "checked with the file"
    checkpoint = HadoopFiles(spark, pipeline.checkpoint)
    return claim(checkpoint, HadoopFiles(spark, pipeline.sink.path), pipeline.name)


def claim(checkpoint: SmallFiles, output: SmallFiles, name: str) -> OutputClaim:
    """Claim an output for a checkpoint, as `claim_output`; the error's text names the pipeline."""
    try:
        return _claim(checkpoint, output, name)
    except OSError as error:
        raise PipelineFailed(
            f"{name}: whether checkpoint {checkpoint.directory} goes with the output "
            f"{output.directory} cannot be seen: {error}"
        ) from error


def _claim(checkpoint: SmallFiles, output: SmallFiles, name: str) -> OutputClaim:
    made = OutputClaim(_locked(output, name))
    try:
        state = _checkpoint_state(checkpoint)
        claimed = _read_json(output, CLAIM)
        last = last_batch(output.names(SINK_LOG))
        found = OutputState(last, _text(claimed, "query"), _text(claimed, "run"))
        mismatch = mismatch_of(state, found, is_alone=made._lock is not None)
        if mismatch is None:
            mismatch = _write_claim(checkpoint, output, state, found, name)
        if mismatch is not None:
            other = _text(_read_json(output, CLAIM), "checkpoint")
            raise _refused(mismatch, state, found, checkpoint, output, other, name)
    except BaseException:
        made.release()
        raise
    return made


def _locked(output: SmallFiles, name: str) -> int | None:
    """The lock on an output's directory; None where there are no locks."""
    directory = output.local_directory()
    if directory is None:
        return None
    os.makedirs(directory, exist_ok=True)
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(opened)
        raise PipelineFailed(
            f"{name}: another pipeline writes to {output.directory} now: give each a sink.path of "
            "its own, or wait until the other one has ended"
        ) from None
    except OSError:  # a network file system without locks on directories
        os.close(opened)
        return None
    return opened


def _checkpoint_state(checkpoint: SmallFiles) -> CheckpointState:
    planned = last_batch(checkpoint.names("offsets"))
    committed = last_batch(checkpoint.names("commits"))
    checkpoint.create(METADATA, json.dumps({"id": str(uuid.uuid4())}).encode())
    runs = _read_json(checkpoint, RUNS).get("runs")
    query_id = _text(_read_json(checkpoint, METADATA), "id")
    if query_id is None:
        raise OSError(f"{checkpoint.place(METADATA)} has no query id")
    return CheckpointState(
        query_id, planned, committed, tuple(map(str, runs if isinstance(runs, list) else ()))
    )


def _write_claim(
    checkpoint: SmallFiles,
    output: SmallFiles,
    state: CheckpointState,
    found: OutputState,
    name: str,
) -> Mismatch | None:
    """Write query and run into the output; FOREIGN when another query was faster.

    The checkpoint gets the run first, beside the one that the output has: whichever of both the
    output has after a crash in between, the checkpoint knows it.
    """
    run = uuid.uuid4().hex
    known = [each for each in state.runs if each == found.run]
    checkpoint.write(RUNS, json.dumps({"runs": [*known, run]}).encode())
    text = {"query": state.query_id, "run": run, "pipeline": name}
    content = json.dumps({**text, "checkpoint": checkpoint.directory}).encode()
    if found.writer_id is None:
        return None if output.create(CLAIM, content) else Mismatch.FOREIGN
    output.write(CLAIM, content)
    return None


def _refused(
    mismatch: Mismatch,
    state: CheckpointState,
    found: OutputState,
    checkpoint: SmallFiles,
    output: SmallFiles,
    other: str | None,
    name: str,
) -> PipelineFailed:
    stands = "is new" if state.next_batch == 0 else f"stands before batch {state.next_batch}"
    holds = f"holds batches up to {found.last_batch}"
    if mismatch is Mismatch.FOREIGN:
        holds = f"belongs to another query, that of checkpoint {other}"
    advice = (
        "Go on with the newest checkpoint of this output, or give this checkpoint a sink.path of "
        "its own (to write everything again, remove the output first)"
    )
    if found.last_batch == NONE:
        advice = (
            f"Give each checkpoint a sink.path of its own, or remove {output.place(CLAIM)} when "
            "no pipeline writes there any more"
        )
    return PipelineFailed(
        f"{name}: checkpoint {checkpoint.directory} {stands}, and the output {output.directory} "
        f"{holds}: Spark would pass over batches, and their records would be lost. {advice}"
    )


def _read_json(files: SmallFiles, name: str) -> Mapping[str, object]:
    content = files.read(name)
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except ValueError:
        raise OSError(f"{files.place(name)} is no JSON") from None
    return found if isinstance(found, dict) else {}


def _text(found: Mapping[str, object], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) else None
