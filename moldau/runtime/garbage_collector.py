"""The garbage collector's settings: rare collections that never walk what start-up made."""

from __future__ import annotations

import gc
from typing import Final

GC_THRESHOLDS: Final = (10_000, 0, 10_000)
"""Allocations until a young collection, young ones until a middle one, and so on (measured). Every
second collection is a middle one and walks what is left of 20,000 allocations: of a million, as one
request can lead to, it would hold the loop for 100 ms. Commits and fetches of offsets, 1 MB each,
had middle collections of up to 36 ms with 60,000 and 14 with 20,000, all collections together 876
and 629 ms.
"""

LOADING_THRESHOLDS: Final = (1_000, 1_000_000, 1_000_000)
"""Young collections only. Middle and old ones walk code that stays, a tenth of a node's start;
without any, garbage lies between what stays, and a node that fills these holes later needs 2 % more
CPU for a Produce request of 16 KB (measured)."""


def collect_young_only() -> None:
    """Collect no more than young objects while modules are being loaded."""
    gc.set_threshold(*LOADING_THRESHOLDS)


def pause_garbage_collector() -> None:
    """No collections while something big is being loaded; `freeze_garbage_collector` ends this."""
    gc.disable()


def freeze_garbage_collector() -> None:
    """Collect once, exempt all that lives now from later collections, collect rarely then."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
