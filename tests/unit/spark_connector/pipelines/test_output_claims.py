"""Claims on Parquet outputs: which checkpoint may write, and one driver at a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from moldau.spark_connector.errors import PipelineFailed
from moldau.spark_connector.pipelines.output_claims import CLAIM, OutputClaim, claim
from moldau.spark_connector.pipelines.small_files import LocalFiles


class Unlocked(LocalFiles):
    """An output in a file system that this machine cannot lock."""

    def local_directory(self) -> None:
        return None


def claimed(checkpoint: Path, output: Path, kind: type[LocalFiles] = LocalFiles) -> OutputClaim:
    return claim(LocalFiles(str(checkpoint)), kind(str(output)), "copy")


def batch(checkpoint: Path, output: Path, number: int, *, is_committed: bool = True) -> None:
    """What Spark leaves behind of one batch."""
    logs = [checkpoint / "offsets", output / "_spark_metadata"]
    for log in logs + [checkpoint / "commits"] * is_committed:
        log.mkdir(parents=True, exist_ok=True)
        (log / str(number)).touch()


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint and its output, after two batches."""
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    claimed(checkpoint, output).release()
    for number in range(2):
        batch(checkpoint, output, number)
    return checkpoint, output


@pytest.mark.parametrize("kind", [LocalFiles, Unlocked])
@pytest.mark.promise("parquet-moved")
def test_the_outputs_checkpoint_goes_on_wherever_it_is_moved(
    places: tuple[Path, Path], kind: type[LocalFiles]
) -> None:
    checkpoint, output = places
    claimed(checkpoint, output, kind).release()
    batch(checkpoint, output, 2, is_committed=False)
    moved = checkpoint.rename(checkpoint.with_name("moved"))
    claimed(moved, output, kind).release()
    assert json.loads((output / CLAIM).read_text())["checkpoint"] == str(moved)


@pytest.mark.parametrize("kind", [LocalFiles, Unlocked])
@pytest.mark.promise("parquet-one-checkpoint")
def test_other_checkpoints_are_refused_by_both_names(
    places: tuple[Path, Path], tmp_path: Path, kind: type[LocalFiles]
) -> None:
    checkpoint, output = places
    shutil.copytree(checkpoint, tmp_path / "copy")
    claimed(checkpoint, output, kind).release()
    batch(checkpoint, output, 2)
    for name, said in (("new", "is new"), ("copy", "stands before batch 2")):
        for _ in range(2):  # the refusal itself must not make it right
            with pytest.raises(PipelineFailed, match=said) as refused:
                claimed(tmp_path / name, output, kind)
            assert f"checkpoint {tmp_path / name} " in str(refused.value)
            assert f"the output {output} " in str(refused.value)
            assert "sink.path of its own" in str(refused.value)
    claimed(checkpoint, output, kind).release()


@pytest.mark.promise("parquet-claim")
def test_a_copy_that_has_planned_the_same_batch_differently_is_refused(
    places: tuple[Path, Path], tmp_path: Path
) -> None:
    checkpoint, output = places
    shutil.copytree(checkpoint, tmp_path / "copy")
    (checkpoint / "offsets" / "2").touch()
    claimed(tmp_path / "copy", output).release()
    batch(tmp_path / "copy", output, 2)
    with pytest.raises(PipelineFailed, match="holds batches up to 2"):
        claimed(checkpoint, output)


@pytest.mark.promise("parquet-lock")
def test_one_driver_at_a_time(places: tuple[Path, Path], tmp_path: Path) -> None:
    checkpoint, output = places
    shutil.copytree(checkpoint, tmp_path / "copy")
    running = claimed(checkpoint, output)
    with pytest.raises(PipelineFailed, match=r"another pipeline writes to .*output now"):
        claimed(tmp_path / "copy", output)
    running.release()
    running.release()
    claimed(tmp_path / "copy", output).release()


@pytest.mark.promise("parquet-no-lock")
def test_two_new_queries_at_once_where_there_are_no_locks(tmp_path: Path) -> None:
    output = tmp_path / "output"
    claimed(tmp_path / "one", output, Unlocked)
    with pytest.raises(PipelineFailed, match=f"remove {output / CLAIM}"):
        claimed(tmp_path / "two", output, Unlocked)


def test_an_output_that_holds_nothing_is_free_where_there_are_locks(tmp_path: Path) -> None:
    """Its first query has failed before it had written a batch, and its checkpoint was removed."""
    claimed(tmp_path / "one", tmp_path / "output").release()
    claimed(tmp_path / "two", tmp_path / "output").release()
    stated = json.loads((tmp_path / "output" / CLAIM).read_text())
    assert stated["checkpoint"] == str(tmp_path / "two")


@pytest.mark.parametrize("kind", [LocalFiles, Unlocked])
@pytest.mark.promise("parquet-metadata")
def test_a_checkpoint_that_has_lost_its_id_gets_one_and_claims_with_it(
    tmp_path: Path, kind: type[LocalFiles]
) -> None:
    """Without a claim another query would find the output free."""
    checkpoint, output = tmp_path / "checkpoint", tmp_path / "output"
    batch(checkpoint, output, 0)
    claimed(checkpoint, output, kind).release()
    query_id = json.loads((checkpoint / "metadata").read_text())["id"]
    assert json.loads((output / CLAIM).read_text())["query"] == query_id
    with pytest.raises(PipelineFailed, match="belongs to another query"):
        claimed(tmp_path / "other", output, kind)


def test_what_cannot_be_read_stops_the_pipeline(places: tuple[Path, Path]) -> None:
    checkpoint, output = places
    (output / CLAIM).write_text("{")
    with pytest.raises(PipelineFailed, match=r"cannot be seen: .*is no JSON"):
        claimed(checkpoint, output)
    (checkpoint / "metadata").write_text("{}")
    with pytest.raises(PipelineFailed, match=r"cannot be seen: .*metadata has no query id"):
        claimed(checkpoint, output)
