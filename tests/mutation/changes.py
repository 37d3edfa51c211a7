"""The small changes that a source file offers: what the mutation score is measured with.

Owns: which changes there are, and how one is named so that it survives edits elsewhere. Must not:
touch a file, or know a test. Invariant: a change is inside a function, compiles, keeps every line's
number, and is none that only a reader would see (log lines, messages, assertions, annotations).
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

COMPARISON, OFF_BY_ONE, DROPPED, BRANCH = "comparison", "off-by-one", "dropped", "branch"

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_EQUALITIES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
_LOG_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}
_DROPPED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete, ast.Return)
_TEXTS = (ast.List, ast.Tuple, ast.JoinedStr, ast.ListComp)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the bytes from `start` to `end` of `path` become `replacement`."""

    path: str
    """From the root of the tree, with slashes."""
    function: str
    """The qualified name of the outermost function around it."""
    kind: str
    start: int
    end: int
    replacement: str
    first_line: int
    """Where its statement begins: tests that do not come there cannot notice the change."""
    diff: str
    """`old text -> new text` of the changed lines, white space folded."""
    number: int = 1
    """1 for the first change of the function with this diff, 2 for the next one."""

    @property
    def key(self) -> str:
        """Names the change whatever else changes in the file."""
        return f"{self.path}::{self.function}: {self.diff}" + (
            f" #{self.number}" if self.number > 1 else ""
        )

    def applied(self, source: str) -> str:
        """The source with the change."""
        raw = source.encode()
        return (raw[: self.start] + self.replacement.encode() + raw[self.end :]).decode()


def mutants(path: str, source: str) -> list[Mutant]:
    """Every change that the source of `path` offers, in the order of the file."""
    finder = _Finder(path, source)
    finder.module(ast.parse(source))
    found: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for each in sorted(finder.found, key=lambda mutant: (mutant.start, mutant.end)):
        name = each.function, each.diff
        seen[name] += 1
        found.append(replace(each, number=seen[name]))
    return found


class _Finder:
    """Walks one module; `found` fills up."""

    def __init__(self, path: str, source: str) -> None:
        self.found: list[Mutant] = []
        self._path = path
        self._raw = source.encode()
        starts = [0]
        for line in self._raw.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self._line_starts = starts
        self._function = ""
        self._first_line = 0

    def module(self, tree: ast.AST, prefix: str = "") -> None:
        """Functions of the module and of its classes."""
        for node in ast.iter_child_nodes(tree):
            if isinstance(node, ast.ClassDef):
                self.module(node, f"{prefix}{node.name}.")
            elif isinstance(node, _FUNCTIONS) and node.name not in {"__repr__", "__str__"}:
                self._function = prefix + node.name
                self._function_body(node.body)

    def _function_body(self, body: list[ast.stmt]) -> None:
        """A `return` of nothing at the end is the end of the function anyway."""
        last = body[-1]
        if isinstance(last, ast.Return) and (
            last.value is None or ast.unparse(last.value) == "None"
        ):
            body = body[:-1]
        self._block(body)

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, node: ast.stmt) -> None:
        self._first_line = node.lineno
        if isinstance(node, ast.Assert) or _only_for_readers(node):
            return
        if _can_be_dropped(node):
            start, end = self._span(node)
            self._add(DROPPED, (start, start), "if 0: ", shown=((start, end), "pass"))
        if isinstance(node, ast.Raise | ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, _FUNCTIONS):
            self._function_body(node.body)
            return
        if isinstance(node, ast.If):
            self._negate(node.test)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                if not (isinstance(node, ast.AnnAssign) and child is node.annotation):
                    self._expression(child)
            elif isinstance(child, ast.withitem):
                self._expression(child.context_expr)
        for block in _blocks(node):
            self._block(block)

    def _expression(self, node: ast.expr) -> None:
        for each in _walk(node):
            if isinstance(each, ast.Compare):
                self._compare(each)
            elif isinstance(each, ast.BoolOp):
                self._bool_op(each)
            elif isinstance(each, ast.UnaryOp) and isinstance(each.op, ast.Not):
                start = self._span(each)[0]
                self._add(BRANCH, (start, start + len("not")), "")
            elif isinstance(each, ast.IfExp):
                self._negate(each.test)
            elif isinstance(each, ast.Constant):
                self._constant(each)
            elif isinstance(each, ast.BinOp) and isinstance(each.op, ast.Add | ast.Sub):
                self._sum(each)
            elif isinstance(each, ast.Name) and each.id in {"min", "max"}:
                other = "max" if each.id == "min" else "min"
                self._add(COMPARISON, self._span(each), other)

    def _compare(self, node: ast.Compare) -> None:
        left = node.left
        for operator, right in zip(node.ops, node.comparators, strict=True):
            old, new = _COMPARISONS[type(operator)]
            self._between(COMPARISON, left, right, old, new)
            left = right

    def _bool_op(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self._between(BRANCH, left, right, old, new)

    def _sum(self, node: ast.BinOp) -> None:
        if any(isinstance(each, _TEXTS) or _is_text(each) for each in (node.left, node.right)):
            return
        old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
        self._between(OFF_BY_ONE, node.left, node.right, old, new)

    def _between(self, kind: str, left: ast.expr, right: ast.expr, old: str, new: str) -> None:
        """The operator between two operands; parentheses may stand on both sides of it."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._raw[start:end].decode()
        if b"#" in self._raw[start:end]:
            return
        place = start + gap.encode().index(old.encode())
        self._add(kind, (place, place + len(old)), new)

    def _negate(self, test: ast.expr) -> None:
        """`if a` becomes `if not (a)`: the other branch is taken. Where the test is a comparison or
        a `not`, that one's own change does the same.
        """
        single = isinstance(test, ast.Compare) and len(test.ops) == 1
        if single and isinstance(
            test.ops[0], ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
        ):
            return
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return
        start, end = self._span(test)
        text = self._raw[start:end].decode()
        self._add(BRANCH, (start, end), f"not ({text})")

    def _constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(BRANCH, self._span(node), str(not node.value))
        elif isinstance(node.value, int):
            self._add(OFF_BY_ONE, self._span(node), str(node.value + 1))

    def _span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._line_starts[node.lineno - 1] + node.col_offset
        return start, self._line_starts[node.end_lineno - 1] + node.end_col_offset

    def _add(
        self,
        kind: str,
        span: tuple[int, int],
        replacement: str,
        shown: tuple[tuple[int, int], str] | None = None,
    ) -> None:
        diff = self._diff(*(shown or (span, replacement)))
        change = (kind, *span, replacement)
        self.found.append(Mutant(self._path, self._function, *change, self._first_line, diff))

    def _diff(self, span: tuple[int, int], new: str) -> str:
        """The lines around a span, before and after."""
        before = self._raw.rfind(b"\n", 0, span[0]) + 1
        after = self._raw.find(b"\n", span[1])
        old_text = self._raw[before:after]
        new_text = self._raw[before : span[0]] + new.encode() + self._raw[span[1] : after]
        return f"{_folded(old_text)} -> {_folded(new_text)}"


def _walk(node: ast.expr) -> Iterator[ast.expr]:
    """The expression and what is in it, but not what only a reader sees."""
    if isinstance(node, ast.JoinedStr):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _walk(child)
        elif isinstance(child, ast.keyword):
            if child.arg != "strict":
                yield from _walk(child.value)
        elif isinstance(child, ast.comprehension):
            for part in (child.iter, *child.ifs):
                yield from _walk(part)


def _blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(node, name, [])
    for each in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield each.body


def _can_be_dropped(node: ast.stmt) -> bool:
    """A statement without which the function can still be run: no first value of a local name."""
    if isinstance(node, ast.Assign):
        return not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
    if isinstance(node, ast.Delete):  # `del argument` says that it is not used, and does nothing
        return not all(isinstance(target, ast.Name) for target in node.targets)
    return isinstance(node, _DROPPED)


def _only_for_readers(node: ast.stmt) -> bool:
    """Documentation, and lines for the log."""
    if not isinstance(node, ast.Expr):
        return False
    call = node.value
    if isinstance(call, ast.Constant):
        return True
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _LOG_CALLS
        and "log" in ast.unparse(call.func.value)
    )


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def _folded(text: bytes) -> str:
    return " ".join(text.decode().split())
