"""What the project's requirements bring, by the metadata of the packages that are installed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, requires
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tidy.sources import ROOT

PROJECT: Final[dict[str, Any]] = tomllib.loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)["project"]


@cache
def brought_by(requirement: str) -> frozenset[str]:
    """All packages of a requirement on this Python, `moldau[…]` too: those that are not installed
    end their branch.
    """
    found: set[str] = set()
    seen: set[str] = set()
    waiting = [Requirement(requirement)]
    while waiting:
        each = waiting.pop()
        if str(each) in seen:
            continue
        seen.add(str(each))
        name = canonicalize_name(each.name)
        if name != "moldau":
            found.add(name)
        waiting += _next(name, each.extras)
    return frozenset(found)


def named_by(extra: str) -> set[str]:
    """The packages that an extra names itself, or by other extras."""
    found: set[str] = set()
    for each in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if each.name == "moldau":
            found.update(*map(named_by, each.extras))
        else:
            found.add(canonicalize_name(each.name))
    return found


def _next(name: str, extras: set[str]) -> list[Requirement]:
    if name == "moldau":
        texts = [each for extra in extras for each in PROJECT["optional-dependencies"][extra]]
        return _in_force([*PROJECT["dependencies"], *texts], set())
    try:
        return _in_force(requires(name) or (), extras)
    except PackageNotFoundError:
        return []


def _in_force(texts: Iterable[str], extras: set[str]) -> list[Requirement]:
    """The requirements that this Python, or one of the extras, makes hold."""
    environments = [{"extra": each} for each in ("", *extras)]
    return [
        each
        for text in texts
        if (each := Requirement(text)).marker is None
        or any(each.marker.evaluate(environment) for environment in environments)
    ]
