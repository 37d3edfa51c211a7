"""The types of clients' settings as they are at run time: names. Type checkers read what is behind
them in `keywords.pyi`, which a script writes from the table of keys; no client loads it.
"""

from __future__ import annotations

from typing import TypedDict


class ClientSettings(TypedDict, total=False):
    """Keyword arguments of every client."""


class ProducerSettings(ClientSettings, total=False):
    """Keyword arguments of the producer."""


class ConsumerSettings(ClientSettings, total=False):
    """Keyword arguments of the consumer."""


class AdminSettings(ClientSettings, total=False):
    """Keyword arguments of the admin client."""


class ClientValues:
    """Attributes of every client's configuration."""


class ProducerValues:
    """Attributes of a producer's configuration."""


class ConsumerValues:
    """Attributes of a consumer's configuration."""


class AdminValues:
    """Attributes of an admin client's configuration."""
