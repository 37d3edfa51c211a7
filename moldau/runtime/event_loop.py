"""The event loop of nodes, blocking clients and `moldau bench`: uvloop's where it is installed; and
the task that runs on it.
"""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (`moldau[server]` brings it), else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def this_task() -> asyncio.Task[None]:
    """The one that runs. Not to be kept in a variable of what may be cancelled: the task would know
    itself by its error's traceback, and with it all that it holds would wait for the collector.
    """
    found = asyncio.current_task()
    assert found is not None, "this runs in a task"
    return found
