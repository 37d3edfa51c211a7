"""What every principal asks: each API that a client can send, about resources that exist, that
are not, and that rights by name or prefix do not cover.

Invariant: an answer never depends on who asked before, but for what is restored (`destroys`) and
offsets, which grow alike on both sides: changes are validated only, or name what is not there.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.interop.differential.permissions import (
    cluster_questions,
    group_questions,
    topic_questions,
)
from tests.interop.differential.permissions.question import Question, marked


def questions() -> Iterator[Question]:
    """All of them, and all of them with marked names."""
    plain = [
        *topic_questions.questions(),
        *group_questions.questions(),
        *cluster_questions.questions(),
    ]
    yield from plain
    yield from map(marked, plain)
