"""Warns of a node's files with secrets that every user of its machine may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from moldau.config import ConfigError, NodeConfig, read_properties_file
from moldau.config.providers import referenced_files
from moldau.config.table import find_broker_key
from moldau.runtime.private_files import others_may_read

_PRIVATE_KEYS: Final = ("ssl.keystore.location", ".assertion.private.key.file")
"""Ends of the keys that name files with them."""


def readable_secrets(config: NodeConfig, config_path: str) -> Iterator[str]:
    """One warning for each of them.

    Args:
        config_path: the properties file that `config` comes from; it counts when it has the value
            of a key that is sensitive itself, and no reference.
    """
    for path, holds in _files_with_secrets(config, config_path).items():
        if others_may_read(path):
            yield (
                f"every user of this machine may read {path}, which holds {holds}: "
                "leave it to the node's user (chmod 600)"
            )


def _files_with_secrets(config: NodeConfig, config_path: str) -> dict[str, str]:
    """What each file holds, by its path."""
    found: dict[str, str] = {}
    for name, text in config.explicit.items():
        if name.endswith(_PRIVATE_KEYS):
            found[text.strip()] = f"the private key of {name}"
        elif name.endswith("sasl.jaas.config") and "keyTab" in text:
            found.update((each, f"the keys of {name}") for each in _keytabs(text))
    if os.path.isfile(config_path):  # and no pipe, which can be read once
        with suppress(ConfigError):
            given = read_properties_file(config_path)
            found.update((each, "a value of its own") for each in referenced_files(given))
            if any(_is_secret(name, text) for name, text in given.items()):
                found[config_path] = "passwords or keys"
    return found


def _is_secret(name: str, text: str) -> bool:
    key = find_broker_key(name)
    return key is not None and key.sensitive and bool(text.strip()) and not text.startswith("${")


def _keytabs(jaas: str) -> Iterator[str]:
    from moldau.runtime.authentication import SecuritySettingError
    from moldau.sasl.jaas import parse_jaas

    with suppress(SecuritySettingError):
        path = parse_jaas(jaas).options.get("keyTab")
        if path:
            yield path.removeprefix("FILE:")
