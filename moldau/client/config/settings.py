"""A set of settings: from keyword arguments, mappings and files to one immutable value.

Owns the way from what was given to a complete, checked set, the names in all their spellings and
what is shown of it. Must not know single keys. Invariant: a set that exists is usable as it is;
what cannot be used is one clear error that names the key, and secrets are never shown.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Self

from moldau.client.config.foreign_keys import REFUSED, UNUSED
from moldau.client.config.keys import REDACTED, Key
from moldau.client.errors import ConfigurationError
from moldau.config import parse_properties


class UnusedSetting(UserWarning):
    """A setting that is known, but changes nothing here."""


class Settings:
    """Base of every client's configuration. Values are attributes, and cannot be changed.

    Attributes:
        given: the names (with underscores) of what was set, as against left at its default.
    """

    KEYS: ClassVar[Mapping[str, Key]] = MappingProxyType({})
    KIND: ClassVar[str] = "client"

    given: frozenset[str]

    def __init_subclass__(cls) -> None:
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Key)}
        for name in own:
            delattr(cls, name)
        inherited: dict[str, Key] = {}
        for base in reversed(cls.__mro__[1:]):
            inherited.update(vars(base).get("KEYS", {}))
        cls.KEYS = MappingProxyType({**inherited, **own})

    def _load(self, given: Mapping[str, object]) -> None:
        """Take over names in either spelling, convert, fill in the defaults, check."""
        values: dict[str, object] = {}
        unused: list[str] = []
        for name, value in given.items():
            if not isinstance(name, str):
                raise ConfigurationError(f"{name!r}: the name of a setting is text")
            spelled = name.replace(".", "_")
            key = self.KEYS.get(spelled)
            if key is None:
                if self._is_without_effect(name, value):
                    unused.append(name)
                continue
            if spelled in values:
                raise ConfigurationError(f"{dotted(spelled)} is given twice")
            values[spelled] = key.value(dotted(spelled), value)
        attributes = vars(self)
        attributes["given"] = frozenset(values)
        for name, key in self.KEYS.items():
            attributes[name] = values.get(name, key.default)
        if unused:
            names = ", ".join(sorted(unused))
            warnings.warn(f"without effect here: {names}", UnusedSetting, stacklevel=4)
        self._check()

    def _check(self) -> None:
        """What no key can say alone. Raises ConfigurationError."""

    def _settle(self, **values: object) -> None:
        """Set what only all settings together decide; for `_check`."""
        vars(self).update(values)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> Self:
        """From keys with dots or underscores, with text or typed values.

        Raises:
            ConfigurationError: an unknown key, with the nearest known one, or a bad value.
        """
        made = cls.__new__(cls)
        made._load(properties)
        return made

    @classmethod
    def from_file(
        cls,
        path: str,
        bootstrap_servers: str | None = None,
        bootstrap_controllers: str | None = None,
    ) -> Self:
        """From a `.properties` file; addresses, when given, win over the file's.

        Raises:
            ConfigurationError: the file cannot be read, or as `from_properties`.
        """
        try:
            with open(path, encoding="utf-8") as opened:
                properties: dict[str, object] = dict(parse_properties(opened.read()))
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: byte {error.start} is not UTF-8 text") from error
        for key, others, given in (
            ("bootstrap.servers", "bootstrap.controllers", bootstrap_servers),
            ("bootstrap.controllers", "bootstrap.servers", bootstrap_controllers),
        ):
            if given is not None:
                properties[key] = given
                properties.pop(others, None)
        return cls.from_properties(properties)

    @classmethod
    def resolve(
        cls,
        bootstrap_servers: object,
        config: Settings | Mapping[str, object] | None,
        settings: Mapping[str, object],
    ) -> Self:
        """What a client's constructor was given: keyword settings win over `config`.

        Raises:
            ConfigurationError: as `from_properties`; or `config` is neither a mapping nor settings.
        """
        if config is None:
            given: dict[str, object] = {}
        elif isinstance(config, Settings):
            if isinstance(config, cls) and not settings and not bootstrap_servers:
                return config
            given = {name: getattr(config, name) for name in config.given}
            if not isinstance(config, cls):
                given = {name: value for name, value in given.items() if name in cls.KEYS}
        elif isinstance(config, Mapping):
            given = dict(config)
        else:
            raise ConfigurationError(
                f"config is a {type(config).__name__}; a {cls.__name__} or a mapping is needed"
            )
        overriding = dict(settings)
        if bootstrap_servers:
            overriding["bootstrap_servers"] = bootstrap_servers
        for name, value in overriding.items():
            given.pop(dotted(name), None)
            given[name] = value
        return cls.from_properties(given)

    def properties(self) -> dict[str, object]:
        """What was set, by dotted name, with its secrets."""
        return {dotted(name): getattr(self, name) for name in sorted(self.given)}

    def _is_without_effect(self, name: str, value: object) -> bool:
        """Whether an unserved key is worth a warning; raises for those that must not be."""
        key = dotted(name)
        if key in REFUSED:
            harmless, reason = REFUSED[key]
            if value is None or str(value) in harmless:
                return False
            raise ConfigurationError(f"{key}: {reason}")
        if key in UNUSED:
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            return value is not None and shown not in (UNUSED[key], "")
        for kind in all_kinds():
            if name.replace(".", "_") not in kind.KEYS:
                continue
            if "." in name:
                # One file for several clients is usual.
                return True
            raise ConfigurationError(f"{name}: a setting of the {kind.KIND}, not the {self.KIND}")
        known: Iterable[str] = self.KEYS
        if "." in name:
            known = [*map(dotted, known), *UNUSED, *REFUSED]
        raise ConfigurationError(f"{name}: no such setting{_nearest(name, known)}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; make another one")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed; make another one")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.KEYS)

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={REDACTED if self.KEYS[name].sensitive else repr(getattr(self, name))}"
            for name in sorted(self.given)
        )
        return f"{type(self).__name__}({shown})"


def dotted(name: str) -> str:
    """Kafka's spelling of a name."""
    return name.replace("_", ".")


def all_kinds() -> tuple[type[Settings], ...]:
    """The configurations of all clients."""
    from moldau.client.config.admin import AdminConfig
    from moldau.client.config.consumer import ConsumerConfig
    from moldau.client.config.producer import ProducerConfig

    return ProducerConfig, ConsumerConfig, AdminConfig


def _nearest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    listed: list[str] = list(known)
    matches = get_close_matches(name, listed, n=1)
    return f"; did you mean {matches[0]}?" if matches else f"; known: {', '.join(sorted(listed))}"
