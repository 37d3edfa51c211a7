"""One Spark session per process, and one node per module.

Owns both. A session is a JVM: it is made once, small, and for the tests that ask for it only. Where
there is no Java the tests skip, visibly.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moldau.client import NewTopic
from moldau.client.sync import Admin
from moldau.spark_connector.pipelines.embedded_spark import lean_spark_home
from moldau.testing import Cluster
from tests.fake_broker import ThreadedCluster
from tests.kit.absent import ABSENT, why_skipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

HERE = Path(__file__).parent
IS_SPARK_4_1 = "pyspark" not in ABSENT and version("pyspark").startswith("4.1.")
SEVERAL_BATCHES = pytest.mark.skipif(
    IS_SPARK_4_1, reason="PySpark 4.1 takes everything there is into a run's first batch"
)
SPARK_KAFKA_JARS = sorted((HERE.parents[1] / ".cache").glob("spark-kafka-*/*.jar"))
"""Spark's own Kafka source and sink, where `make setup-all` could fetch them."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Ends of streams that are not read: no time to clean up after them.
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
}
TRANSACTIONS = {
    "transaction.state.log.num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.two.phase.commit.enable": "true",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A JVM, and the Python processes that it starts, may take long where others work too."""
    for item in items:
        if not str(item.path).startswith(f"{HERE}{os.sep}"):
            continue
        if "pyspark" in ABSENT:
            item.add_marker(pytest.mark.skip(reason=why_skipped("pyspark")))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))
        if IS_SPARK_4_1:
            # It leaves its connections to the Java machine to the garbage collector.
            leak = "ignore:unclosed <socket.*raddr=:ResourceWarning"
            item.add_marker(pytest.mark.filterwarnings(leak))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark with two cores."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and there is none")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own, about libraries that it may not need
        from pyspark.sql import SparkSession

        os.environ["PYSPARK_PYTHON"] = sys.executable
        builder = SparkSession.builder.master("local[2]").appName("moldau-tests")
        warehouse = tmp_path_factory.mktemp("warehouse")
        builder = builder.config("spark.sql.warehouse.dir", str(warehouse))
        builder = builder.config("spark.jars", ",".join(map(str, SPARK_KAFKA_JARS)))
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        with pytest.MonkeyPatch.context() as patch:
            home = lean_spark_home(tmp_path_factory.mktemp("spark"))
            if home is not None:  # every Python process starts faster: some hundred of them here
                patch.setenv("SPARK_HOME", str(home))
            session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node, with small internal topics."""
    with Cluster(config=TRANSACTIONS) as running:
        yield running


@pytest.fixture(scope="module")
def admin(cluster: Cluster) -> Iterator[Admin]:
    """An admin client of the node."""
    with Admin(cluster.bootstrap_server) as client:
        yield client


@pytest.fixture
def topic(admin: Admin) -> str:
    """A fresh topic with two partitions."""
    return make_topic(admin, partitions=2)


def make_topic(admin: Admin, partitions: int = 1, **configs: str) -> str:
    """A fresh topic; `_` in the names of configs stands for a dot."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    admin.create_topics([NewTopic(name, partition_count=partitions, configs=settings)])
    return name


def offsets_of(query: StreamingQuery) -> dict[str, Any]:
    """What Spark says last about a query's source, with offsets as mappings, in every release."""
    progress = query.lastProgress
    assert progress is not None
    source: dict[str, Any] = json.loads(progress.json)["sources"][0]
    return source


def options_for(cluster: Cluster | ThreadedCluster, **given: Any) -> dict[str, str]:
    """Options of source or sink for the node; `__` in names stands for a dot."""
    options = {"kafka.bootstrap.servers": cluster.bootstrap_server}
    return options | {name.replace("__", "."): str(value) for name, value in given.items()}
