"""One node in the foreground: what `python -m moldau.broker` does once signals are in hand.

Owns arguments, logging, the event loop and what becomes of a start that fails or is called off.
Must not touch signal handlers. Invariant: a mistake in the configuration is one line on stderr,
never a traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import logging
import os
import resource
import shlex
import shutil
import sys
from collections.abc import Coroutine, Sequence
from typing import Final

from moldau.config import ConfigError, NodeConfig
from moldau.node import Node, NodeStartError
from moldau.node.readable_secrets import readable_secrets
from moldau.runtime.event_loop import new_event_loop
from moldau.runtime.garbage_collector import pause_garbage_collector
from moldau.runtime.stop_signals import StopSignals
from moldau.runtime.telemetry.logs import ROOT, configure_logging
from moldau.storage.meta_properties import META_PROPERTIES

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S: Final = 0.0005
"""How long a thread keeps the interpreter while another waits for it (Python's own: 5 ms): what the
controller and HTTP clients ask for holds up the data loop no longer.
"""


class _QuietStart(logging.Filter):
    """Lets only warnings through between `begin` and `end`: who tries a cluster out waits for
    `ready`, and elections of the quorum say nothing to them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING

    def begin(self) -> None:
        for handler in logging.getLogger(ROOT).handlers:
            handler.addFilter(self)

    def end(self) -> None:
        for handler in logging.getLogger(ROOT).handlers:
            handler.removeFilter(self)


_quiet_start: Final = _QuietStart()


def run_node(arguments: Sequence[str] | None, signals: StopSignals) -> int:
    """Run a node until a stop signal or a failure; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        overrides = _overrides(options.override)
        options.create_topic = [_topic(text) for text in options.create_topic]
        config = NodeConfig.load(options.config, overrides, os.environ)
        configure_logging(config["moldau.log.format"], config["moldau.log.level"])
        if options.quiet_start and "moldau.log.level" not in config.explicit:
            _quiet_start.begin()
    except (ConfigError, ValueError) as error:
        return _refuse(str(error), status=2)
    for warning in config.warnings:
        logger.warning("%s", warning)
    for warning in readable_secrets(config, options.config):
        logger.warning("%s", warning)
    raise_descriptor_limit()
    pause_garbage_collector()
    try:
        status = 0 if signals.is_requested else _run(_serve(config, options, signals))
        if not status:
            logger.info("stopped")
        return status
    except NodeStartError as error:
        return _refuse(f"{error}{_how_to_format(config, options.config)}", status=1)
    finally:
        if options.remove_on_exit:
            shutil.rmtree(options.remove_on_exit, ignore_errors=True)


async def _serve(config: NodeConfig, options: argparse.Namespace, signals: StopSignals) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    with signals.waking(loop, stop.set):
        return await _serve_until(stop, config, options)


async def _serve_until(stop: asyncio.Event, config: NodeConfig, options: argparse.Namespace) -> int:
    loop = asyncio.get_running_loop()
    failures: list[str] = []

    def fail(reason: str) -> None:
        failures.append(reason)
        loop.call_soon_threadsafe(stop.set)

    node = Node(config, on_fatal=fail)
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
        if options.announce:
            _announce(f"ready: {node.address}")
        for line in options.then_print:
            _announce(line)
        _quiet_start.end()
    except NodeStartError:
        await node.stop()
        raise
    logger.info("node serves", extra={"node_id": config.node_id, "address": node.address})
    node.after_start()
    await stop.wait()
    await node.stop()
    return _refuse(failures[0], status=1) if failures else 0


def _announce(line: str) -> None:
    """Raises: NodeStartError: the standard output does not take it."""
    try:
        print(line, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the exit
        why = "it is closed" if error.errno == errno.EBADF else error.strerror or error
        raise NodeStartError(f"standard output: {why}") from None


def _run(serving: Coroutine[object, None, int]) -> int:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serving)


def _how_to_format(config: NodeConfig, path: str) -> str:
    """What an operator does about directories that have no identity; nothing where all have one."""
    directories = {config.metadata_log_directory, *config.log_directories}
    formatted = [os.path.exists(os.path.join(each, META_PROPERTIES)) for each in directories]
    if all(formatted):
        return ""
    command = f"moldau storage format --config {shlex.quote(path)}"
    says_who_votes = config.is_controller and not config.has_static_voters
    if any(formatted):
        command += " --ignore-formatted" + " --no-initial-controllers" * says_who_votes
        return f"; `{command}` formats a new directory of this node"
    command += " --standalone" * says_who_votes
    return (
        f"; a new node is formatted by `{command}`, all nodes of a cluster with the same "
        "--cluster-id (`moldau storage random-uuid` prints a new one)"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m moldau.broker", description="Run one node.")
    parser.add_argument("config", help="the node's server.properties")
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--announce", action="store_true", help="print `ready: HOST:PORT`")
    parser.add_argument(
        "--then-print", action="append", default=[], metavar="LINE", help="print this behind it"
    )
    parser.add_argument(
        "--quiet-start", action="store_true", help="log no more than warnings before that"
    )
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


FEW_DESCRIPTORS = 10_000
"""With fewer, a node works and warns its operator."""


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, as far as the system lets us; returns what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            # macOS reports no hard limit and grants less than that.
            logger.info("the limit of open files stays at %d: %s", soft, error)
        else:
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEW_DESCRIPTORS:
        logger.warning(
            "only %d files and connections may be open at a time (ulimit -n), each partition that "
            "is written to takes three",
            soft,
        )
    return soft
