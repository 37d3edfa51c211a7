"""What a checker says of the product: data is lost, doubled, torn, or differs between replicas.

Owns: the one exception of such a verdict. Invariant: a test that fails with it is never run again,
so it is raised by checkers only, and never for what a slow machine may bring about.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Verdict(AssertionError):
    """The product broke a promise about data. No second run can take that back."""


@contextmanager
def judging() -> Iterator[None]:
    """An assertion that fails in here, or in the function that this decorates, is a verdict. What
    waits or reads may do so only if it fails by other errors. Raises: Verdict: one failed
    """
    try:
        yield
    except Verdict:
        raise
    except AssertionError as error:
        raise Verdict(*error.args) from error
