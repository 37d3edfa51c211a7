"""The seed of a test that draws something: the same one each time, or another from outside.

Owns: `MOLDAU_SEED`. Invariant: the seed is printed, so that a failure can be replayed.
"""

from __future__ import annotations

import os

SEED = "MOLDAU_SEED"


def drawn_seed(fixed: int = 1) -> int:
    """`fixed`, so that the gate is the same everywhere; `make long` gives new ones by MOLDAU_SEED,
    as does who replays one.
    """
    seed = int(os.environ.get(SEED, fixed))
    print(f"{SEED}={seed}")
    return seed
