"""Templates carried out: scopes, conditions, loops, named templates.

Owns what a template does with its data. Invariant: one Renderer knows all definitions of a chart,
whichever file they stand in, as helm does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.deploy.go_templates.functions import FUNCTIONS, FunctionError, is_true, shown
from tests.deploy.go_templates.syntax import (
    Action,
    Block,
    Call,
    Literal,
    Node,
    Path,
    Pipeline,
    TemplateError,
    Text,
    parse,
)

__all__ = ["Renderer", "TemplateError"]


class _Scope:
    """Variables by name; a block's own ones hide those around it."""

    def __init__(self, outer: _Scope | None = None) -> None:
        self._outer = outer
        self._values: dict[str, Any] = {}

    def declare(self, name: str, value: Any) -> None:
        self._values[name] = value

    def assign(self, name: str, value: Any) -> None:
        if name in self._values:
            self._values[name] = value
        elif self._outer is not None:
            self._outer.assign(name, value)
        else:
            raise TemplateError(f"{name} was never declared")

    def get(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        if self._outer is None:
            raise TemplateError(f"{name} was never declared")
        return self._outer.get(name)


class Renderer:
    """A set of templates by file name.

    Args:
        lookup: what the cluster has (of a version, kind, namespace and name); nothing by default,
            as for `helm template`.

    Raises:
        TemplateError: (also from `render`) a template is wrong, or says so with `fail` or
            `required`.
    """

    def __init__(
        self, sources: Mapping[str, str], lookup: Callable[..., Any] = FUNCTIONS["lookup"]
    ) -> None:
        self._functions = {**FUNCTIONS, "lookup": lookup}
        self._files = {name: parse(text) for name, text in sources.items()}
        self._named: dict[str, list[Node]] = {}
        for nodes in self._files.values():
            self._collect(nodes)

    def render(self, name: str, data: Any) -> str:
        """The text that a file gives for `data`."""
        try:
            return self._template(self._files[name], data)
        except FunctionError as error:
            raise TemplateError(f"{name}: {error}") from error

    def _collect(self, nodes: list[Node]) -> None:
        for node in nodes:
            if isinstance(node, Block) and node.kind == "define":
                self._named[node.name] = node.body

    def _template(self, nodes: list[Node], data: Any) -> str:
        scope = _Scope()
        scope.declare("$", data)
        return self._run(nodes, data, scope)

    def _run(self, nodes: list[Node], dot: Any, scope: _Scope) -> str:
        parts: list[str] = []
        for node in nodes:
            if isinstance(node, Text):
                parts.append(node.text)
            elif isinstance(node, Action):
                parts.append(self._action(node, dot, scope))
            elif node.kind != "define":
                parts.append(self._block(node, dot, scope))
        return "".join(parts)

    def _action(self, node: Action, dot: Any, scope: _Scope) -> str:
        value = self._pipeline(node.pipeline, dot, scope)
        if node.variable is None:
            return shown(value)
        (scope.declare if node.declares else scope.assign)(node.variable, value)
        return ""

    def _block(self, node: Block, dot: Any, scope: _Scope) -> str:
        assert node.pipeline is not None
        value = self._pipeline(node.pipeline, dot, scope)
        if not is_true(value):
            return self._run(node.otherwise, dot, _Scope(scope))
        if node.kind != "range":
            inner = _Scope(scope)
            for name in node.variables:
                inner.declare(name, value)
            return self._run(node.body, value if node.kind == "with" else dot, inner)
        pairs = sorted(value.items()) if isinstance(value, dict) else list(enumerate(value))
        parts = []
        for key, each in pairs:
            inner = _Scope(scope)
            given = (key, each) if len(node.variables) == 2 else (each,)
            for name, part in zip(node.variables, given, strict=False):
                inner.declare(name, part)
            parts.append(self._run(node.body, each, inner))
        return "".join(parts)

    def _pipeline(self, pipeline: Pipeline, dot: Any, scope: _Scope) -> Any:
        value: Any = None
        for place, command in enumerate(pipeline.commands):
            if isinstance(command, Call):
                arguments = [self._operand(each, dot, scope) for each in command.arguments]
                value = self._call(command.name, arguments + ([value] if place else []))
            elif place:
                raise TemplateError("a value cannot be piped into something that is no function")
            else:
                value = self._operand(command, dot, scope)
        return value

    def _operand(self, operand: Literal | Path, dot: Any, scope: _Scope) -> Any:
        if isinstance(operand, Literal):
            return operand.value
        if isinstance(operand.base, Pipeline):
            value = self._pipeline(operand.base, dot, scope)
        else:
            value = dot if operand.base == "." else scope.get(operand.base)
        for name in operand.fields:
            if value is None:
                raise TemplateError(f"nil has no field {name}")
            if not isinstance(value, dict):
                raise TemplateError(f"{shown(value)!r} has no field {name}")
            value = value.get(name)
        return value

    def _call(self, name: str, arguments: list[Any]) -> Any:
        if name == "include":
            template, data = arguments
            if template not in self._named:
                raise TemplateError(f"there is no template {template!r}")
            return self._template(self._named[template], data)
        if name not in self._functions:
            raise TemplateError(f"this renderer does not know the function {name!r}")
        return self._functions[name](*arguments)
