"""A filter's tree as functions of a record.

Owns what fields, operators and null mean. Must not read text of filters. Invariants: a function
made here raises nothing but what the decoders raise that its user has given; for each record it
evaluates a part of the tree three times at most (a field before `in`), and its time for each is
proportional to the record's bytes at most; values of two kinds are never equal, and neither is
less.

The values are those of JSON: text, numbers, true and false, null, and lists and objects, which
can be looked into and have no other use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeAlias

from moldau.moments import parse_datetime
from moldau.record_filter.syntax import (
    MAX_NUMBER_CHARACTERS,
    TEXT_OPERATORS,
    Choices,
    Field,
    FilterError,
    Literal,
    Node,
    Operation,
    Scalar,
    parse,
)

if TYPE_CHECKING:
    from moldau.client import ConsumerRecord

Decode: TypeAlias = Callable[[bytes], object]
"""What the bytes of a key or value mean, in values of JSON."""
RecordFilter: TypeAlias = "Callable[[ConsumerRecord[bytes, bytes]], bool]"
"""Whether a record is wanted."""

ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
CALCULATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "%": operator.mod,
}
NUMBERS: Final = frozenset({int, float})
ORDERED: Final = frozenset({str, bytes, *NUMBERS})
SCALARS: Final = frozenset({bool, type(None), *ORDERED})
_UNREAD: Final = object()
NO_LITERAL: Final = object()


class _View:
    """A record, and what has been decoded of it."""

    __slots__ = ("key", "record", "value")

    def __init__(self, record: ConsumerRecord[bytes, bytes]) -> None:
        self.record = record
        self.key: Any = _UNREAD
        self.value: Any = _UNREAD


Run: TypeAlias = Callable[[_View], Any]


class _Kind(Enum):
    """What is known of a part's value before any record is seen."""

    CONDITION = "a condition"
    NUMBER = "a number"
    TEXT = "text"
    BYTES = "text, as it is"  # or a number beside a number: keys, values and headers
    NULL = "null"
    ANYTHING = "anything"
    NAMES = "a list of names"


class _Part(NamedTuple):
    """A part of the tree, ready to run; what comes as bytes also as such."""

    kind: _Kind
    run: Run
    raw: Run | None = None
    literal: Any = NO_LITERAL

    def in_bytes(self) -> _Part:
        """The same, where text is bytes."""
        assert self.raw is not None, "asked where both sides have it"
        is_text = isinstance(self.literal, str)
        return self._replace(run=self.raw, literal=self.literal.encode() if is_text else NO_LITERAL)


def compile_filter(
    text: str, *, decode_key: Decode | None = None, decode_value: Decode | None = None
) -> RecordFilter:
    """The function that a filter's text means.

    Args:
        text: anything.
        decode_key, decode_value: what keys and values mean where they are neither text nor JSON.
            What these raise, the filter raises.

    Raises: FilterError
    """
    run = _Compiler(text, decode_key, decode_value).condition(parse(text))

    def is_wanted(record: ConsumerRecord[bytes, bytes]) -> bool:
        found: bool = run(_View(record))
        return found

    return is_wanted


class _Compiler:
    """Makes the functions of one tree."""

    def __init__(self, text: str, decode_key: Decode | None, decode_value: Decode | None) -> None:
        self._text = text
        self._decoders = {"key": decode_key, "value": decode_value}

    def condition(self, node: Node) -> Run:
        """What is true or false, and nothing else. Raises: FilterError"""
        part = self._part(node)
        if part.kind is _Kind.CONDITION:
            return part.run
        if part.kind is not _Kind.ANYTHING:
            name = node.name if isinstance(node, Field) else "this"
            self._refuse(f"{name} is no condition: compare it, as in {name} != null", node)
        run = part.run
        return lambda view: run(view) is True

    def _part(self, node: Node) -> _Part:
        match node:
            case Literal(value):
                return _literal(value)
            case Field():
                return self._field(node)
            case Operation("not", (operand,)):
                return _Part(_Kind.CONDITION, _opposite(self.condition(operand)))
            case Operation("and" | "or" as sign, operands):
                runs = [self.condition(each) for each in operands]
                return _Part(_Kind.CONDITION, _every(runs) if sign == "and" else _some(runs))
            case Operation("in", (left, Choices(values))):
                return _Part(_Kind.CONDITION, self._choice(node, self._part(left), values))
            case Operation("negative", (operand,)):
                zero = _literal(0).run
                return _Part(_Kind.NUMBER, _calculated(operator.sub, zero, self._number(operand)))
            case Operation(sign, (left, right)) if sign in CALCULATIONS:
                numbers = self._number(left), self._number(right)
                return _Part(_Kind.NUMBER, _calculated(CALCULATIONS[sign], *numbers))
            case Operation(sign, (left, right)):
                parts = self._beside(left, right), self._beside(right, left)
                return _Part(_Kind.CONDITION, self._comparison(node, sign, *parts))
        raise AssertionError(f"the parser makes no {node}")

    def _refuse(self, message: str, node: Node) -> NoReturn:
        raise FilterError(message, self._text, node.position)

    def _field(self, node: Field) -> _Part:
        name, path = node.name, node.path
        if name == "headers":
            return _headers(path)
        if name == "timestamp":
            return _Part(_Kind.NUMBER, _timestamp)
        if name in ("partition", "offset"):
            return _Part(_Kind.NUMBER, operator.attrgetter(f"record.{name}"))
        if name == "topic":
            return _Part(_Kind.TEXT, operator.attrgetter("record.topic"))
        decode = self._decoders[name]
        if path or decode is not None:
            document = _key_document if name == "key" else _value_document
            return _Part(_Kind.ANYTHING, _walk(document(decode or _of_json()), path))
        raw = operator.attrgetter(f"record.{name}")
        return _Part(_Kind.BYTES, _as_text(raw), raw)

    def _number(self, node: Node) -> Run:
        part = self._part(node)
        if part.kind not in (_Kind.NUMBER, _Kind.BYTES, _Kind.ANYTHING):
            self._refuse("this is nothing to calculate with; numbers stand without quotes", node)
        return _as_number(part)

    def _beside(self, node: Node, other: Node) -> _Part:
        """A side of a comparison: text beside a timestamp is a moment."""
        part = self._part(node)
        is_moment = isinstance(other, Field) and other.name == "timestamp"
        if not is_moment or not isinstance(part.literal, str):
            return part
        try:
            return _literal(parse_datetime(part.literal))
        except (ValueError, OverflowError):
            self._refuse(
                'beside timestamp stands "2026-07-01", "2026-07-01T12:00:00Z" or ms of 1970', node
            )

    def _comparison(self, node: Node, sign: str, left: _Part, right: _Part) -> Run:
        if sign == "in":
            return self._search(node, "contains", right, left)
        if sign in TEXT_OPERATORS:
            return self._search(node, sign, left, right)
        kinds = {left.kind, right.kind}
        if _Kind.NAMES in kinds:
            self._refuse('headers are many: write headers["x"], or "x" in headers', node)
        if kinds == {_Kind.NUMBER, _Kind.TEXT}:
            self._refuse("a number and text are never alike; numbers stand without quotes", node)
        if sign in ORDERS and kinds & {_Kind.NULL, _Kind.CONDITION}:
            self._refuse(f"{sign} is for numbers and for text", node)
        if _Kind.NUMBER in kinds:
            left, right = left._replace(run=_as_number(left)), right._replace(run=_as_number(right))
        elif left.raw is not None and right.raw is not None:
            left, right = left.in_bytes(), right.in_bytes()
        if sign in ORDERS:
            return _ordered(ORDERS[sign], left.run, right.run)
        same = _equal(left, right)
        return same if sign == "==" else _opposite(same)

    def _search(self, node: Node, sign: str, whole: _Part, part: _Part) -> Run:
        in_text = whole.kind in (_Kind.TEXT, _Kind.BYTES)
        if whole.kind not in (_Kind.TEXT, _Kind.BYTES, _Kind.ANYTHING, _Kind.NAMES):
            self._refuse(f"{whole.kind.value} has nothing in it to look for", node)
        if in_text and part.kind not in (_Kind.TEXT, _Kind.BYTES, _Kind.ANYTHING):
            self._refuse(f"text has text in it, not {part.kind.value}", node)
        if sign != "contains" and whole.kind is _Kind.NAMES:
            self._refuse(f"{sign} is for text", node)
        if whole.raw is not None and part.raw is not None:
            whole, part = whole.in_bytes(), part.in_bytes()
        if sign == "contains":
            return _containing(whole.run, part.run)
        return _beginning(sign, whole.run, part.run)

    def _choice(self, node: Node, part: _Part, values: Sequence[Scalar]) -> Run:
        has_text = any(isinstance(each, str) for each in values)
        if part.kind is _Kind.NAMES:
            self._refuse('headers are many: write headers["x"] in […]', node)
        if part.kind is _Kind.NUMBER and has_text:
            self._refuse("a number and text are never alike; numbers stand without quotes", node)
        if part.raw is None:
            return _one_of(part.run, values)
        texts = [each for each in values if isinstance(each, str)]
        others = [each for each in values if not isinstance(each, str)]
        ways = [_one_of(part.raw, [each.encode() for each in texts])] if texts else []
        if others:
            ways.append(_one_of(_as_number(part), [each for each in others if each is not None]))
        if None in others:
            ways.append(_equal(part, _literal(None)))
        return _some(ways)


# -- fields ----------------------------------------------------------------------------------------


def _literal(value: Scalar) -> _Part:
    if isinstance(value, str):
        data = value.encode()
        return _Part(_Kind.TEXT, lambda view: value, lambda view: data, value)
    kind = _Kind.NUMBER
    if value is None or isinstance(value, bool):
        kind = _Kind.NULL if value is None else _Kind.CONDITION
    return _Part(kind, lambda view: value, literal=value)


def _timestamp(view: _View) -> int | None:
    timestamp_ms = view.record.timestamp_ms
    return timestamp_ms if timestamp_ms >= 0 else None


def _headers(path: tuple[str | int, ...]) -> _Part:
    if not path:
        return _Part(_Kind.NAMES, lambda view: [name for name, _ in view.record.headers])
    wanted, *others = path

    def raw(view: _View) -> bytes | None:
        """The last one of that name, as Kafka's clients take it."""
        found = None
        for name, data in view.record.headers:
            if name == wanted:
                found = data
        return found

    if not others:
        return _Part(_Kind.BYTES, _as_text(raw), raw)
    decode = _of_json()

    def document(view: _View) -> Any:
        data = raw(view)
        return None if data is None else decode(data)

    return _Part(_Kind.ANYTHING, _walk(document, tuple(others)))


def _of_json() -> Decode:
    import orjson

    def decode(data: bytes) -> object:
        try:
            found: object = orjson.loads(data)
        except ValueError:
            return None
        return found

    return decode


def _key_document(decode: Decode) -> Run:
    def run(view: _View) -> Any:
        if view.key is _UNREAD:
            data = view.record.key
            view.key = None if data is None else decode(data)
        return view.key

    return run


def _value_document(decode: Decode) -> Run:
    def run(view: _View) -> Any:
        if view.value is _UNREAD:
            data = view.record.value
            view.value = None if data is None else decode(data)
        return view.value

    return run


def _walk(document: Run, path: tuple[str | int, ...]) -> Run:
    """What the path leads to; null where it leads nowhere."""
    if not path:
        return document

    def run(view: _View) -> Any:
        found = document(view)
        for part in path:
            kind = type(found)
            if kind is dict:
                found = found.get(part)
            elif kind is list and type(part) is int and -len(found) <= part < len(found):
                found = found[part]
            else:
                return None
        return found

    return run


def _as_text(raw: Run) -> Run:
    def run(view: _View) -> str | None:
        data: bytes | None = raw(view)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    return run


def _as_number(part: _Part) -> Run:
    """Text as the number that it spells, if it does; anything else as it is."""
    raw = part.raw
    if raw is None:
        return part.run
    decode = _of_json()

    def run(view: _View) -> object:
        data: bytes | None = raw(view)
        if data is None or len(data) > MAX_NUMBER_CHARACTERS:
            return None
        found = decode(data)
        return found if type(found) in NUMBERS else None

    return run


# -- operators -------------------------------------------------------------------------------------


def _opposite(run: Run) -> Run:
    return lambda view: not run(view)


def _every(runs: Sequence[Run]) -> Run:
    def run(view: _View) -> bool:
        for each in runs:  # noqa: SIM110 - without a generator for each record
            if not each(view):
                return False
        return True

    return run


def _some(runs: Sequence[Run]) -> Run:
    def run(view: _View) -> bool:
        for each in runs:  # noqa: SIM110
            if each(view):
                return True
        return False

    return run


def _calculated(calculate: Callable[[Any, Any], Any], left: Run, right: Run) -> Run:
    def run(view: _View) -> int | float | None:
        one, other = left(view), right(view)
        if type(one) not in NUMBERS or type(other) not in NUMBERS:
            return None
        try:
            found: int | float = calculate(one, other)
        except ArithmeticError:
            return None
        return found

    return run


def _is_same(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is type(other):
        return kind in SCALARS and bool(one == other)
    return kind in NUMBERS and type(other) in NUMBERS and bool(one == other)


def _equal(left: _Part, right: _Part) -> Run:
    if left.literal is not NO_LITERAL:
        left, right = right, left
    run, other, literal = left.run, right.run, right.literal
    if literal is None or isinstance(literal, bool):
        return lambda view: run(view) is literal
    if isinstance(literal, str | bytes):
        return lambda view: bool(run(view) == literal)
    return lambda view: _is_same(run(view), other(view))


def _ordered(order: Callable[[Any, Any], bool], left: Run, right: Run) -> Run:
    def run(view: _View) -> bool:
        one, other = left(view), right(view)
        kind, other_kind = type(one), type(other)
        if kind is other_kind:
            return kind in ORDERED and order(one, other)
        return kind in NUMBERS and other_kind in NUMBERS and order(one, other)

    return run


def _containing(whole: Run, part: Run) -> Run:
    def run(view: _View) -> bool:
        found, wanted = whole(view), part(view)
        kind = type(found)
        if kind is list:
            return any(_is_same(each, wanted) for each in found)
        if kind is dict:
            kind = str
        return kind in (str, bytes) and type(wanted) is kind and wanted in found

    return run


def _beginning(sign: str, whole: Run, part: Run) -> Run:
    def run(view: _View) -> bool:
        found, wanted = whole(view), part(view)
        kind = type(found)
        if kind not in (str, bytes) or type(wanted) is not kind:
            return False
        return bool(found.startswith(wanted) if sign == "startswith" else found.endswith(wanted))

    return run


def _one_of(part: Run, values: Sequence[Scalar | bytes]) -> Run:
    wanted = frozenset((type(each) is bool, each) for each in values)

    def run(view: _View) -> bool:
        found = part(view)
        kind = type(found)
        return kind in SCALARS and (kind is bool, found) in wanted

    return run
