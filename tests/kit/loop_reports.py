"""What the running event loop reports of failures that no caller has looked at.

Owns the loop's exception handler in the block. Must not: hear what earlier tests left. Invariant:
what the block has made and let go of is collected, and so reported, before the block ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def heard_reports() -> Iterator[list[str]]:
    """The reports, complete behind the block. What it awaits is to be out of reach by then."""
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    reports: list[str] = []
    gc.collect()
    loop.set_exception_handler(
        lambda _loop, context: reports.append(f"{context['message']}: {context.get('exception')!r}")
    )
    try:
        yield reports
        gc.collect()
    finally:
        loop.set_exception_handler(handler)
