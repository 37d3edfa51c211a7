"""Pipelines: a YAML file that says from where, through what, to where; and Spark that does it.

    from moldau.spark_connector.pipelines import load_pipelines, run_pipelines

    run_pipelines(load_pipelines("delays.yaml"))

`moldau pipeline run FILE` and `spark-submit …/submit.py FILE` are the same. Names are imported when
they are asked for. Must not import Spark before a pipeline runs: checking a file needs none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from moldau.spark_connector.errors import (
    JavaNotFound,
    PipelineError,
    PipelineFailed,
    PipelineFileError,
)

if TYPE_CHECKING:
    from moldau.spark_connector.pipelines.model import Pipeline
    from moldau.spark_connector.pipelines.pipeline_file import load_pipelines
    from moldau.spark_connector.pipelines.runner import run_pipelines

__all__ = [
    "JavaNotFound",
    "Pipeline",
    "PipelineError",
    "PipelineFailed",
    "PipelineFileError",
    "load_pipelines",
    "run_pipelines",
]

_MODULES: Final = {
    "Pipeline": "moldau.spark_connector.pipelines.model",
    "load_pipelines": "moldau.spark_connector.pipelines.pipeline_file",
    "run_pipelines": "moldau.spark_connector.pipelines.runner",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
