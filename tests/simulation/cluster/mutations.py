"""Bugs put into production code one at a time, to prove that the simulation finds such bugs.

Owns: how each is put in and taken out again. Must not: be active unless asked for.
Invariant: what a mutation returns undoes it completely.
"""

from __future__ import annotations

from collections.abc import Callable

MUTATIONS: dict[str, Callable[[], Callable[[], None]]] = {}
