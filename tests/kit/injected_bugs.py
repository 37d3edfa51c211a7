"""The one shape of a known bug: how it is injected, what brings it to light, which seed finds it.

Owns: the row and the table. Must not: be active unless asked for. Invariant: after `injected` the
product is what it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

Patch = pytest.MonkeyPatch
Inject = Callable[[Patch], None]
"""Replaces functions of the product through the patch; its docstring says what it breaks."""


@dataclass(frozen=True, slots=True)
class InjectedBug:
    """One of them."""

    inject: Inject
    first_seed: int | None = None
    """The gate looks from here on. With None the bug takes more seeds than are worth the gate's
    time.
    """
    faults: tuple[str, ...] = ()
    """Which faults bring it to light; whatever the seed chooses without."""
    is_found_beside: str = ""
    """The bug that makes the product lawful but weaker, where this one comes on top of it."""

    @property
    def name(self) -> str:
        return self.inject.__name__.replace("_", "-")

    @property
    def breaks(self) -> str:
        """What is wrong then, in a sentence."""
        return " ".join((self.inject.__doc__ or "").split())

    @contextmanager
    def injected(self) -> Iterator[None]:
        """The product has the bug while this is open."""
        with Patch.context() as patch:
            self.inject(patch)
            yield

    def inject_for_good(self) -> None:
        """The product of this process has the bug until the process ends."""
        self.inject(Patch())


def table(*bugs: InjectedBug) -> Mapping[str, InjectedBug]:
    """The bugs by name."""
    return {bug.name: bug for bug in bugs}
