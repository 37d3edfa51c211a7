"""A SPARK_HOME whose Python processes start fast.

Owns one directory of links in the user's cache. Must not change anything of PySpark. Why: Spark
puts the zipped copy of PySpark in its home first on the path of every Python process it starts, and
what lies in a zip is compiled anew by each of them: more than half of their start, for which Spark
waits ten seconds and no longer. With an empty zip in its place (releases before 4.3 look whether
there is one) they import the installed PySpark, whose compiled files are kept.
"""

from __future__ import annotations

import contextlib
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

EMPTY_ZIP: Final = b"PK\x05\x06" + bytes(18)
LINKED: Final = ("bin", "sbin", "jars")
"""What of a home the driver and its launcher need."""


def lean_spark_home(cache: Path) -> Path | None:
    """The directory for SPARK_HOME; None when PySpark has no home of its own to be linked to.

    It lies below `cache`, one for each installed PySpark.
    """
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        return None
    package = Path(found.origin).parent
    if not all((package / name).is_dir() for name in LINKED):
        return None  # a client without Java's part, or an installation laid out in another way
    home = cache / f"spark-{zlib.crc32(str(package).encode()):x}"
    home.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        with contextlib.suppress(FileExistsError):  # of an earlier start, or of one beside this
            (home / name).symlink_to(package / name)
    library = home / "python" / "lib"
    library.mkdir(parents=True, exist_ok=True)
    for each in (package / "python" / "lib").glob("*.zip"):
        (library / each.name).write_bytes(EMPTY_ZIP)
    is_whole = all((home / name).resolve() == (package / name).resolve() for name in LINKED)
    return home if is_whole else None
