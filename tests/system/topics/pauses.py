"""What lies between two acts of a client or of the chaos; no test waits for anything by it."""

from __future__ import annotations

import asyncio
from contextlib import suppress


async def pause(duration_s: float) -> None:
    """Do nothing for so long."""
    with suppress(TimeoutError):
        async with asyncio.timeout(duration_s):
            await asyncio.Event().wait()
