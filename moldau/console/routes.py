"""Routes: what is served under which path, who may come there, and what it may cost.

Must not serve anything. Invariants: a path has one spelling; a parameter that a route does not
declare never reaches its handler.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl

from aiohttp import web

from moldau.console.calls import JSON, Call, Reply
from moldau.console.guard import Target, decoded
from moldau.console.problems import Problem
from moldau.console.schemas import Schema, check

Handler = Callable[[Call], Awaitable[Reply | web.StreamResponse]]

MAX_BODY_BYTES: Final = 1 << 20
TIME_LIMIT_S: Final = 20.0
"""Less than a listener gives to an answer, so that the client has the rest to take it."""
MAX_PARAMETERS: Final = 64
CONFLUENTS: Final = "v3"
"""The first segment of paths with Confluent's bodies and errors."""
_INTEGER: Final = re.compile(r"-?\d{1,19}")
_VARIABLE: Final = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of a query.

    Attributes:
        schema: string, integer, boolean, or an array of strings, which commas separate.
        default: what a handler gets where it is not given.
    """

    name: str
    description: str
    schema: Schema
    default: Any = None
    is_required: bool = False

    def value(self, text: str) -> Any:
        """The typed value of a text. Raises: Problem."""
        kind, where, value = self.schema["type"], f"the parameter {self.name}", text
        if kind == "integer":
            if _INTEGER.fullmatch(text) is None:
                raise Problem(422, f"{where} has to be a whole number")
            check(int(text), self.schema, where)
            return int(text)
        if kind == "boolean":
            if text not in ("true", "false"):
                raise Problem(422, f"{where} has to be true or false")
            return text == "true"
        if kind == "array":
            parts = text.split(",") if text else []
            check(parts, self.schema, where)
            return parts
        check(value, self.schema, where)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What one method does at one path.

    Attributes:
        path: with `{names}` of variable segments.
        name: the operation's, in the OpenAPI document.
        needs: what the cluster's ACLs have to allow, in Kafka's words.
        body: what it takes; None for nothing.
        answer: what its answer with `status` looks like; None for no JSON.
        may_be: other statuses than that of a refusal that every route may answer with.
        is_open: whether it is served without a login.
        is_login: whether it takes no token against requests of other sites, as it begins a session.
        is_stream: whether its answer takes as long as its reader wants.
        reads_body: whether the handler itself reads the body, as it comes.
        max_body_bytes: of a body that is read before the handler.
    """

    method: str
    path: str
    handler: Handler
    name: str
    summary: str
    needs: str = ""
    query: tuple[Parameter, ...] = ()
    body: Schema | None = None
    answer: Schema | None = None
    status: int = 200
    may_be: Mapping[int, str] = field(default_factory=dict)
    content_type: str = JSON
    is_open: bool = False
    is_login: bool = False
    is_stream: bool = False
    reads_body: bool = False
    max_body_bytes: int = MAX_BODY_BYTES
    time_limit_s: float = TIME_LIMIT_S

    @property
    def segments(self) -> tuple[str, ...]:
        return tuple(self.path[1:].split("/"))

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of the path's variable segments."""
        return tuple(_VARIABLE.findall(self.path))

    @property
    def is_confluents(self) -> bool:
        return self.segments[0] == CONFLUENTS

    def parameters(self, query: str) -> dict[str, Any]:
        """The typed values of a query. Raises: Problem."""
        try:
            pairs = parse_qsl(
                query, keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS
            )
        except ValueError:
            raise Problem(422, "the query is no UTF-8, or has too many parameters") from None
        given: dict[str, str] = {}
        for name, text in pairs:
            if name in given:
                raise Problem(422, f"the parameter {name} is given twice")
            given[name] = text
        values = {each.name: each.default for each in self.query}
        for each in self.query:
            if each.name in given:
                values[each.name] = each.value(given[each.name])
            elif each.is_required:
                raise Problem(422, f"the parameter {each.name} is needed")
        return values


class _Node:
    """A place in the tree of paths."""

    __slots__ = ("by_segment", "routes", "variable")

    def __init__(self) -> None:
        self.by_segment: dict[str, _Node] = {}
        self.variable: _Node | None = None
        self.routes: dict[str, Route] = {}


class RouteTable:
    """All routes, found by path and method."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        for route in self.routes:
            node = self._root
            for segment in route.segments:
                node = _below(node, segment)
            assert route.method not in node.routes, f"{route.method} {route.path} twice"
            node.routes[route.method] = route

    def find(self, method: str, target: Target) -> tuple[Route, dict[str, str]]:
        """The route of a request, and the names in its path. Raises: Problem: 404, 405."""
        node = None if target.has_end else self._node(target.segments)
        if node is None:
            raise Problem(404, "nothing is served here")
        get = node.routes.get("GET")
        has_head = get is not None and not get.is_stream
        route = get if method == "HEAD" and has_head else node.routes.get(method)
        if route is None:
            allow = ", ".join(sorted([*node.routes, *(["HEAD"] if has_head else [])]))
            raise Problem(405, f"served here: {allow}", ("Allow", allow))
        pairs = zip(route.segments, target.segments, strict=True)
        names = (decoded(given) for own, given in pairs if _VARIABLE.fullmatch(own))
        return route, dict(zip(route.variables, names, strict=True))

    def _node(self, segments: tuple[str, ...]) -> _Node | None:
        """The place of a path; a fixed segment goes before a variable one."""
        places = [(self._root, 0)]
        while places:
            node, depth = places.pop()
            if depth == len(segments):
                if node.routes:
                    return node
                continue
            if node.variable is not None:
                places.append((node.variable, depth + 1))
            fixed = node.by_segment.get(segments[depth])
            if fixed is not None:
                places.append((fixed, depth + 1))
        return None


def _below(node: _Node, segment: str) -> _Node:
    if _VARIABLE.fullmatch(segment) is None:
        return node.by_segment.setdefault(segment, _Node())
    if node.variable is None:
        node.variable = _Node()
    return node.variable
