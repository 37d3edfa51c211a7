"""JSON Schema, the part of it that the console's own documents use: to check bodies and to describe
them in `/openapi.json`.

Invariant: what is checked is what is described. References lead into `components/schemas`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from moldau.console.problems import Problem

Schema = Mapping[str, Any]

STRING: Final[Schema] = {"type": "string"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
INTEGER: Final[Schema] = {"type": "integer", "format": "int64"}
ANY: Final[Schema] = {}
MAX_DEPTH: Final = 32
_KINDS: Final[Mapping[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def array(items: Schema, *, most: int | None = None) -> Schema:
    return {"type": "array", "items": items} | ({} if most is None else {"maxItems": most})


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    kind = schema.get("type")
    if not isinstance(kind, str):
        return {"anyOf": [schema, {"type": "null"}]}
    made = {**schema, "type": [kind, "null"]}
    if "enum" in made:
        made["enum"] = [*made["enum"], None]
    return made


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def record(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these members."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": list(required), "properties": properties}


COMPONENTS: Final[dict[str, Schema]] = {}
"""The schemas that have a name in the document, by that; as many as the source has."""


def named(name: str, schema: Schema) -> Schema:
    """A reference to a schema, which the document has under a name."""
    assert name not in COMPONENTS, f"two schemas are called {name}"
    COMPONENTS[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


def check(value: object, schema: Schema, where: str = "the body", depth: int = 0) -> None:
    """Refuse a body that the schema does not have. Raises: Problem: 422, says where and why."""
    if depth > MAX_DEPTH:
        raise Problem(422, f"{where} is nested too deeply")
    kinds = schema.get("type")
    if kinds is not None:
        allowed = [kinds] if isinstance(kinds, str) else kinds
        if not any(_is(value, kind) for kind in allowed):
            raise Problem(
                422, f"{where} is {_kind_of(value)}, and has to be {' or '.join(allowed)}"
            )
    if value is None:
        return
    if "enum" in schema and value not in schema["enum"]:
        known = ", ".join(str(each) for each in schema["enum"] if each is not None)
        raise Problem(422, f"{where} has to be one of {known}")
    _check_size(value, schema, where)
    if isinstance(value, dict):
        _check_members(value, schema, where, depth)
    elif isinstance(value, list) and "items" in schema:
        for index, each in enumerate(value):
            check(each, schema["items"], f"{where}[{index}]", depth + 1)


def _check_size(value: object, schema: Schema, where: str) -> None:
    if isinstance(value, str):
        size, least, most = len(value), "minLength", "maxLength"
        if "pattern" in schema and re.search(schema["pattern"], value) is None:
            raise Problem(422, f"{where} does not match {schema['pattern']}")
    elif isinstance(value, list):
        size, least, most = len(value), "minItems", "maxItems"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number, low, high = value, schema.get("minimum"), schema.get("maximum")
        if (low is not None and number < low) or (high is not None and number > high):
            raise Problem(422, f"{where} is not within its limits ({low} to {high})")
        return
    else:
        return
    if size < schema.get(least, 0):
        raise Problem(422, f"{where} is shorter than {schema[least]}")
    if size > schema.get(most, size):
        raise Problem(422, f"{where} is longer than {schema[most]}")


def _check_members(value: Mapping[str, Any], schema: Schema, where: str, depth: int) -> None:
    for name in schema.get("required", ()):
        if name not in value:
            raise Problem(422, f"{where} lacks {name}")
    properties, others = schema.get("properties", {}), schema.get("additionalProperties")
    for name, each in value.items():
        inner = properties.get(name, others)
        if isinstance(inner, Mapping):
            check(each, inner, f"{where}.{name}", depth + 1)


def _is(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _KINDS[kind])


def _kind_of(value: object) -> str:
    return next(kind for kind in ("null", *_KINDS) if _is(value, kind))
