"""CRC-32C from the `crc32c` distribution, without its package's import cost.

Owns `crc32c(data) -> int`. Importing the package proper reads distribution metadata and loads a
command line (argparse, importlib.metadata: about 30 ms of a serving node's 60 ms start-up), so its
extension module is loaded by itself; should a release lay its files out differently, the ordinary
import takes over.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TypeAlias, cast

Buffer: TypeAlias = bytes | bytearray | memoryview


def _load() -> Callable[[Buffer], int]:
    package = PathFinder.find_spec("crc32c")
    locations = package.submodule_search_locations if package is not None else None
    extension = PathFinder.find_spec("crc32c._crc32c", locations) if locations else None
    if extension is not None and extension.loader is not None:
        module = module_from_spec(extension)
        extension.loader.exec_module(module)
        if hasattr(module, "crc32c"):
            return cast("Callable[[Buffer], int]", module.crc32c)
    import crc32c

    return cast("Callable[[Buffer], int]", crc32c.crc32c)


crc32c = _load()
