"""A set of settings: from keyword arguments, mappings and files to one immutable value.

Owns the way from given settings to a complete, checked set, the names in all their spellings, and
how a set is shown. Must not know single keys: they are rows of `config/client_keys.tsv`.
Invariants: a set that exists is usable as it is; a setting that cannot be used is one clear error
that names the key; secrets are never shown.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, Self

from moldau.client.errors import ConfigurationError
from moldau.config import ConfigError, read_properties_file
from moldau.config.client_keys import (
    CLIENT,
    attribute,
    client_keys,
    served_by,
    served_names,
    unserved_client_keys,
)
from moldau.config.definition import HIDDEN, ConfigKey, Status
from moldau.config.values import value_of
from moldau.text import did_you_mean

WHERE_LISTED: Final = "; docs/compatibility.md lists them"


class UnusedSetting(UserWarning):
    """A setting that is known, but changes nothing here."""


def with_references(properties: Mapping[str, object]) -> Mapping[str, object]:
    """The properties with what `config.providers` finds for their references (KIP-297).

    Raises:
        ConfigurationError: a provider is not one that is served, or has not what is referred to.
    """
    if "config.providers" not in properties:
        return properties
    from moldau.config.providers import resolved, without_providers

    try:
        return without_providers(resolved(properties, os.environ))
    except ConfigError as error:
        raise ConfigurationError(str(error)) from None


class Settings:
    """Base of every client's configuration. Values are attributes, and cannot be changed.

    Attributes:
        KEYS: the settings that this kind of client has, by the names of the attributes.
        given: the names (with underscores) of the settings that are not left at their defaults.
    """

    KIND: ClassVar[str] = CLIENT
    KEYS: ClassVar[Mapping[str, ConfigKey]]

    given: frozenset[str]

    def __init_subclass__(cls) -> None:
        cls.KEYS = client_keys(cls.KIND)

    def __init__(self, bootstrap_servers: object = (), **settings: object) -> None:
        self._load({"bootstrap_servers": bootstrap_servers, **settings})

    def _load(self, given: Mapping[str, object]) -> None:
        """Take over names in either spelling, convert, fill in the defaults, check."""
        values: dict[str, object] = {}
        unused: list[str] = []
        for name, value in given.items():
            if not isinstance(name, str):
                raise ConfigurationError(f"{name!r}: the name of a setting is text")
            spelled = attribute(name)
            key = self.KEYS.get(spelled)
            if key is None:
                if self._is_without_effect(name, value):
                    unused.append(name)
                continue
            if spelled in values:
                raise ConfigurationError(f"{key.name} is given twice")
            values[spelled] = _converted(key, value)
        attributes = vars(self)
        attributes["given"] = frozenset(values)
        for name, key in self.KEYS.items():
            attributes[name] = values.get(name, key.default)
        if unused:
            names = ", ".join(sorted(unused))
            warnings.warn(f"without effect here: {names}", UnusedSetting, stacklevel=4)
        self._check()

    def _check(self) -> None: ...
    def _settle(self, **values: object) -> None:
        """Set values that depend on several keys; for `_check`."""
        vars(self).update(values)

    @classmethod
    def from_properties(cls, properties: Mapping[str, object]) -> Self:
        """Make a configuration of keys with dots or underscores, with text or typed values.

        References such as `${file:PATH:KEY}` are replaced where `config.providers` says so.

        Raises:
            ConfigurationError: an unknown key, with the nearest known one, or a bad value.
        """
        made = cls.__new__(cls)
        made._load(with_references(properties))
        return made

    @classmethod
    def from_file(cls, path: str, bootstrap_servers: str | None = None) -> Self:
        """Read a `.properties` file; addresses, when given, win over the file's.

        Raises:
            ConfigurationError: the file cannot be read, or as `from_properties`.
        """
        try:
            properties: dict[str, object] = dict(read_properties_file(path))
        except ConfigError as error:
            raise ConfigurationError(str(error)) from error
        if bootstrap_servers is not None:
            properties["bootstrap.servers"] = bootstrap_servers
            properties.pop("bootstrap.controllers", None)
        return cls.from_properties(properties)

    @classmethod
    def resolve(
        cls,
        bootstrap_servers: object,
        config: Settings | Mapping[str, object] | None,
        settings: Mapping[str, object],
    ) -> Self:
        """The configuration for a client's constructor; keyword settings win over `config`.

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
        """The given settings by dotted name, with their secrets."""
        return {dotted(name): getattr(self, name) for name in sorted(self.given)}

    def _is_without_effect(self, name: str, value: object) -> bool:
        """Whether a key that this client does not serve deserves a warning. Raises
        ConfigurationError for a refused or unknown one.
        """
        key = unserved_client_keys().get(dotted(name))
        if key is not None:
            return _is_ignored(key, value)
        for kind in served_by(name):
            if "." in name:
                # It is usual to have one file for several clients.
                return True
            raise ConfigurationError(f"{name}: a setting of the {kind}, not the {self.KIND}")
        known: Iterable[str] = self.KEYS
        if "." in name:
            known = [*map(dotted, known), *unserved_client_keys()]
        raise _unknown(name, known)

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
            f"{name}={HIDDEN if self.KEYS[name].sensitive else repr(getattr(self, name))}"
            for name in sorted(self.given)
        )
        return f"{type(self).__name__}({shown})"


def dotted(name: str) -> str:
    return name.replace("_", ".")


def check_property(name: str, value: str) -> None:
    """Raises ConfigurationError: no client has a setting of that dotted name, or it cannot have
    that value.
    """
    keys = [*served_by(name).values()]
    if keys:
        _converted(keys[0], value)
    elif name not in unserved_client_keys():
        raise _unknown(name, served_names())


def is_secret(name: str) -> bool:
    """Whether a setting's value is never shown; those that are not known are not."""
    return any(key.sensitive for key in served_by(name).values())


def _converted(key: ConfigKey, given: object) -> Any:
    try:
        return value_of(key, given)
    except ConfigError as error:
        raise ConfigurationError(str(error)) from None


def _is_ignored(key: ConfigKey, value: object) -> bool:
    """Whether a value has no effect although it says something. Raises ConfigurationError: it is
    refused.
    """
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if value is None:
        return False
    if key.status is Status.IGNORED:
        return text not in ("", key.default)
    if key.validator is None or not key.validator.accepts(text):
        raise ConfigurationError(f"{key.name}: {key.note}")
    return False


def _unknown(name: str, known: Iterable[str]) -> ConfigurationError:
    from moldau.config import BROKER_KEYS

    if name in BROKER_KEYS:
        return ConfigurationError(f"{name}: no such setting: nodes have it, clients do not")
    return ConfigurationError(f"{name}: no such setting{did_you_mean(name, known, WHERE_LISTED)}")
