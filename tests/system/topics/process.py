"""`python -m tests.system.topics.process KIND BOOTSTRAP TOPIC…`: the process of a kind of readers.

Owns the process; it ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from tests.system.topics import readers
from tests.system.topics.bugs import BUG_VARIABLE, BUGS
from tests.system.topics.events import Teller, Warnings
from tests.system.topics.spark_stream import spark_stream
from tests.system.topics.stores import stores

Read = Callable[[Teller, str, list[str]], Any]


KINDS: Final[Mapping[str, tuple[str, Read]]] = MappingProxyType(
    {
        "assigned": ("assigned", readers.assigned),
        "blocking": ("blocking", readers.blocking),
        "classic-group": ("classic-group", readers.classic_group),
        "consumer-group": ("consumer-group", readers.consumer_group),
        "stores": ("store-reader", stores),
        "spark": ("spark-sql", spark_stream),
    }
)
"""The reader whose client the warnings of the process are of, and what runs."""


def main() -> None:
    """The process."""
    kind, bootstrap, *topics = sys.argv[1:]
    name, read = KINDS[kind]
    teller = Teller()
    logging.getLogger("moldau").addHandler(Warnings(teller, name))
    if bug := os.environ.get(BUG_VARIABLE):
        BUGS[bug].inject_for_good()
    try:
        running = read(teller, bootstrap, topics)
        if running is not None:
            asyncio.run(running)
    except BaseException as error:
        teller.wrong(name, f"the process ends: {error!r}")
        raise


if __name__ == "__main__":
    main()
