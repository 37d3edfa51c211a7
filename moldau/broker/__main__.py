"""`python -m moldau.broker CONFIG`: one node in the foreground, without the command line's
libraries.

Owns the process: arguments, logging, signals, the event loop, the exit status (0 stopped in an
orderly way, 1 failed, 2 wrong arguments or configuration). Invariant: a mistake in the
configuration is one line on stderr, never a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from moldau.broker.node import Node, NodeStartError
from moldau.config import ConfigError, NodeConfig
from moldau.runtime.descriptors import raise_descriptor_limit
from moldau.runtime.telemetry import configure_logging

logger = logging.getLogger("moldau.node")

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a node until it is told to stop; returns the exit status."""
    options = _parser().parse_args(arguments)
    gc.disable()  # until everything is loaded; the node then freezes what it has
    try:
        overrides = _overrides(options.override)
        options.create_topic = [_topic(text) for text in options.create_topic]
        config = NodeConfig.load(options.config, overrides, os.environ)
        _refuse_unserved_roles(config)
        configure_logging(config["moldau.log.format"], config["moldau.log.level"])
    except (ConfigError, ValueError) as error:
        return _refuse(str(error), status=2)
    for warning in config.warnings:
        logger.warning("%s", warning)
    raise_descriptor_limit()
    try:
        return _run(_serve(config, options))
    except NodeStartError as error:
        return _refuse(str(error), status=1)
    finally:
        if options.remove_on_exit:
            shutil.rmtree(options.remove_on_exit, ignore_errors=True)


def _refuse_unserved_roles(config: NodeConfig) -> None:
    """The one place that keeps nodes from starting in roles that the node cannot play yet."""
    if not (config.is_broker and config.is_controller):
        raise ConfigError(
            "process.roles",
            config.text("process.roles"),
            "must be broker,controller: only one combined node is served yet",
        )
    if len(config.quorum_voters) > 1:
        raise ConfigError(
            "controller.quorum.voters",
            config.text("controller.quorum.voters"),
            "must be this node alone: only one combined node is served yet",
        )


async def _serve(config: NodeConfig, options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    failures: list[str] = []

    def fail(reason: str) -> None:
        failures.append(reason)
        loop.call_soon_threadsafe(stop.set)

    node = Node(config, on_fatal=fail)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    starting = asyncio.create_task(node.start(format_if_needed=options.format_if_needed))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set() and not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
    if starting.cancelled() or starting.exception() is not None:
        stopping.cancel()
        await node.stop()
        if failures:
            return _refuse(failures[0], status=1)
        if starting.cancelled():
            return 0
        starting.result()  # raises
    try:
        for topic in options.create_topic:
            await node.create_topic(*topic)
    except NodeStartError:
        await node.stop()
        raise
    if options.announce:
        print(f"ready: {node.address}", flush=True)
    logger.info("node serves", extra={"node_id": config.node_id, "address": node.address})
    node.after_start()
    await stop.wait()
    await node.stop()
    return _refuse(failures[0], status=1) if failures else 0


def _run(serving: Coroutine[Any, Any, int]) -> int:
    """Run on uvloop where it is installed, else on asyncio's own loop."""
    new_event_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        import uvloop
    except ImportError:
        logger.warning("uvloop is not installed: asyncio's own loop is slower")
    else:
        new_event_loop = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        try:
            return runner.run(serving)
        finally:
            # The loop's handlers end with it: what comes now must not turn an orderly end into a
            # death by signal.
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moldau.broker", description="Run one node.")
    parser.add_argument("config", help="the node's server.properties")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--announce", action="store_true", help="print `ready: HOST:PORT`")
    parser.add_argument(
        "--format-if-needed", action="store_true", help="format log directories that are empty"
    )
    parser.add_argument(
        "--create-topic", action="append", default=[], metavar="NAME[:PARTITIONS[:RF]]"
    )
    parser.add_argument("--remove-on-exit", metavar="DIR", help="delete DIR after an orderly stop")
    return parser


def _overrides(pairs: Sequence[str]) -> dict[str, str]:
    overrides = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator:
            raise ConfigError("--override", pair, "must be KEY=VALUE")
        overrides[key] = value
    return overrides


def _topic(text: str) -> tuple[str, int, int]:
    """Name, partitions and replication factor; -1 stands for the node's default."""
    name, _, rest = text.partition(":")
    partitions, _, factor = rest.partition(":")
    try:
        return name, int(partitions or -1), int(factor or -1)
    except ValueError:
        raise ConfigError("--create-topic", text, "must be NAME[:PARTITIONS[:RF]]") from None


def _refuse(message: str, *, status: int) -> int:
    line = " ".join(message.split())
    print(f"moldau: {line}", file=sys.stderr, flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
