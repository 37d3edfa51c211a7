"""Reads the golden files; see golden/README.md for where they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from moldau.protocol.structs import ArrayType, FieldType, Struct, StructType

GOLDEN = Path(__file__).parent / "golden"


def load(name: str) -> Any:
    """The contents of one golden file."""
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def build(struct_class: type[Struct], values: dict[str, Any]) -> Any:
    """An instance with the values of a golden case."""
    kinds = {field.name: field.type for field in struct_class.spec().fields}
    return struct_class(**{name: _value(kinds[name], value) for name, value in values.items()})


def _value(kind: FieldType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(kind, ArrayType):
        return [_value(kind.element, element) for element in value]
    if isinstance(kind, StructType):
        return build(kind.struct, value)
    if kind.name in ("bytes", "records"):
        return bytes.fromhex(value)
    return UUID(value) if kind.name == "uuid" else value
