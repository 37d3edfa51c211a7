"""A node with an injected bug: `python -m tests.system.security.faulty_node FAULT CONFIG …`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from moldau.broker.__main__ import main
from moldau.protocol.api_keys import ApiKey

BLOCKED_S: Final = 2.0
"""For so long each request to delete topics, or to alter configurations, holds the loop."""


def share_of_one() -> None:
    """A stranger may hold all memory, and keep it: no share, no reserve, no rate is asked for."""
    from moldau.server.connection_group import ConnectionGroup
    from moldau.server.memory_shares import Share

    def allows(share: Any, size_bytes: int, _: object) -> bool:
        share.wanted_bytes = size_bytes
        share.barred = None
        budget = share.budget
        return bool(budget.held_bytes + size_bytes <= budget.limit_bytes)

    Share.allows = allows  # type: ignore[method-assign]
    ConnectionGroup._make_way = lambda _: None  # type: ignore[method-assign]


def blocked_loop() -> None:
    """A handler waits where it must not."""
    from moldau.server.request_router import RequestRouter

    original = RequestRouter.__call__

    def call(router: Any, request: Any) -> None:
        if request.api_key in (ApiKey.DELETE_TOPICS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
            threading.Event().wait(BLOCKED_S)
        original(router, request)

    RequestRouter.__call__ = call  # type: ignore[method-assign]


FAULTS: Final[dict[str, Callable[[], None]]] = {
    "share": share_of_one,
    "blocked": blocked_loop,
}

if __name__ == "__main__":
    FAULTS[sys.argv.pop(1)]()
    sys.exit(main())
