"""What can go wrong with a pipeline before, while and after it runs.

Owns the errors of this package. Invariant: each text is one line for whoever wrote the file, with
the place where to change something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from moldau.spark_connector.errors import SparkConnectorError


class Problem(NamedTuple):
    """One thing that is wrong with a file: line numbers count from 1, `key` is dotted."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where}: {self.key}: {self.text}" if self.key else f"{where}: {self.text}"


class PipelineError(SparkConnectorError):
    """Base of what a pipeline raises."""


class PipelineFileError(PipelineError, ValueError):
    """A file that is no pipeline: everything that was found wrong with it, in `problems`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(each) for each in problems))
        self.problems = tuple(problems)


class PipelineFailed(PipelineError):
    """A pipeline that could not start, or has ended by an error."""


class JavaNotFound(PipelineError):
    """Spark needs a Java virtual machine, and there is none that it can use."""
