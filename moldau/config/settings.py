"""Settings of a node's parts and of topics: dataclasses whose fields name their keys, once.

Must not import the table of keys before a default is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field, fields
from functools import cache
from typing import Any, Final, Self

from moldau.config.definition import Values

_SOURCE: Final = "of_key"


def of_key(*names: str, made: Callable[..., Any] | None = None) -> Any:
    """A field for the value of a key, or for what `made` makes of the values of several. Its
    default is that of the key.
    """

    def value(value_of: Callable[[str], Any]) -> Any:
        given = [value_of(name) for name in names]
        return given[0] if made is None else made(*given)

    return field(default_factory=lambda: value(_defaults().__getitem__), metadata={_SOURCE: value})


@cache
def _defaults() -> Values:
    from moldau.config.table import BROKER_KEYS, TOPIC_KEYS

    return {name: key.default for name, key in {**TOPIC_KEYS, **BROKER_KEYS}.items()}


class KeyedSettings:
    """Base of a dataclass with fields that are made by `of_key`."""

    __slots__ = ()

    @classmethod
    def from_config(cls, values: Values, **own: Any) -> Self:
        """The settings that a node's or topic's typed values give; arguments as below."""
        return cls.of(values.__getitem__, **own)

    @classmethod
    def of(cls, value_of: Callable[[str], Any], **own: Any) -> Self:
        """The settings that the values of keys give.

        Args:
            own: the fields that are of no key, or that are not as the key says.
        """
        keyed: list[Field[Any]] = [each for each in fields(cls) if _SOURCE in each.metadata]  # type: ignore[arg-type]
        return cls(**{each.name: each.metadata[_SOURCE](value_of) for each in keyed} | own)
