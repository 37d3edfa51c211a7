"""The properties that are about a schema registry, among those of a client.

Owns their names, which are those of Confluent's clients. Imports nothing: commands look for them in
every set of properties.
"""

from __future__ import annotations

from typing import Final

REGISTRY_KEYS: Final = (
    "schema.registry.url",
    "basic.auth.user.info",
    "schema.registry.basic.auth.user.info",
    "basic.auth.credentials.source",
    "schema.registry.basic.auth.credentials.source",
    "schema.registry.ssl.ca.location",
    "schema.registry.request.timeout.ms",
)
"""Those of the registry's client: how it is reached."""
REGISTERS: Final = "auto.register.schemas"
STRATEGY: Final = "subject.name.strategy"
SERIALIZER_KEYS: Final = (REGISTERS, f"key.{STRATEGY}", f"value.{STRATEGY}")
"""Those of serializers: which schemas they use."""


def take_registry_settings(settings: dict[str, object]) -> dict[str, str]:
    """Move them out of the settings of a client."""
    names = (*REGISTRY_KEYS, *SERIALIZER_KEYS)
    return {name: str(settings.pop(name)) for name in names if name in settings}
