"""Builds the optional native record codec; everything else is in pyproject.toml.

Without Cython or a working compiler the installation goes on without it: Moldau then runs its
plain Python record codec and says so in `moldau --version`.
"""

from __future__ import annotations

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

_NATIVE = "moldau.protocol.records._native"
_SOURCE = "moldau/protocol/records/_native.pyx"


def _warn(reason: object) -> None:
    print(
        f"moldau: the native record codec is NOT built ({reason}); "
        "plain Python will be used, several times slower per record",
        file=sys.stderr,
    )


class OptionalBuildExt(build_ext):
    """A build step that warns instead of failing the installation."""

    def run(self) -> None:
        """Build, or leave the extension out when the tool chain is unusable as a whole."""
        try:
            super().run()
        except Exception as error:  # noqa: BLE001 (compilers fail in every way there is)
            _warn(error)
            self.extensions = []

    def build_extension(self, ext: Extension) -> None:
        """Build one extension, or warn."""
        try:
            super().build_extension(ext)
        except Exception as error:  # noqa: BLE001 (compilers fail in every way there is)
            _warn(error)


def _extensions() -> list[Extension]:
    extension = Extension(_NATIVE, [_SOURCE], optional=True)
    if sys.platform != "win32":
        extension.extra_compile_args = ["-O3"]
    try:
        from Cython.Build import cythonize

        return list(cythonize([extension], quiet=True))
    except Exception as error:  # noqa: BLE001 (no Cython, or one that cannot read the source)
        _warn(error)
        return []


setup(ext_modules=_extensions(), cmdclass={"build_ext": OptionalBuildExt})
