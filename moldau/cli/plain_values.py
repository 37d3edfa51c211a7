"""The values of options and arguments, made of a command line's words without pydantic.

Newer releases of typer have pydantic make them, and importing pydantic takes longer than most
commands do. Owns the conversion to the types that commands declare; leaves any other type to typer,
and everything to a release of typer that has no such step.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Final, get_args, get_origin

import typer
import typer.core

if TYPE_CHECKING:
    from typer._click.core import Context
    from typer._coercion import TypeDescriptor
    from typer.core import _TyperParameter as Parameter
    from typer.models import ParameterInfo

Convert = Callable[[str], object]
NUMBERS: Final = {int: "a whole number", float: "a number"}


class PlainValue:
    """What typer asks for a parameter's value."""

    def __init__(self, convert: Convert) -> None:
        self._convert = convert

    def coerce(self, value: object, param: Parameter, ctx: Context) -> object:
        """The value of a word, or of several. Raises: typer.BadParameter"""
        if param.multiple or param.nargs == -1:
            words = value if isinstance(value, (list, tuple)) else ()
            return [self._one(word, param, ctx) for word in words]
        return self._one(value, param, ctx)

    def _one(self, value: object, param: Parameter, ctx: Context) -> object:
        if not isinstance(value, str) or isinstance(value, Enum):
            return value  # a default
        try:
            return self._convert(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None


def use_plain_values() -> None:
    """Have typer take values from here, for the types that are known here."""
    by_typer = getattr(typer.core, "build_runtime_param", None)
    if by_typer is not None:
        vars(typer.core)["build_runtime_param"] = partial(_value_of, by_typer)


def _value_of(by_typer: Callable[[TypeDescriptor], object], described: TypeDescriptor) -> object:
    convert = _converter(described.annotation, described.parameter_info)
    return by_typer(described) if convert is None else PlainValue(convert)


def _converter(kind: type, info: ParameterInfo) -> Convert | None:
    if get_origin(kind) is list:
        return _converter(get_args(kind)[0], info)
    if kind in (str, Path) or (kind is bool and not info.envvar):  # a flag's value is no word
        return kind
    if kind in NUMBERS:
        return partial(_number, kind, info.min, info.max)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_choice, kind)
    return None


def _number(
    kind: type[int | float], lowest: float | None, highest: float | None, word: str
) -> object:
    try:
        number = kind(word)
        if kind is float and not isfinite(number):
            raise ValueError
    except ValueError:
        raise ValueError(f"{word!r} is not {NUMBERS[kind]}") from None
    if (lowest is not None and number < lowest) or (highest is not None and number > highest):
        bounds = [f"at least {lowest:,}"] if lowest is not None else []
        bounds += [f"at most {highest:,}"] if highest is not None else []
        raise ValueError(f"{word} is not {' and '.join(bounds)}")
    return number


def _choice(kind: type[Enum], word: str) -> Enum:
    try:
        return kind(word)
    except ValueError:
        allowed = ", ".join(str(each.value) for each in kind)
        raise ValueError(f"{word!r} is none of {allowed}") from None
