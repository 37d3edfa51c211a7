"""`format("moldau")` is known without a call, and can be made known where a neighbour hides it.

In sessions of other processes: Spark looks for data sources once per process.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.spark.conftest import options_for

PROGRAM = """
    import sys
    from pyspark.sql import SparkSession
    from moldau.spark_connector import register

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "512m")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def count():
        options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
        return spark.read.format("moldau").options(**options).load().count()

    try:
        print("without:", count())
    except Exception as error:
        print("without:", type(error).__name__)
    register(spark)
    print("registered:", count())
"""


def run(cluster, topic, path):
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, and there is none")
    arguments = [text for pair in options_for(cluster, subscribe=topic).items() for text in pair]
    paths = [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]  # another PySpark, maybe
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout.splitlines()


def test_a_broken_neighbour_hides_us_until_we_are_registered(cluster, topic, tmp_path):
    (tmp_path / "pyspark_broken.py").write_text("raise RuntimeError('broken on purpose')\n")
    lines = run(cluster, topic, tmp_path)
    assert lines[0].startswith("without: ")
    assert lines[0] != "without: 0"
    assert lines[1] == "registered: 0"
