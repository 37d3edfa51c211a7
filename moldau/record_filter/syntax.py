"""The text of a filter, and the tree that it means.

    condition   = conjunction { ("or" | "||") conjunction }
    conjunction = negation { ("and" | "&&") negation }
    negation    = ("not" | "!") negation | comparison
    comparison  = sum [ operator sum | ["not"] "in" (list | sum) ]
    operator    = "==" | "=" | "!=" | "<" | "<=" | ">" | ">="
                | ["not"] ("contains" | "startswith" | "endswith")
    sum         = product { ("+" | "-") product }
    product     = negative { ("*" | "/" | "%") negative }
    negative    = "-" negative | literal | field | "(" condition ")"
    field       = name { "." name | "[" (text | ["-"] whole number) "]" }
    list        = "[" literal { "," literal } "]", or the same in parentheses

Owns the limits, and what a wrong text is answered with. Must not know records. Invariant: whatever
the text is, the outcome is a tree within the limits or one `FilterError`, after time that is
proportional to the text's length.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, NoReturn, TypeAlias, TypeGuard
from unicodedata import east_asian_width

from moldau.text import did_you_mean, one_line, short_name

MAX_CHARACTERS: Final = 4_096
"""The length of a filter's text."""
MAX_STEPS: Final = 512
"""How many fields, parts of paths, literals and operators a filter has: for each record, each is
evaluated at most once.
"""
MAX_DEPTH: Final = 24
"""How deep operators and parentheses nest."""
MAX_NUMBER_CHARACTERS: Final = 40

FIELDS: Final = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
#: Those whose bytes may be JSON, so that a path goes on from them.
DOCUMENTS: Final = ("key", "value", "headers")
LITERALS: Final[dict[str, Scalar]] = {"null": None, "true": True, "false": False}
TEXT_OPERATORS: Final = ("contains", "startswith", "endswith")
NEGATABLE: Final = ("in", *TEXT_OPERATORS)
WORDS: Final = frozenset({"and", "or", "not", *NEGATABLE, *LITERALS})
#: By sign or word, the operator that a comparison has in the tree.
COMPARISONS: Final = {
    **{sign: sign for sign in ("==", "!=", "<", "<=", ">", ">=", *NEGATABLE)},
    **{"=": "==", "<>": "!="},
}
#: What other languages have in that place, and what to write here.
HABITS: Final = {
    "is": "write == null or != null",
    "like": "patterns do not exist: write contains, startswith or endswith",
    "matches": "patterns do not exist: write contains, startswith or endswith",
    "~": "patterns do not exist: write contains, startswith or endswith",
    "between": "write x >= 1 and x <= 2",
    "===": "write ==",
}
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}
SHOWN_COLUMNS: Final = 76
"""The width of a text, and of the line with a caret below it."""

Scalar: TypeAlias = "str | int | float | bool | None"

_TOKEN: Final = re.compile(
    r"""(?P<space>\s++)
    | (?P<number>(?:[0-9]++(?:\.[0-9]++)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+)
    | (?P<word>[^\W\d]\w*+)
    | (?P<text>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')
    | (?P<sign>===|==|!=|<=|>=|<>|&&|\|\||[-+*/%<>=!()\[\],.~])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)


class FilterError(ValueError):
    """A filter that cannot be used.

    Attributes:
        message: what is wrong with it, and what is allowed.
        text: the whole filter.
        position: of the character where it is wrong; the text's length for its end.
    """

    def __init__(self, message: str, text: str, position: int) -> None:
        super().__init__(f"{message} (at character {position + 1})")
        self.message = message
        self.text = text
        self.position = position

    def marked(self, width: int = SHOWN_COLUMNS) -> tuple[str, str]:
        """The text, or the part of it that fits, and below it a line with a caret."""
        before = one_line(self.text[max(0, self.position - MAX_CHARACTERS) : self.position])
        rest = one_line(self.text[self.position : self.position + width])
        cut = _fitting(before[::-1], width * 2 // 3)[::-1]
        if len(cut) < len(before):
            cut = f"…{cut}"
        return _fitting(cut + rest, width), f"{' ' * sum(map(_columns_of, cut))}^"


def _fitting(text: str, width: int) -> str:
    """As much of its begin as so many columns of a terminal hold."""
    taken = 0
    for index, character in enumerate(text):
        taken += _columns_of(character)
        if taken > width:
            return text[:index]
    return text


def _columns_of(character: str) -> int:
    return 2 if east_asian_width(character) in "WF" else 1


@dataclass(frozen=True, slots=True)
class Literal:
    """A value that stands in the text."""

    value: Scalar
    position: int


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the record, or what a path leads to from there. A header's name is the first part
    of the path from `headers`.
    """

    name: str
    path: tuple[str | int, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Choices:
    """The literals behind `in`."""

    values: tuple[Scalar, ...]
    position: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator with what it is about: two operands, one for `not` and `negative`, two or more
    for `and` and `or`.
    """

    operator: str
    operands: tuple[Node, ...]
    position: int
    depth: int


Node: TypeAlias = Literal | Field | Choices | Operation


def _is_number(value: Scalar) -> TypeGuard[int | float]:
    return type(value) in (int, float)


class _Token(NamedTuple):
    """A piece of the text; the last one is empty."""

    kind: str
    text: str
    position: int


def parse(text: str) -> Node:
    """The tree of a filter. Raises: FilterError"""
    if len(text) > MAX_CHARACTERS:
        raise FilterError(
            f"{len(text):,} characters; a filter has at most {MAX_CHARACTERS:,}",
            text,
            MAX_CHARACTERS,
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError("this is no character", text, error.start) from None
    return _Parser(text).whole()


class _Parser:
    """Takes the tokens one after the other."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._tokens_of(text)
        self._index = 0
        self._depth = 0
        self._step_count = 0

    def whole(self) -> Node:
        if self._next.kind == "end":
            self._refuse("a condition is missing, such as value.id == 7", self._next.position)
        tree = self._condition()
        if self._next.kind != "end":
            self._refuse_here("and, or, or the end")
        return tree

    # -- tokens ----------------------------------------------------------------------------------

    def _tokens_of(self, text: str) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                if text[at] in "\"'":
                    self._refuse("the quote is not closed", at)
                self._refuse(f"{text[at]!r} means nothing here: text stands in quotes", at)
            kind, piece = found.lastgroup or "", found[0]
            at = found.end()
            if kind == "number" and (text[at : at + 1].isalnum() or text[at : at + 1] == "_"):
                self._refuse("a number ends here: text stands in quotes", at)
            is_name = bool(tokens) and tokens[-1].text == "."
            if kind == "word" and piece.lower() in WORDS and not is_name:
                kind, piece = "sign", piece.lower()
            if kind != "space":
                tokens.append(_Token(kind, piece, found.start()))
        return [*tokens, _Token("end", "", len(text))]

    @property
    def _next(self) -> _Token:
        return self._tokens[self._index]

    def _taken(self) -> _Token:
        token = self._next
        self._index += 1
        return token

    def _accept(self, *signs: str) -> _Token | None:
        token = self._next
        return self._taken() if token.kind == "sign" and token.text in signs else None

    def _expect(self, sign: str, opened: _Token) -> None:
        if self._accept(sign) is None:
            self._refuse_here(f"{sign!r} (for character {opened.position + 1})")

    def _refuse(self, message: str, position: int) -> NoReturn:
        raise FilterError(message, self._text, position)

    def _refuse_here(self, expected: str) -> NoReturn:
        token = self._next
        given = "the end" if token.kind == "end" else short_name(token.text)
        hint = HABITS.get(token.text.lower(), "")
        self._refuse(f"expected {expected}, not {given}{hint and f'; {hint}'}", token.position)

    # -- limits ----------------------------------------------------------------------------------

    def _counted(self, node: Node, step_count: int = 1) -> Node:
        self._step_count += step_count
        if self._step_count > MAX_STEPS:
            self._refuse(f"too much: a filter has at most {MAX_STEPS} steps", node.position)
        return node

    def _operation(self, operator: str, operands: tuple[Node, ...], token: _Token) -> Node:
        depths = [each.depth for each in operands if isinstance(each, Operation)]
        depth = 1 + max(depths, default=0)
        if depth > MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep", token.position)
        return self._counted(Operation(operator, operands, token.position, depth))

    def _deeper(self, part: Callable[[], Node], token: _Token) -> Node:
        if self._depth == MAX_DEPTH:
            self._refuse(f"nested more than {MAX_DEPTH} deep", token.position)
        self._depth += 1
        node = part()
        self._depth -= 1
        return node

    # -- the grammar -----------------------------------------------------------------------------

    def _condition(self) -> Node:
        return self._joined("or", ("or", "||"), self._conjunction)

    def _conjunction(self) -> Node:
        return self._joined("and", ("and", "&&"), self._negation)

    def _joined(self, operator: str, signs: tuple[str, ...], part: Callable[[], Node]) -> Node:
        operands, first = [part()], self._next
        while self._accept(*signs):
            operands.append(part())
        if len(operands) == 1:
            return operands[0]
        return self._operation(operator, tuple(operands), first)

    def _negation(self) -> Node:
        if (token := self._accept("not", "!")) is None:
            return self._comparison()
        operand = self._deeper(self._negation, token)
        return self._operation("not", (operand,), token)

    def _comparison(self) -> Node:
        left = self._sum()
        token = self._next
        is_negated = self._accept("not") is not None
        sign = self._accept(*(NEGATABLE if is_negated else COMPARISONS))
        if sign is None:
            if is_negated:
                self._refuse_here(", ".join(NEGATABLE))
            return left
        operator = COMPARISONS[sign.text]
        right = self._choices() if operator == "in" else None
        node = self._operation(operator, (left, right or self._sum()), token)
        if self._accept(*COMPARISONS):
            self._refuse(
                "comparisons do not follow one another: write a < b and b < c",
                self._tokens[self._index - 1].position,
            )
        return self._operation("not", (node,), token) if is_negated else node

    def _choices(self) -> Node | None:
        """The list behind `in`; None for anything else."""
        opened = self._next
        is_list = opened.text == "[" or (opened.text == "(" and self._is_list_in_parentheses())
        if opened.kind != "sign" or not is_list:
            return None
        self._taken()
        values = [self._choice()]
        while self._accept(","):
            values.append(self._choice())
        self._expect("]" if opened.text == "[" else ")", opened)
        return self._counted(Choices(tuple(values), opened.position))

    def _is_list_in_parentheses(self) -> bool:
        after = self._tokens[self._index + 1]
        if after.text == "-":
            after = self._tokens[self._index + 2]
        return after.kind in ("text", "number") or after.text in LITERALS

    def _choice(self) -> Scalar:
        minus = self._accept("-")
        token = self._next
        if token.kind == "number":
            number = self._number(self._taken())
            return -number if minus else number
        if minus is None and token.kind == "text":
            return self._unquoted(self._taken())
        if minus is None and token.kind == "sign" and token.text in LITERALS:
            return LITERALS[self._taken().text]
        self._refuse_here("a number, or text in quotes")

    def _sum(self) -> Node:
        return self._calculation(("+", "-"), self._product)

    def _product(self) -> Node:
        return self._calculation(("*", "/", "%"), self._negative)

    def _calculation(self, signs: tuple[str, ...], part: Callable[[], Node]) -> Node:
        node = part()
        while (token := self._accept(*signs)) is not None:
            node = self._operation(token.text, (node, part()), token)
        return node

    def _negative(self) -> Node:
        if (token := self._accept("-")) is None:
            return self._primary()
        operand = self._deeper(self._negative, token)
        if isinstance(operand, Literal) and _is_number(operand.value):
            return Literal(-operand.value, token.position)
        return self._operation("negative", (operand,), token)

    def _primary(self) -> Node:
        token = self._next
        if token.kind == "word":
            return self._field(self._taken())
        if token.kind == "number":
            return self._counted(Literal(self._number(self._taken()), token.position))
        if token.kind == "text":
            return self._counted(Literal(self._unquoted(self._taken()), token.position))
        if token.kind == "sign" and token.text in LITERALS:
            return self._counted(Literal(LITERALS[self._taken().text], token.position))
        if opened := self._accept("("):
            node = self._deeper(self._condition, opened)
            self._expect(")", opened)
            return node
        if token.text == "[":
            self._refuse("a list stands behind in, as in partition in [0, 1]", token.position)
        self._refuse_here("a field, a number, or text in quotes")

    def _field(self, token: _Token) -> Node:
        if token.text not in FIELDS:
            known = ", ".join(FIELDS)
            hint = did_you_mean(token.text, FIELDS, f"; there are {known}; text stands in quotes")
            before = self._tokens[max(0, self._index - 3) : self._index - 1]
            if [each.kind for each in before] == ["word", "sign"] and before[1].text == "-":
                joined = f"{before[0].text}-{token.text}"
                hint = f'; a name with other characters stands in brackets: value["{joined}"]'
            self._refuse(f"there is no field {short_name(token.text)}{hint}", token.position)
        path: list[str | int] = []
        while (sign := self._accept(".", "[")) is not None:
            if token.text not in DOCUMENTS:
                self._refuse(f"{token.text} has no parts", sign.position)
            path.append(self._name() if sign.text == "." else self._index_in(sign))
        if self._next.text == "(" and self._next.kind == "sign":
            operators = ", ".join(TEXT_OPERATORS)
            self._refuse(
                f'nothing can be called; {operators} stand between: value contains "x"',
                self._next.position,
            )
        if token.text == "headers" and path and not isinstance(path[0], str):
            self._refuse('a header has a name: headers["x"]', token.position)
        return self._counted(Field(token.text, tuple(path), token.position), 1 + len(path))

    def _name(self) -> str:
        if self._next.kind not in ("word", "sign") or not self._next.text.isidentifier():
            self._refuse_here('a name; others stand in ["…"]')
        return self._taken().text

    def _index_in(self, opened: _Token) -> str | int:
        minus = self._accept("-")
        token = self._next
        if token.kind == "number" and token.text.isdigit():
            number = int(self._number(self._taken()))
            part: str | int = -number if minus else number
        elif token.kind == "text" and minus is None:
            part = self._unquoted(self._taken())
        else:
            self._refuse_here("a name in quotes, or a whole number")
        self._expect("]", opened)
        return part

    # -- literals --------------------------------------------------------------------------------

    def _number(self, token: _Token) -> int | float:
        if len(token.text) > MAX_NUMBER_CHARACTERS:
            self._refuse(f"a number has at most {MAX_NUMBER_CHARACTERS} digits", token.position)
        return int(token.text) if token.text.isdigit() else float(token.text)

    def _unquoted(self, token: _Token) -> str:
        def meant(found: re.Match[str]) -> str:
            code, character = found.groups()
            if code is not None:
                return chr(int(code, 16))
            if character in "\"'\\/":
                return character
            if character in ESCAPES:
                return ESCAPES[character]
            self._refuse(
                r"escapes are \" \' \\ \n \t \r \b \f and \u00e9",
                token.position + 1 + found.start(),
            )

        text = _ESCAPE.sub(meant, token.text[1:-1])
        try:  # pairs of surrogates, as JSON writes them, are one character
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            self._refuse("half of a pair of surrogates is no character", token.position)
