"""Avro's binary form from and to its JSON form, as the specification of Avro 1.12 has both.

Owns this one translation: `fastavro` has values in between, which do not tell of which type of a
union a value is. Must not resolve schemas. Invariant: what `decode_json` makes of data,
`encode_json` makes the same data of. Logical types are those beneath: a timestamp is a number, a
decimal its bytes. What a user writes may leave out the types of unions and fields with defaults.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from moldau.schema_registry.framing import read_zigzag_varint, zigzag_varint

Parsed = Any
"""A schema as `fastavro.parse_schema` gives it: names in it are full."""

MAX_ELEMENTS: Final = 10_000_000
"""Elements without any size, such as nulls, could make a few bytes very many values."""
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_BITS: Final = {"int": 31, "long": 63}
_SPECIAL: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


class Misfit(ValueError):
    """A value or data do not fit the schema; says where."""


def encode_json(schema: Parsed, named: Mapping[str, Parsed], value: object) -> bytes:
    """The data of a value in JSON. Raises: Misfit"""
    out = bytearray()
    _Writer(named, out).write(schema, value, "$")
    return bytes(out)


def decode_json(schema: Parsed, named: Mapping[str, Parsed], data: bytes) -> object:
    """The value of data, in JSON. Raises: Misfit"""
    reader = _Reader(named, data)
    value = reader.read(schema)
    if reader.at != len(data):
        raise Misfit(f"{len(data) - reader.at} bytes are left behind the value")
    return value


def _kind(schema: Parsed) -> str:
    return str(schema if isinstance(schema, str) else schema["type"])


def _branch_name(schema: Parsed) -> str:
    """What a union's value is marked with in JSON."""
    named = isinstance(schema, dict) and "name" in schema
    return str(schema["name"]) if named else _kind(schema)


class _Writer:
    def __init__(self, named: Mapping[str, Parsed], out: bytearray) -> None:
        self._named = named
        self._out = out
        self._by_kind: dict[str, Callable[[Parsed, Any, str], None]] = {
            **dict.fromkeys(("record", "error"), self._record),
            **dict.fromkeys(("int", "long"), self._integer),
            **dict.fromkeys(("float", "double"), self._number),
            **dict.fromkeys(("bytes", "fixed"), self._bytes),
            "array": self._array,
            "map": self._map,
            "enum": self._enum,
            "string": self._string,
            "boolean": self._boolean,
            "null": self._null,
        }

    def write(self, schema: Parsed, value: object, path: str) -> None:
        schema = _found(schema, self._named)
        if isinstance(schema, list):
            self._union(schema, value, path)
        else:
            self._by_kind[_kind(schema)](schema, value, path)

    def _union(self, branches: list[Parsed], value: object, path: str) -> None:
        names = [_branch_name(_found(each, self._named)) for each in branches]
        if isinstance(value, dict) and len(value) == 1 and (name := next(iter(value))) in names:
            index = names.index(name)
            self._out += zigzag_varint(index)
            self.write(branches[index], value[name], f"{path}.{name}")
            return
        begin = len(self._out)
        problems: dict[str, str] = {}
        for index, branch in enumerate(branches):
            self._out += zigzag_varint(index)
            try:
                self.write(branch, value, path)
            except Misfit as problem:
                problems[names[index]] = str(problem)
                del self._out[begin:]
            else:
                return
        problems.pop("null", None)
        if len(problems) == 1:
            [words] = problems.values()
            raise Misfit(words)
        raise Misfit(_none(path, value, f"of the types {', '.join(names)}"))

    def _record(self, schema: Parsed, value: Any, path: str) -> None:
        _need(isinstance(value, dict), path, value, f"an object, for {schema['name']}")
        names = [field["name"] for field in schema["fields"]]
        for name in value:
            if name not in names:
                raise Misfit(f"{path}: no field {name!r}; there are {', '.join(names)}")
        for field in schema["fields"]:
            name = field["name"]
            if name in value:
                self.write(field["type"], value[name], f"{path}.{name}")
            elif "default" in field:
                self._default(field["type"], field["default"], f"{path}.{name}")
            else:
                raise Misfit(f"{path}: the field {name!r} is missing")

    def _default(self, schema: Parsed, value: object, path: str) -> None:
        """A union's default is of its first type, and not marked."""
        schema = _found(schema, self._named)
        if isinstance(schema, list):
            value = {_branch_name(_found(schema[0], self._named)): value}
        self.write(schema, value, path)

    def _array(self, schema: Parsed, value: Any, path: str) -> None:
        _need(isinstance(value, list), path, value, "an array")
        if value:
            self._out += zigzag_varint(len(value))
        for index, each in enumerate(value):
            self.write(schema["items"], each, f"{path}[{index}]")
        self._out += b"\0"

    def _map(self, schema: Parsed, value: Any, path: str) -> None:
        _need(isinstance(value, dict), path, value, "an object")
        if value:
            self._out += zigzag_varint(len(value))
        for name, each in value.items():
            self._string("string", name, path)
            self.write(schema["values"], each, f"{path}.{name}")
        self._out += b"\0"

    def _enum(self, schema: Parsed, value: Any, path: str) -> None:
        symbols = schema["symbols"]
        _need(value in symbols, path, value, f"one of {', '.join(symbols)}")
        self._out += zigzag_varint(symbols.index(value))

    def _integer(self, schema: Parsed, value: Any, path: str) -> None:
        kind = _kind(schema)
        limit = 1 << _BITS[kind]
        fits = isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
        _need(fits, path, value, f"{kind}: a whole number of {_BITS[kind] + 1} bits")
        self._out += zigzag_varint(value)

    def _number(self, schema: Parsed, value: Any, path: str) -> None:
        kind = _kind(schema)
        value = _SPECIAL.get(value, value) if isinstance(value, str) else value
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        _need(fits, path, value, f"{kind}: a number")
        try:
            self._out += (_FLOAT if kind == "float" else _DOUBLE).pack(value)
        except (OverflowError, struct.error):
            raise Misfit(_none(path, value, f"in the range of {kind}")) from None

    def _bytes(self, schema: Parsed, value: Any, path: str) -> None:
        _need(isinstance(value, str), path, value, "bytes: a string with a character for each")
        try:
            data = value.encode("latin-1")
        except UnicodeEncodeError as error:
            raise Misfit(
                f"{path}: bytes are characters up to \\u00ff, not {value[error.start]!r}"
            ) from None
        if _kind(schema) == "fixed":
            _need(len(data) == schema["size"], path, value, f"{schema['size']} bytes")
        else:
            self._out += zigzag_varint(len(data))
        self._out += data

    def _string(self, schema: Parsed, value: Any, path: str) -> None:
        _need(isinstance(value, str), path, value, "a string")
        data = value.encode("utf-8", "surrogatepass")
        self._out += zigzag_varint(len(data)) + data

    def _boolean(self, schema: Parsed, value: Any, path: str) -> None:
        _need(isinstance(value, bool), path, value, "true or false")
        self._out.append(value)

    def _null(self, schema: Parsed, value: Any, path: str) -> None:
        _need(value is None, path, value, "null")


class _Reader:
    def __init__(self, named: Mapping[str, Parsed], data: bytes) -> None:
        self._named = named
        self._data = data
        self.at = 0
        self._left = MAX_ELEMENTS

    def read(self, schema: Parsed) -> Any:
        schema = _found(schema, self._named)
        if isinstance(schema, list):
            branch = _found(self._nth(schema, "union"), self._named)
            value = self.read(branch)
            return None if _kind(branch) == "null" else {_branch_name(branch): value}
        kind = _kind(schema)
        if kind in ("record", "error"):
            return {field["name"]: self.read(field["type"]) for field in schema["fields"]}
        if kind == "array":
            return [self.read(schema["items"]) for _ in self._blocks()]
        if kind == "map":
            return {self._text(): self.read(schema["values"]) for _ in self._blocks()}
        if kind == "enum":
            return self._nth(schema["symbols"], "enum")
        return self._primitive(schema, kind)

    def _primitive(self, schema: Parsed, kind: str) -> object:
        if kind in _BITS:
            return self._number()
        if kind == "string":
            return self._text()
        if kind == "bytes":
            return self._take(self._number()).decode("latin-1")
        if kind == "fixed":
            return self._take(schema["size"]).decode("latin-1")
        if kind in ("float", "double"):
            form = _FLOAT if kind == "float" else _DOUBLE
            number = form.unpack(self._take(form.size))[0]
            special = [text for text, each in _SPECIAL.items() if repr(each) == repr(number)]
            return special[0] if special else number
        return None if kind == "null" else self._take(1) != b"\0"

    def _blocks(self) -> Any:
        while count := self._number():
            if count < 0:
                count = -count
                self._number()  # the block's size in bytes
            self._left -= count
            if self._left < 0:
                raise Misfit(f"over {MAX_ELEMENTS} elements")
            yield from range(count)

    def _nth(self, choices: list[Any], what: str) -> Any:
        index = self._number()
        if not 0 <= index < len(choices):
            raise Misfit(f"{what} has no {index}. of {len(choices)} at byte {self.at}")
        return choices[index]

    def _text(self) -> str:
        try:
            return self._take(self._number()).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            raise Misfit(f"no UTF-8 before byte {self.at}") from None

    def _number(self) -> int:
        number, self.at = read_zigzag_varint(self._data, self.at)
        return number

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise Misfit(f"{size} bytes at byte {self.at}, of {len(self._data)}")
        taken = self._data[self.at : self.at + size]
        self.at += size
        return taken


def _found(schema: Parsed, named: Mapping[str, Parsed]) -> Parsed:
    """The schema itself, where a name stands for it or it is wrapped once more."""
    while True:
        if isinstance(schema, str):
            if schema not in named:
                return schema
            schema = named[schema]
        elif isinstance(schema, dict) and not isinstance(schema["type"], str):
            schema = schema["type"]
        elif isinstance(schema, dict) and schema["type"] in named:
            schema = named[schema["type"]]
        else:
            return schema


def _need(fits: bool, path: str, value: object, wanted: str) -> None:
    if not fits:
        raise Misfit(_none(path, value, wanted))


def _none(path: str, value: object, wanted: str) -> str:
    shown = repr(value)
    return f"{path}: {shown if len(shown) < 100 else shown[:100] + '…'} is not {wanted}"
