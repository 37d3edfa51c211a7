"""What a test says about the nodes of its cluster, as their configuration has it.

Must not import the rest of Moldau before there is something to check: the pytest plugin imports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

IDENTITIES: Final = ("broker.id", "node.id", "process.roles")
"""Keys that differ between the nodes of a cluster, while `config` is for all of them."""


def texts_of(config: Mapping[str, object]) -> dict[str, str]:
    """Values of Python as Kafka writes them. Raises: ValueError: one that has no such form."""
    __tracebackhide__ = True
    if not isinstance(config, Mapping):
        raise ValueError(f"config={config!r}: {{KEY: VALUE}} is needed")
    return {key: _text(key, value) for key, value in config.items()}


def node_settings(config: Mapping[str, object]) -> dict[str, str]:
    """The same for nodes, which would only warn of a key that they do not know, in a log that a
    test does not show. Raises: ValueError: such a key, with the one it resembles, one of a single
    node, or a bad value
    """
    __tracebackhide__ = True
    texts = texts_of(config)
    for key in IDENTITIES:
        if key in texts:
            raise ValueError(f"{key}: a cluster numbers its nodes and gives them roles by itself")
    if texts:
        from moldau.config import ConfigError, check_keys

        try:
            check_keys(texts)
        except ConfigError as error:
            raise error.with_traceback(None) from None
    return texts


def _text(key: str, value: object) -> str:
    __tracebackhide__ = True
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    if isinstance(value, (str, int, float)):
        return str(value)
    raise ValueError(f"{key}={value!r}: a text, a number, True, False or a list is needed")
