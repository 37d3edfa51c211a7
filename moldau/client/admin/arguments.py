"""What users hand to the admin client's calls, checked before anything is sent.

Owns the check that a call which takes several things is not given one. Must not know the calls.
Invariant: what raises has asked nothing of the cluster.
"""

from __future__ import annotations


def check_several(*collections: object) -> None:
    """Refuse one name, or one partition (a named tuple), where a collection of them is needed.

    Both are iterable in Python: the topics named by `"qrs"` would be q, r and s.

    Raises:
        TypeError: one of them is such; None passes, where a call means everything by it.
    """
    for given in collections:
        is_named_tuple = isinstance(given, tuple) and hasattr(given, "_fields")
        if isinstance(given, str | bytes | bytearray) or is_named_tuple:
            raise TypeError(
                f"this call takes several, in a list or another collection: [{given!r}], "
                f"not {given!r}"
            )
