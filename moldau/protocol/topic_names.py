"""What a topic may be called.

Owns the one rule that broker, controller, client and tools all check. Invariant: a name that passes
is also a legal directory name for every partition number below one million.
"""

from __future__ import annotations

import re
from typing import Final

MAX_TOPIC_NAME_LENGTH: Final = 249
METADATA_TOPIC_NAME: Final = "__cluster_metadata"
"""The controllers' own log: a legal name, but no client may create such a topic."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")


def is_legal_topic_name(topic_name: str) -> bool:
    """True when `topic_name` may name a topic."""
    return topic_name_problem(topic_name) is None


def topic_name_problem(topic_name: str) -> str | None:
    """What is wrong with `topic_name`, in one sentence, or None when nothing is."""
    if not topic_name:
        return "a topic name may not be empty"
    if topic_name in (".", ".."):
        return "a topic may not be named '.' or '..'"
    if len(topic_name) > MAX_TOPIC_NAME_LENGTH:
        return (
            f"a topic name has at most {MAX_TOPIC_NAME_LENGTH} characters, "
            f"this one has {len(topic_name)}"
        )
    if _LEGAL.match(topic_name) is None:
        return (
            f"topic name {topic_name!r} has a character that is not allowed: "
            "letters, digits, '.', '_' and '-' are"
        )
    return None


def collision_key(topic_name: str) -> str:
    """Names with the same key collide in metric names, where '.' and '_' are one character."""
    return topic_name.replace(".", "_")
