"""A Parquet output belongs to one checkpoint: whatever is put in its place, no record is skipped.

Spark's file sink passes over every batch up to the last one in `_spark_metadata`, without a word.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.client.sync import Admin
from moldau.spark_connector.errors import PipelineFailed
from moldau.testing import Cluster
from tests.spark.conftest import make_topic
from tests.spark.pipelines.steps import run, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARCHIVE = """
name: archive
job: archive
source: {{bootstrap.servers: '{server}', topic: {topic}}}
sink: {{path: {path}}}
checkpoint: {checkpoint}
trigger: available-now
"""


class Archive:
    """A topic and the directory that it is archived into, run by run."""

    def __init__(self, server: str, topic: str, spark: SparkSession, directory: Path) -> None:
        self.server, self.topic, self.spark, self.directory = server, topic, spark, directory
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        fresh = [b"%d" % (len(self.sent) + each) for each in range(count)]
        send(self.server, self.topic, [(None, each) for each in fresh])
        self.sent += fresh

    def run(self, checkpoint: str, path: str = "files") -> int:
        text = ARCHIVE.format(
            server=self.server, topic=self.topic, path=path, checkpoint=checkpoint
        )
        return sum(each.row_count for each in run(text, self.directory))

    def archived(self) -> list[bytes]:
        rows = self.spark.read.parquet(str(self.directory / "files")).select("value").collect()
        return sorted((bytes(row[0]) for row in rows), key=int)


@pytest.mark.promise("parquet-one-checkpoint", "parquet-moved")
def test_only_the_outputs_own_checkpoint_goes_on_with_it(
    cluster: Cluster, admin: Admin, spark: SparkSession, tmp_path: Path
) -> None:
    archive = Archive(cluster.bootstrap_server, make_topic(admin), spark, tmp_path)
    archive.send(5)
    assert archive.run("one") == 5
    shutil.copytree(tmp_path / "one", tmp_path / "old")
    archive.send(5)
    assert archive.run("one") == 5

    # New, and in another spelling of the path: Spark would skip its first batches.
    archive.send(5)
    for path in ("files", (tmp_path / "files").as_uri()):
        with pytest.raises(PipelineFailed, match="checkpoint") as refused:
            archive.run("new", path)
        assert str(tmp_path / "files") in str(refused.value)
        assert str(tmp_path / "new") in str(refused.value)
    # An older copy of the checkpoint: the same.
    with pytest.raises(PipelineFailed, match="old") as refused:
        archive.run("old")
    assert str(tmp_path / "files") in str(refused.value)

    # Moved: it goes on. Killed between the output's log and the checkpoint's: it goes on, once.
    (tmp_path / "one").rename(tmp_path / "moved")
    assert archive.run((tmp_path / "moved").as_uri()) == 5
    assert archive.archived() == archive.sent
    last = max(int(each.name) for each in (tmp_path / "moved" / "commits").glob("[0-9]*"))
    (tmp_path / "moved" / "commits" / f"{last}").unlink()
    (tmp_path / "moved" / "commits" / f".{last}.crc").unlink(missing_ok=True)
    archive.send(5)
    archive.run("moved")
    assert archive.archived() == archive.sent
