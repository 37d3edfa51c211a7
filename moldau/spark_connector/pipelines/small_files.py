"""A few small files in a directory, here or in whatever file system Spark reaches.

Owns reading one as a whole, making one, and putting a new one in its place. Must not know what is
in them.
Invariant: a reader finds the old file or the new one, never a part. (Object stores know no rename
over a file: a process that dies in the middle of one leaves no file, which reads as never written.)
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from moldau.spark_connector.pipelines.model import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DRAFT: Final = ".new"


class SmallFiles(Protocol):
    """Files of one directory. Everything raises OSError when the file system refuses."""

    directory: str

    def place(self, name: str) -> str:
        """How a file is called in messages."""

    def read(self, name: str) -> bytes | None:
        """What is in a file, None when it is not there."""

    def write(self, name: str, content: bytes) -> None:
        """Make a file, or put a new one in the old one's place; the directory is made too."""

    def create(self, name: str, content: bytes) -> bool:
        """Make a file that is not there; False when it is. The directory is made too."""

    def names(self, subdirectory: str) -> list[str]:
        """The names in a directory below this one; none when there is no such directory."""

    def local_directory(self) -> str | None:
        """The directory as this machine's own file system has it; None when it lies elsewhere."""


def small_files(spark: SparkSession, directory: str) -> SmallFiles:
    """The files of a directory; one with a scheme (s3a://…, hdfs://…) goes Spark's own way."""
    return HadoopFiles(spark, directory) if is_remote(directory) else LocalFiles(directory)


class LocalFiles:
    """A directory of this machine."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def place(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def read(self, name: str) -> bytes | None:
        try:
            return Path(self.place(name)).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        os.makedirs(self.directory, exist_ok=True)
        draft = self.place(name + _DRAFT)
        with open(draft, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(draft, self.place(name))

    def create(self, name: str, content: bytes) -> bool:
        draft = f"{name}.{uuid.uuid4().hex}"
        self.write(draft, content)
        try:
            os.link(self.place(draft), self.place(name))
        except FileExistsError:
            return False
        finally:
            os.unlink(self.place(draft))
        return True

    def names(self, subdirectory: str) -> list[str]:
        try:
            return os.listdir(self.place(subdirectory))
        except FileNotFoundError:
            return []

    def local_directory(self) -> str | None:
        return self.directory


class HadoopFiles:
    """A directory by its URL, with Spark's own file systems, settings and credentials."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self.directory = directory.rstrip("/")
        self._context = spark.sparkContext

    def place(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def read(self, name: str) -> bytes | None:
        def run(machine: Any, files: Any) -> bytes | None:
            path = machine.org.apache.hadoop.fs.Path(self.place(name))
            if not files.exists(path):
                return None
            opened = files.open(path)
            try:
                return bytes(machine.org.apache.commons.io.IOUtils.toByteArray(opened))
            finally:
                opened.close()

        found: bytes | None = self._with_files(run)
        return found

    def write(self, name: str, content: bytes) -> None:
        def run(machine: Any, files: Any) -> None:
            hadoop = machine.org.apache.hadoop.fs
            path, draft = hadoop.Path(self.place(name)), hadoop.Path(self.place(name + _DRAFT))
            self._fill(files, draft, content)
            self._rename(machine, draft, path, "OVERWRITE")

        self._with_files(run)

    def create(self, name: str, content: bytes) -> bool:
        from py4j.protocol import Py4JJavaError

        def run(machine: Any, files: Any) -> bool:
            hadoop = machine.org.apache.hadoop.fs
            path = hadoop.Path(self.place(name))
            if files.exists(path):
                return False
            draft = hadoop.Path(self.place(f"{name}.{uuid.uuid4().hex}"))
            self._fill(files, draft, content)
            try:
                self._rename(machine, draft, path, "NONE")
            except Py4JJavaError:
                files.delete(draft, False)
                if not files.exists(path):
                    raise
                return False
            return True

        made: bool = self._with_files(run)
        return made

    def names(self, subdirectory: str) -> list[str]:
        def run(machine: Any, files: Any) -> list[str]:
            path = machine.org.apache.hadoop.fs.Path(self.place(subdirectory))
            if not files.exists(path):
                return []
            return [str(each.getPath().getName()) for each in files.listStatus(path)]

        found: list[str] = self._with_files(run)
        return found

    def local_directory(self) -> str | None:
        def run(machine: Any, files: Any) -> str | None:
            url = files.makeQualified(machine.org.apache.hadoop.fs.Path(self.directory)).toUri()
            return str(url.getPath()) if url.getScheme() == "file" else None

        found: str | None = self._with_files(run)
        return found

    @staticmethod
    def _fill(files: Any, path: Any, content: bytes) -> None:
        opened = files.create(path, True)
        opened.write(bytearray(content))
        opened.close()

    def _rename(self, machine: Any, draft: Any, path: Any, how: str) -> None:
        """Rename as Spark does with the files of its checkpoints: OVERWRITE what is there, or NONE:
        only where nothing is.
        """
        hadoop = machine.org.apache.hadoop.fs
        configuration = self._context._jsc.hadoopConfiguration()
        context = hadoop.FileContext.getFileContext(path.toUri(), configuration)
        rename = getattr(hadoop, "Options$Rename")
        gateway = self._context._gateway
        assert gateway is not None, "a session has one"
        options = gateway.new_array(rename, 1)
        options[0] = getattr(rename, how)
        context.rename(draft, path, options)

    def _with_files(self, run: Any) -> Any:
        from py4j.protocol import Py4JJavaError

        machine: Any = self._context._jvm
        try:
            directory = machine.org.apache.hadoop.fs.Path(self.directory)
            files = directory.getFileSystem(self._context._jsc.hadoopConfiguration())
            return run(machine, files)
        except Py4JJavaError as error:
            raise OSError(str(error.java_exception)) from error
