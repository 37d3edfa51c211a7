"""Builds the optional native record codec; everything else is in pyproject.toml.

Without Cython or a working compiler the installation goes on without it: Moldau then runs its
plain Python record codec and says so in `moldau --version`. With MOLDAU_PURE_PYTHON=1 in the
environment it is not tried, and a wheel is for every platform.
"""

from __future__ import annotations

import os
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

_NATIVE = "moldau.protocol.records._native"
_SOURCE = "moldau/protocol/records/_native.pyx"
_PARTS = [
    f"moldau/protocol/records/_native_{part}.pxi"
    for part in (
        "read",
        "write",
        "buffer",
        "columns",
        "cursor",
        "rows",
        "keys",
        "partitions",
    )
]
_BUILD_ERRORS = (BaseError, CCompilerError, OSError)


def _warn(reason: object) -> None:
    print(
        f"moldau: WARNING: the native record codec is NOT built ({reason}); "
        "plain Python will be used, several times slower per record",
        file=sys.stderr,
    )


class OptionalBuildExt(build_ext):
    """A build step that warns instead of failing the installation."""

    def run(self) -> None:
        """Build, or leave the extension out when the tool chain is unusable as a whole."""
        try:
            super().run()
        except _BUILD_ERRORS as error:
            _warn(error)
            self.extensions = []

    def build_extension(self, ext: Extension) -> None:
        """Build one extension, or warn."""
        try:
            super().build_extension(ext)
        except _BUILD_ERRORS as error:
            _warn(error)


def _extensions() -> list[Extension]:
    if os.environ.get("MOLDAU_PURE_PYTHON") == "1":
        return []
    try:
        from Cython.Build import cythonize
        from Cython.Compiler.Errors import CompileError
    except ImportError as error:
        _warn(error)
        return []
    extension = Extension(_NATIVE, [_SOURCE], depends=_PARTS, optional=True)
    if sys.platform != "win32":
        extension.extra_compile_args = ["-O3"]
    if sys.platform == "linux":
        extension.extra_link_args = ["-s"]  # no debugging symbols: half the size
    try:
        return list(cythonize([extension], quiet=True, build_dir="build/cython"))
    except (CompileError, OSError) as error:
        _warn(error)
        return []


setup(ext_modules=_extensions(), cmdclass={"build_ext": OptionalBuildExt})
