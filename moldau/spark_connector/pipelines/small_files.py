"""A few small files in a directory, here or in whatever file system Spark reaches.

Owns reading one as a whole, making one, and putting a new one in its place. Must not know what is
in them.
Invariant: a reader finds the old file or the new one, never a part. (Object stores know no rename
over a file: a process that dies in the middle of one leaves no file, which reads as never written.)
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from moldau.spark_connector.pipelines.model import is_remote

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject, JVMView
    from pyspark.sql import SparkSession

_DRAFT: Final = ".new"


class LocalFiles:
    """A directory of this machine. Everything raises OSError when the file system refuses."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def place(self, name: str) -> str:
        """How a file is called in messages."""
        return os.path.join(self.directory, name)

    def read(self, name: str) -> bytes | None:
        """What is in a file, None when it is not there."""
        try:
            return Path(self.place(name)).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Make a file, or put a new one in the old one's place; the directory is made too."""
        os.makedirs(self.directory, exist_ok=True)
        draft = self.place(name + _DRAFT)
        with open(draft, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(draft, self.place(name))

    def create(self, name: str, content: bytes) -> bool:
        """Make a file that is not there; False when it is. The directory is made too."""
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
        """The names in a directory below this one; none when there is no such directory."""
        try:
            return os.listdir(self.place(subdirectory))
        except FileNotFoundError:
            return []

    def local_directory(self) -> str | None:
        """The directory as this machine's own file system has it; None when it lies elsewhere."""
        return self.directory


class HadoopFiles:
    """The same for a directory by its URL, with Spark's file systems, settings and credentials."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self.directory = directory.rstrip("/")
        self._context = spark.sparkContext

    def place(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def read(self, name: str) -> bytes | None:
        with self._opened() as (machine, files):
            path = self._path(name)
            if not files.exists(path):
                return None
            opened = files.open(path)
            try:
                return bytes(machine.org.apache.commons.io.IOUtils.toByteArray(opened))
            finally:
                opened.close()

    def write(self, name: str, content: bytes) -> None:
        with self._opened() as (_, files):
            draft = self._filled(files, name + _DRAFT, content)
            self._rename(draft, self._path(name), "OVERWRITE")

    def create(self, name: str, content: bytes) -> bool:
        from py4j.protocol import Py4JJavaError

        with self._opened() as (_, files):
            path = self._path(name)
            if files.exists(path):
                return False
            draft = self._filled(files, f"{name}.{uuid.uuid4().hex}", content)
            try:
                self._rename(draft, path, "NONE")
            except Py4JJavaError:
                files.delete(draft, False)
                if not files.exists(path):
                    raise
                return False
            return True

    def names(self, subdirectory: str) -> list[str]:
        with self._opened() as (_, files):
            path = self._path(subdirectory)
            if not files.exists(path):
                return []
            return [str(each.getPath().getName()) for each in files.listStatus(path)]

    def local_directory(self) -> str | None:
        with self._opened() as (machine, files):
            path = machine.org.apache.hadoop.fs.Path(self.directory)
            url = files.makeQualified(path).toUri()
            return str(url.getPath()) if url.getScheme() == "file" else None

    @property
    def _machine(self) -> JVMView:
        machine = self._context._jvm
        assert machine is not None, "a session has one"
        return machine

    def _path(self, name: str) -> JavaObject:
        return self._machine.org.apache.hadoop.fs.Path(self.place(name))

    def _filled(self, files: JavaObject, name: str, content: bytes) -> JavaObject:
        path = self._path(name)
        opened = files.create(path, True)
        opened.write(bytearray(content))
        opened.close()
        return path

    def _rename(self, draft: JavaObject, path: JavaObject, how: str) -> None:
        """Rename as Spark does with the files of its checkpoints: OVERWRITE an existing one, or
        NONE: only where nothing is.
        """
        hadoop = self._machine.org.apache.hadoop.fs
        configuration = self._context._jsc.hadoopConfiguration()
        context = hadoop.FileContext.getFileContext(path.toUri(), configuration)
        rename = getattr(hadoop, "Options$Rename")
        gateway = self._context._gateway
        assert gateway is not None, "a session has one"
        options = gateway.new_array(rename, 1)
        options[0] = getattr(rename, how)
        context.rename(draft, path, options)

    @contextmanager
    def _opened(self) -> Iterator[tuple[JVMView, JavaObject]]:
        """The Java machine and the directory's file system, whose errors become OSError."""
        from py4j.protocol import Py4JJavaError

        try:
            directory = self._machine.org.apache.hadoop.fs.Path(self.directory)
            yield self._machine, directory.getFileSystem(self._context._jsc.hadoopConfiguration())
        except Py4JJavaError as error:
            raise OSError(str(error.java_exception)) from error


SmallFiles: TypeAlias = LocalFiles | HadoopFiles


def small_files(spark: SparkSession, directory: str) -> SmallFiles:
    """The files of a directory; one with a scheme (s3a://…, hdfs://…) goes Spark's own way."""
    return HadoopFiles(spark, directory) if is_remote(directory) else LocalFiles(directory)
