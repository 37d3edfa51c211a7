"""The client's settings of a command: of files, profiles and options.

Owns the order of settings (an option wins over `--property`, which wins over `--command-config`,
which wins over the command's own defaults), and what the client warns of while the command runs.
Must not know which settings there are: the client does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from moldau import client
from moldau.cli.output import fail, refusing, warn
from moldau.cli.profile_files import ENVIRONMENT as PROFILE_ENVIRONMENT
from moldau.cli.profile_files import (
    chosen_profile,
    profile_in_use,
    profile_names,
    read_profile,
)
from moldau.client.config.settings import with_references
from moldau.config import ConfigError, read_properties_file

DEFAULT_BOOTSTRAP_SERVER = "localhost:9092"
HELD_S = 1.8  # a command that has failed by then says in its error what the warning would say


def key_values(pairs: list[str], option: str) -> dict[str, str]:
    """`k=v` arguments as a dict; exits with status 2 for one without `=`."""
    values: dict[str, str] = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            fail(f"{option} {pair!r} is not KEY=VALUE", status=2)
        values[key] = value
    return values


def client_properties(
    bootstrap_server: str | None,
    command_config: str | None,
    properties: list[str] | None,
    *,
    profile: str | None = None,
    defaults: Mapping[str, str] | None = None,
    options: Mapping[str, str | None] | None = None,
) -> dict[str, object]:
    """Dotted keys with text values; exits with status 2 when a file cannot be read.

    Args:
        command_config: a file of properties, which takes the place of the profile.
        profile: its name; None for that of the environment, or the one in use.
        defaults: the command's own, for keys that are not given.
        options: what the command's options say; None where they say nothing.
    """
    _tell_warnings()
    settings: dict[str, object] = dict(defaults or {})
    given = key_values(properties or [], "--property")
    if command_config is not None and profile is not None:
        fail("--command-config and --profile exclude each other", status=2)
    named = profile is not None or PROFILE_ENVIRONMENT in os.environ
    if command_config is not None:
        with refusing(ConfigError):
            settings.update(read_properties_file(command_config))
    has_address = not {"bootstrap.servers", "bootstrap.controllers"}.isdisjoint({*settings, *given})
    if bootstrap_server is None and not has_address and not profile:
        bootstrap_server = os.environ.get("MOLDAU_BOOTSTRAP_SERVER") or None
    is_elsewhere = bootstrap_server is not None or "bootstrap.servers" in given
    if command_config is None:
        elsewhere = bootstrap_server or given.get("bootstrap.servers", "")
        settings.update(_of_profile(profile, None if named or not is_elsewhere else elsewhere))
    settings.update(given)
    settings.update({key: value for key, value in (options or {}).items() if value is not None})
    if bootstrap_server is not None:
        settings["bootstrap.servers"] = bootstrap_server
        settings.pop("bootstrap.controllers", None)
    elif "bootstrap.controllers" not in settings:
        settings.setdefault("bootstrap.servers", DEFAULT_BOOTSTRAP_SERVER)
    with refusing(client.ConfigurationError):
        return dict(with_references(settings))


def _of_profile(named: str | None, elsewhere: str | None) -> Mapping[str, str]:
    """The settings of a profile. What the one in use has for its own cluster goes to no other,
    unless it is asked for; one line says so.

    Args:
        elsewhere: addresses that were given without asking for a profile.
    """
    if elsewhere is None:
        chosen = chosen_profile(named)
        return {} if chosen is None else chosen.properties
    name = profile_in_use()
    if name is None or name not in profile_names():
        return {}
    properties = read_profile(name)
    own = {each.strip() for each in properties.get("bootstrap.servers", "").split(",")}
    if {each.strip() for each in elsewhere.split(",")} <= own:
        return properties
    if properties.keys() - {"bootstrap.servers", "bootstrap.controllers"}:
        warn(
            f"the profile {name} is left out, because {elsewhere} is not its cluster's; "
            f"--profile {name} takes its settings there"
        )
    return {}


@contextmanager
def unused_settings_told() -> Iterator[None]:
    """Settings that have no effect are one line on stderr, not a Python warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        warn(each.message)


class _Held(logging.Handler):
    """Prints what the client warns of, unless it or the command is over a little later. What comes
    after the end of the command goes to that command's stream, not to that of the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._stream = sys.stderr
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.levelno < logging.WARNING:  # the cluster is reached
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
        elif line not in self._timers:
            with suppress(RuntimeError):  # outside of an event loop no command runs
                loop = asyncio.get_running_loop()
                self._timers[line] = loop.call_later(HELD_S, self._tell, line)

    def _tell(self, line: str) -> None:
        self._timers.pop(line, None)
        if self._stream is not None:  # it was closed before the command began
            with suppress(ValueError):  # it was closed since
                warn(line, stream=self._stream)


def _tell_warnings() -> None:
    """Print the warnings of this command; a program may have run another one before."""
    logger = logging.getLogger("moldau.client.cluster")
    for handler in logger.handlers[:]:
        if isinstance(handler, _Held):
            logger.removeHandler(handler)
    logger.setLevel(logging.INFO)
    logger.addHandler(_Held())
