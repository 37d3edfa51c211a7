"""Small files that are replaced whole, and that others than their owner may not read.

Must not know what they hold. Invariant: a path has the old content or the new one, also after a
crash, and never more permissions than asked for.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

OWNER_ONLY: Final = 0o600
READABLE: Final = 0o644


def replace_file(path: Path, content: bytes, mode: int = OWNER_ONLY) -> None:
    """Put a new file in the place of one that may be there. Blocks. Raises: OSError."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
