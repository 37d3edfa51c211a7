"""The settings of the producer or consumer behind a command: file, `--property`, options.

Owns their order: an option wins over `--property`, which wins over `--command-config`, which wins
over the command's own defaults. Must not know which keys there are: the client does.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from moldau.cli.cluster_options import DEFAULT_BOOTSTRAP_SERVER, key_values
from moldau.cli.output import fail
from moldau.config import ConfigError, parse_properties

Properties = Annotated[
    list[str] | None,
    typer.Option("--property", help="KEY=VALUE, a setting of the client; may be repeated."),
]


def client_properties(
    bootstrap_server: str | None,
    command_config: str | None,
    properties: list[str] | None,
    *,
    defaults: Mapping[str, str],
    options: Mapping[str, str | None],
) -> dict[str, object]:
    """Dotted keys with text values; exits with status 2 when the file cannot be read.

    Args:
        defaults: the command's own, where nobody says otherwise.
        options: what the command's options say; None where they say nothing.
    """
    settings: dict[str, object] = dict(defaults)
    if command_config is not None:
        settings.update(_from_file(command_config))
    settings.update(key_values(properties or [], "--property"))
    settings.update({key: value for key, value in options.items() if value is not None})
    if bootstrap_server is not None:
        settings["bootstrap.servers"] = bootstrap_server
    settings.setdefault("bootstrap.servers", DEFAULT_BOOTSTRAP_SERVER)
    return settings


@contextmanager
def unused_settings_told() -> Iterator[None]:
    """Settings that have no effect are one line on stderr, not a Python warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        print(f"moldau: {each.message}", file=sys.stderr)


def _from_file(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as opened:
            return dict(parse_properties(opened.read()))
    except OSError as error:
        fail(f"{path}: {error.strerror}", status=2)
    except UnicodeDecodeError as error:
        fail(f"{path}: byte {error.start} is not UTF-8 text", status=2)
    except ConfigError as error:
        fail(f"{path}: {error}", status=2)
