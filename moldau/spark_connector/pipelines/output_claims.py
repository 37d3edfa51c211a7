"""The claim on a Parquet output: one query, known by its checkpoint, and one driver at a time.

Owns the claim: a small file in the output with the query that writes it and its newest run, the
list of runs beside the checkpoint's own files, and, where the output lies on this machine, a lock
on its directory for as long as the query runs. Must not write records. Invariant: a query is
started only when Spark's file sink passes over none of its batches (`core.file_output`), and no
other query of a pipeline begins there while it runs.

A query's id is in its checkpoint, in `metadata`, which Spark writes when it is not there; a
checkpoint without it gets its id here, before the output is claimed. In a file system without locks
two drivers with copies of one checkpoint are not kept apart; two queries are, by the claim.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from moldau.spark_connector.core.file_output import (
    NONE,
    CheckpointState,
    Mismatch,
    OutputState,
    last_batch,
    mismatch_of,
)
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
    """Claim a pipeline's Parquet output for its checkpoint.

    Raises:
        PipelineFailed: the output is another query's, another driver writes it now, or the
            checkpoint does not go with it: Spark would pass over records.
    """
    assert isinstance(pipeline.sink, ParquetSink), "checked with the file"
    checkpoint = HadoopFiles(spark, pipeline.checkpoint)
    return claim(checkpoint, HadoopFiles(spark, pipeline.sink.path), pipeline.name)


def claim(checkpoint: SmallFiles, output: SmallFiles, name: str) -> OutputClaim:
    """Claim an output for a checkpoint; see `claim_output`.

    Args:
        name: of the pipeline, for the error's text.
    """
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
    runs = _read_json(checkpoint, RUNS).get("runs", ())
    query_id = _text(_read_json(checkpoint, METADATA), "id")
    if query_id is None:
        raise OSError(f"{checkpoint.place(METADATA)} has no query id")
    return CheckpointState(query_id, planned, committed, tuple(map(str, runs)))


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


def _read_json(files: SmallFiles, name: str) -> Mapping[str, Any]:
    content = files.read(name)
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except ValueError:
        raise OSError(f"{files.place(name)} is no JSON") from None
    return found if isinstance(found, dict) else {}


def _text(found: Mapping[str, Any], name: str) -> str | None:
    value = found.get(name)
    return value if isinstance(value, str) else None
