"""References in configuration values: `${file:/run/secrets/kafka.properties:password}` (KIP-297).

Owns which providers there are and how references are read: Kafka's FileConfigProvider (a key of a
properties file), DirectoryConfigProvider (KIP-632: a file of a directory, whole) and
EnvVarConfigProvider (KIP-887: a variable of the environment), with their parameters
`allowed.paths` (KIP-993) and `allowlist.pattern`. Must not: know what a value means. Invariants:
what a provider has found is in no error; a reference to a configured provider is replaced or
refused, where Apache Kafka keeps it as the value when it finds nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NoReturn, TypeVar

from moldau.config.definition import ConfigError
from moldau.config.properties import MAX_FILE_BYTES, read_properties_file
from moldau.config.small_files import read_small_file

PROVIDERS: Final = "config.providers"
_PACKAGE: Final = "org.apache.kafka.common.config.provider."
_REFERENCE: Final = re.compile(r"\$\{([^}:]+):(?:([^}]*?):)?([^}:]*)\}")
_ALLOWED_PATHS: Final = "allowed.paths"
_ALLOWLIST: Final = "allowlist.pattern"

Value = TypeVar("Value")


def resolved(properties: Mapping[str, Value], environ: Mapping[str, str]) -> dict[str, Value | str]:
    """The properties with every reference in their texts replaced; other values stay as they are.

    Args:
        environ: where EnvVarConfigProvider looks.

    Raises:
        ConfigError: a provider is not one that is served, or has not what a reference names.
    """
    values: dict[str, Value | str] = dict(properties)
    providers = _providers(properties, environ)
    if not providers:
        return values
    files: dict[str, dict[str, str]] = {}
    for key, value in properties.items():
        if isinstance(value, str) and "${" in value and not _is_about_providers(key):
            values[key] = _replaced(key, value, providers, files)
    return values


def referenced_files(properties: Mapping[str, str]) -> Iterator[str]:
    """The files that references of these properties name. Raises: ConfigError, as `resolved`."""
    providers = _providers(properties, {})
    for key, text in properties.items():
        if "${" in text and not _is_about_providers(key):
            for alias, path, name in _REFERENCE.findall(text):
                if alias in providers and path:
                    is_whole = providers[alias].kind == f"{_PACKAGE}DirectoryConfigProvider"
                    yield os.path.join(path, name) if is_whole else path


def without_providers(properties: Mapping[str, Value]) -> dict[str, Value]:
    """The properties without those that configure providers."""
    return {key: each for key, each in properties.items() if not _is_about_providers(key)}


def configures_a_provider(key: str, properties: Mapping[str, object]) -> bool:
    """Whether a key is the class or a parameter of one of the providers that are named."""
    return any(key.startswith(f"{PROVIDERS}.{alias}.") for alias in _aliases(properties))


def _is_about_providers(key: str) -> bool:
    return key == PROVIDERS or key.startswith(f"{PROVIDERS}.")


class _Provider:
    """One configured provider: its class's short name, and its parameters."""

    def __init__(self, kind: str, parameters: Mapping[str, str], environ: Mapping[str, str]):
        self.kind = kind
        self._environ = environ
        paths = parameters.get(_ALLOWED_PATHS)
        allowed = None if paths is None else [each.strip() for each in paths.split(",")]
        self._allowed_paths = None if allowed is None else [each for each in allowed if each]
        self._allowlist = re.compile(parameters.get(_ALLOWLIST, ".*"))

    def find(self, path: str, key: str, files: dict[str, dict[str, str]]) -> str:
        """Raises: LookupError: why there is nothing."""
        return _FINDERS[self.kind](self, path, key, files)

    def _in_file(self, path: str, key: str, files: dict[str, dict[str, str]]) -> str:
        self._check_path(path)
        if path not in files:
            try:
                files[path] = read_properties_file(path, takes_pipe=False)
            except ConfigError as error:
                raise LookupError(f"{path}: {error.allowed}") from None
            except ValueError:
                raise LookupError(f"{path!r}: no file can have this name") from None
        if key not in files[path]:
            raise LookupError(f"{path} has no key {key!r}")
        return files[path][key]

    def _in_directory(self, path: str, key: str, _: dict[str, dict[str, str]]) -> str:
        self._check_path(path)
        if not key or "/" in key or key in (".", ".."):
            raise LookupError(f"{key!r} is no name of a file in {path or 'a directory'}")
        whole = os.path.join(path, key)
        try:
            return read_small_file(whole, MAX_FILE_BYTES).decode()
        except OSError as error:
            raise LookupError(f"{whole} cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise LookupError(f"{whole} is not UTF-8 text (byte {error.start})") from None

    def _in_environment(self, path: str, key: str, _: dict[str, dict[str, str]]) -> str:
        if path:
            raise LookupError("a variable of the environment has no path; write ${ALIAS:NAME}")
        if not self._allowlist.fullmatch(key):
            raise LookupError(f"{_ALLOWLIST} does not let the variable {key!r} be read")
        if key not in self._environ:
            raise LookupError(f"the environment has no variable {key!r}")
        return self._environ[key]

    def _check_path(self, path: str) -> None:
        if not path:
            raise LookupError("a path is missing; write ${ALIAS:PATH:KEY}")
        if self._allowed_paths is None:
            return
        real = os.path.realpath(path)
        for allowed in map(os.path.realpath, self._allowed_paths):
            if real == allowed or real.startswith(allowed.rstrip("/") + "/"):
                return
        raise LookupError(f"{path} is not below any of {_ALLOWED_PATHS}")


_FINDERS: Final[dict[str, Callable[[_Provider, str, str, dict[str, dict[str, str]]], str]]] = {
    f"{_PACKAGE}FileConfigProvider": _Provider._in_file,
    f"{_PACKAGE}DirectoryConfigProvider": _Provider._in_directory,
    f"{_PACKAGE}EnvVarConfigProvider": _Provider._in_environment,
}


def _providers(
    properties: Mapping[str, object], environ: Mapping[str, str]
) -> dict[str, _Provider]:
    return {alias: _provider(alias, properties, environ) for alias in _aliases(properties)}


def _aliases(properties: Mapping[str, object]) -> list[str]:
    given = properties.get(PROVIDERS) or ""
    if isinstance(given, str):
        given = given.split(",")
    if not isinstance(given, list | tuple):
        _refuse(PROVIDERS, "must be a list of names")
    return [alias for alias in (str(each).strip() for each in given) if alias]


def _provider(
    alias: str, properties: Mapping[str, object], environ: Mapping[str, str]
) -> _Provider:
    prefix = f"{PROVIDERS}.{alias}."
    kind = properties.get(f"{prefix}class")
    if not isinstance(kind, str) or kind.strip() not in _FINDERS:
        served = ", ".join(_FINDERS)
        _refuse(f"{prefix}class", f"must be one of {served}; got {kind!r}")
    parameters = {
        name.removeprefix(f"{prefix}param."): str(value)
        for name, value in properties.items()
        if name.startswith(f"{prefix}param.")
    }
    try:
        return _Provider(kind.strip(), parameters, environ)
    except re.error as error:
        _refuse(f"{prefix}param.{_ALLOWLIST}", f"is no pattern: {error}")


def _refuse(key: str, reason: str) -> NoReturn:
    raise ConfigError(key, None, reason)


def _replaced(
    key: str, text: str, providers: Mapping[str, _Provider], files: dict[str, dict[str, str]]
) -> str:
    def found(reference: re.Match[str]) -> str:
        provider = providers.get(reference[1])
        if provider is None:
            return reference[0]
        try:
            return provider.find(reference[2] or "", reference[3], files)
        except LookupError as error:
            _refuse(key, f"{reference[0]}: {error.args[0]}")

    return _REFERENCE.sub(found, text)
