"""What the key table says of a key's effect is what the code does."""

from __future__ import annotations

from pathlib import Path

import moldau
from moldau.config import BROKER_KEYS, TOPIC_KEYS, Status

PACKAGE = Path(moldau.__file__).parent


def test_a_key_without_effect_is_read_nowhere() -> None:
    source = "".join(
        path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
        # The command line sets keys on other brokers, too, and reads none; clients have keys of
        # the same names.
        if not {"cli", "config", "messages", "client", "authentication"}
        & set(path.relative_to(PACKAGE).parts)
    )
    read = [
        name
        for name, key in {**BROKER_KEYS, **TOPIC_KEYS}.items()
        if key.status is Status.IGNORED and f'"{name}"' in source
    ]
    assert read == []
