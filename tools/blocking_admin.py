"""Writes the blocking admin client from the asyncio one (part of `make fmt`).

Owns moldau/client/sync/admin.py: a method for each coroutine method of `moldau.client.Admin`, in
alphabetical order. Invariant: the result depends on that class alone; tests/tidy checks that the
file is current.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from moldau.client import Admin

TARGET = Path(__file__).resolve().parent.parent / "moldau" / "client" / "sync" / "admin.py"

HEAD = '''\
"""The blocking admin client. Written by tools/blocking_admin.py (`make fmt`): do not edit.

Each call has the parameters, types and documentation of the method of `moldau.client.Admin`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Unpack

from moldau.client import Admin as AsyncAdmin
from moldau.client.config.client import AdminConfig, ClientConfig
from moldau.client.config.keywords import AdminSettings
from moldau.client.sync.client import BlockingClient, face_of


class Admin(BlockingClient[AsyncAdmin]):
    """A blocking admin client; use as `with Admin("localhost:9092") as admin`.

    Arguments and errors are those of `moldau.client.Admin`.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] = (),
        *,
        config: ClientConfig | Mapping[str, object] | None = None,
        **settings: Unpack[AdminSettings],
    ) -> None:
        resolved = AdminConfig.resolve(bootstrap_servers, config, settings)
        super().__init__(lambda: AsyncAdmin(config=resolved))
'''

METHOD = "    {name}: Final = face_of(AsyncAdmin.{name})\n"

BASE = frozenset({"close"})
"""What `BlockingClient` has already."""


def render() -> str:
    """The text of the module."""
    calls = inspect.getmembers(Admin, inspect.iscoroutinefunction)
    names = [name for name, _ in calls if not name.startswith("_") and name not in BASE]
    return HEAD + "\n" + "".join(METHOD.format(name=name) for name in sorted(names))


FILES = {TARGET: render()}

if __name__ == "__main__":
    TARGET.write_text(FILES[TARGET], encoding="utf-8")
