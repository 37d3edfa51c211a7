"""How the disk of a test's node is today, and the file in which the node reads it.

Owns the file's form. Must not import the product: a test process has no node in it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

#: The environment variable with the file's path.
MOOD_VARIABLE: Final = "MOLDAU_TEST_DISK"


@dataclass(frozen=True, slots=True)
class DiskMood:
    """How long a disk takes; a stalled operation waits until the mood is another one."""

    write_ms: float = 0.0
    flush_ms: float = 0.0
    stalls_writes: bool = False
    stalls_flushes: bool = False

    def write(self, path: Path) -> None:
        """Make it a node's mood from now on."""
        temporary = path.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(path)
