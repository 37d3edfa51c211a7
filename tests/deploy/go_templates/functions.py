"""The functions of the chart's templates, those of Go, of Sprig and of helm itself.

Owns their meaning, as helm 3.22 showed it. Must not know about templates. Numbers of a values file
are floats, as in helm, which shows in how big ones are printed.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import yaml


class FunctionError(Exception):
    """`fail` and `required`: what the chart's author wants to be said."""


def shown(value: Any) -> str:
    """How Go prints a value."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _float_text(value)
    if isinstance(value, dict):
        return f"map[{' '.join(f'{key}:{shown(value[key])}' for key in sorted(value))}]"
    if isinstance(value, list):
        return f"[{' '.join(shown(each) for each in value)}]"
    return str(value)


def _float_text(value: float) -> str:
    """The shortest digits that are exact; with an exponent from a million on."""
    digits = Decimal(repr(value)).normalize()
    exponent = digits.adjusted()
    if not digits or -4 <= exponent < 6:
        return format(digits, "f")
    return f"{digits.scaleb(-exponent):f}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def is_true(value: Any) -> bool:
    """Go's truth: neither false, 0, nil nor empty."""
    return bool(value)


def _integer(value: Any) -> int:
    return int(value or 0)


def _default(fallback: Any, value: Any = None) -> Any:
    return value if is_true(value) else fallback


def _index(value: Any, *keys: Any) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else value[int(key)]
    return value


def _quote(*values: Any) -> str:
    return " ".join(json.dumps(shown(v), ensure_ascii=False) for v in values if v is not None)


def _printf(text: str, *values: Any) -> str:
    plain = tuple(each if isinstance(each, str | int | float) else shown(each) for each in values)
    return text % plain


def _print(*values: Any) -> str:
    """A space between two operands of which neither is a string."""
    text = ""
    for place, value in enumerate(values):
        if place and not isinstance(value, str) and not isinstance(values[place - 1], str):
            text += " "
        text += shown(value)
    return text


def whole(value: Any) -> Any:
    """Floats that are whole numbers as integers, all the way down: what JSON and YAML print."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _to_yaml(value: Any) -> str:
    text: str = yaml.safe_dump(whole(value), default_flow_style=False, width=1_000_000)
    return text.removesuffix("\n").removesuffix("\n...")


def _to_json(value: Any) -> str:
    return json.dumps(whole(value), separators=(",", ":"), sort_keys=True)


def _indent(width: int, text: str) -> str:
    return "\n".join(" " * width + line for line in text.split("\n"))


def _required(message: str, value: Any = None) -> Any:
    if value is None or value == "":
        raise FunctionError(message)
    return value


def _fail(message: str) -> Any:
    raise FunctionError(message)


def _trunc(length: int, text: str) -> str:
    return text[:length] if length >= 0 else text[length:]


def _kind_is(kind: str, value: Any) -> bool:
    kinds = {bool: "bool", str: "string", int: "int", float: "float64", dict: "map", list: "slice"}
    return kinds.get(type(value), "invalid") == kind


def _all(*values: Any) -> Any:
    return next((each for each in values if not is_true(each)), values[-1])


def _any(*values: Any) -> Any:
    return next((each for each in values if is_true(each)), values[-1])


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    "add": lambda *values: sum(map(_integer, values)),
    "and": _all,
    "append": lambda values, value: [*values, value],
    "concat": lambda *lists: [each for values in lists for each in values],
    "contains": lambda part, text: part in text,
    "default": _default,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "eq": lambda value, *others: value in others,
    "fail": _fail,
    "ge": lambda left, right: left >= right,
    "gt": lambda left, right: left > right,
    "hasKey": lambda mapping, key: key in mapping,
    "indent": _indent,
    "index": _index,
    "int": _integer,
    "kindIs": _kind_is,
    "len": len,
    "list": lambda *values: list(values),
    "lookup": lambda *_what: {},
    "lt": lambda left, right: left < right,
    "max": lambda *values: max(map(_integer, values)),
    "min": lambda *values: min(map(_integer, values)),
    "mul": lambda *values: math.prod(map(_integer, values)),
    "ne": lambda left, right: left != right,
    "nindent": lambda width, text: "\n" + _indent(width, text),
    "not": lambda value: not is_true(value),
    "or": _any,
    "print": _print,
    "printf": _printf,
    "quote": _quote,
    "regexMatch": lambda pattern, text: re.search(pattern, text) is not None,
    "required": _required,
    "splitList": lambda separator, text: text.split(separator),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "sub": lambda left, right: _integer(left) - _integer(right),
    "ternary": lambda yes, no, condition: yes if condition else no,
    "toJson": _to_json,
    "toString": lambda value: "<nil>" if value is None else shown(value),
    "toYaml": _to_yaml,
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": _trunc,
    "until": lambda count: list(range(count)),
}
