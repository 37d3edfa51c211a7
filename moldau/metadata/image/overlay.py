"""Mappings that change a little at a time: a copy with changes, and one that puts copying off.

Owns: what the deltas share. Invariant: no argument is ever changed; None removes; what a mapping
holds never changes, however it lies in memory.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar, cast, overload

from moldau.metadata.steps import Steps

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
ImageT = TypeVar("ImageT")

ALWAYS_COPIED: Final = 1_000
"""A mapping of up to so many entries is copied for each change: 10 microseconds, and the fastest
lookups."""

CHANGES_PER_ROOT: Final = 4
"""Changes are laid over a bigger mapping until there are so many times the square root of its size:
then the average change costs as much for their copies as for its share in copying everything."""

_ABSENT: Final[Any] = object()


def overlay(base: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    """`base` with `changes` made; the very same object when there are none."""
    if not changes:
        return base
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged


@dataclass(eq=False, repr=False)
class MappingDelta(Generic[K, V, ImageT]):
    """Changed entries of an image's mapping; None stands for one that was removed."""

    _base: Mapping[K, V]
    _make_image: Callable[[Mapping[K, V]], ImageT]
    changes: dict[K, V | None] = field(default_factory=dict)

    def get(self, key: K) -> V | None:
        """The entry as it is with the changes so far."""
        return self.changes[key] if key in self.changes else self._base.get(key)

    def finish_snapshot(self) -> None:
        for key in self._base:
            self.changes.setdefault(key, None)

    def apply(self) -> ImageT:
        return self._make_image(overlay(self._base, self.changes))


@dataclass(eq=False, repr=False)
class NestedMappingDelta(Generic[K, V, ImageT]):
    """Changed entries of the mappings in an image's mapping; None stands for one that was removed.
    A mapping without entries is absent.
    """

    _base: Mapping[K, Mapping[str, V]]
    _make_image: Callable[[Mapping[K, Mapping[str, V]]], ImageT]
    changes: dict[K, dict[str, V | None]] = field(default_factory=dict)

    def finish_snapshot(self) -> None:
        for key, entries in self._base.items():
            changes = self.changes.setdefault(key, {})
            for name in entries:
                changes.setdefault(name, None)

    def apply(self) -> Steps[ImageT]:
        merged: dict[K, Mapping[str, V] | None] = {}
        for key, changes in self.changes.items():
            merged[key] = overlay(self._base.get(key, {}), changes) or None
            yield
        return self._make_image(layered(self._base, merged))


def layered(base: Mapping[K, V], changes: Mapping[K, V | None]) -> Mapping[K, V]:
    """As `overlay`, for big mappings: the copy is shared by many calls, one on top of the other."""
    if not changes:
        return base
    length = len(base)
    for key, value in changes.items():
        length += (value is not None) - (key in base)
    if isinstance(base, LayeredMapping):
        bottom, laid = base.layers
        changes = {**laid, **changes}
    else:
        bottom = base
    is_small = len(bottom) <= ALWAYS_COPIED
    if is_small or len(changes) ** 2 > CHANGES_PER_ROOT**2 * len(bottom):
        return overlay(bottom, changes)
    return LayeredMapping(bottom, changes, length)


class LayeredMapping(Mapping[K, V]):
    """A mapping with changes over it; made by `layered`. The first iteration makes a copy.

    Threads may read it at the same time.
    """

    __slots__ = ("_length", "layers")

    def __init__(self, bottom: Mapping[K, V], changes: Mapping[K, V | None], length: int) -> None:
        self.layers = (bottom, changes)  # always replaced together
        self._length = length

    def __getitem__(self, key: K) -> V:
        bottom, changes = self.layers
        value = changes.get(key, _ABSENT)
        if value is _ABSENT:
            return bottom[key]
        if value is None:
            raise KeyError(key)
        return value  # type: ignore[no-any-return]

    @overload
    def get(self, key: K, /) -> V | None: ...

    @overload
    def get(self, key: K, /, default: V | D) -> V | D: ...

    def get(self, key: K, /, default: Any = None) -> Any:
        bottom, changes = self.layers
        value = changes.get(key, _ABSENT)
        if value is _ABSENT:
            return bottom.get(key, default)
        return default if value is None else value

    def __contains__(self, key: object) -> bool:
        bottom, changes = self.layers
        value = changes.get(cast("K", key), _ABSENT)
        return key in bottom if value is _ABSENT else value is not None

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        return iter(self._flat())

    def keys(self) -> KeysView[K]:
        return self._flat().keys()

    def values(self) -> ValuesView[V]:
        return self._flat().values()

    def items(self) -> ItemsView[K, V]:
        return self._flat().items()

    def __repr__(self) -> str:
        return repr(self._flat())

    def _flat(self) -> Mapping[K, V]:
        bottom, changes = self.layers
        if changes:
            bottom = overlay(bottom, changes)
            self.layers = (bottom, {})
        return bottom
