"""Pipelines: a YAML file that says from where, through what, to where; and Spark that does it.

    from moldau.spark_connector.pipelines import load_pipelines, run_pipelines

    run_pipelines(load_pipelines("delays.yaml"))

`moldau pipeline run FILE` and `spark-submit …/submit.py FILE` are the same. Names are imported when
they are asked for. Must not import Spark before a pipeline runs: checking a file needs none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.first_use import at_first_use

if TYPE_CHECKING:
    from moldau.spark_connector.errors import JavaNotFound as JavaNotFound
    from moldau.spark_connector.errors import PipelineError as PipelineError
    from moldau.spark_connector.errors import PipelineFailed as PipelineFailed
    from moldau.spark_connector.errors import PipelineFileError as PipelineFileError
    from moldau.spark_connector.pipelines.model import Pipeline as Pipeline
    from moldau.spark_connector.pipelines.pipeline_file import load_pipelines as load_pipelines
    from moldau.spark_connector.pipelines.runner import run_pipelines as run_pipelines

at_first_use(
    globals(),
    """
    spark_connector.errors: JavaNotFound PipelineError PipelineFailed PipelineFileError
    spark_connector.pipelines.model: Pipeline
    spark_connector.pipelines.pipeline_file: load_pipelines
    spark_connector.pipelines.runner: run_pipelines
    """,
)
