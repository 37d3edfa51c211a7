"""Making `format("moldau")` known to a session of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Make `format("moldau")` known to a session; where it is known nothing changes.

    Needed where Spark cannot look for it: when another `pyspark_*` module on the path is broken,
    which hides all of them, when the session has looked before this package was installed, or when
    the installation is an editable one, which no directory on the path shows.
    """
    from pyspark.errors import PySparkException

    from moldau.spark_connector.data_source import MoldauDataSource

    try:
        spark.dataSource.register(MoldauDataSource)
    except PySparkException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
