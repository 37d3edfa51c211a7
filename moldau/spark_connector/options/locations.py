"""One spelling for each place of a checkpoint.

Owns the rules of spelling, which are Hadoop's. Must not look at a file system. Invariant: two
spellings that Spark takes for one place without asking a file system become the same text; a plain
absolute path is its own.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from typing import Final

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?", re.S)
_DEFAULT_PORTS: Final[Mapping[str, str]] = {
    "hdfs": "8020",
    "webhdfs": "9870",
    "swebhdfs": "9871",
    "http": "80",
    "https": "443",
}
_HERE: Final = ("", "localhost")


def normal_location(location: str, working_directory: str) -> str:
    """The normal spelling of a path or URL.

    Args:
        working_directory: where relative paths begin, absolute.
    """
    text = location.strip()
    url = _URL.fullmatch(text)
    if url is None:
        return _normal_path(posixpath.join(working_directory, text))
    scheme, authority, path = url[1].lower(), url[2] or "", _normal_path(url[3] or "/")
    if scheme == "file" and authority.lower() in _HERE:
        return path
    user, at, host = authority.rpartition("@")
    host = host.lower()
    if scheme in _DEFAULT_PORTS:
        host = host.removesuffix(f":{_DEFAULT_PORTS[scheme]}")
    return f"{scheme}://{user}{at}{host}{path}".rstrip("/")


def _normal_path(path: str) -> str:
    return posixpath.normpath("/" + path.lstrip("/"))
