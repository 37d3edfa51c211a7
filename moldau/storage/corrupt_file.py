"""The one error for a file in a log directory whose contents are not what its name promises.

Owns: the wording (file, line where there are lines, what is wrong). Must not: decide what a damaged
file costs; whoever reads it knows whether a partition goes offline or the file can be rebuilt.
"""

from __future__ import annotations


class CorruptFile(ValueError):
    """A checkpoint, property file, index or snapshot that does not parse.

    `path` is the file, `reason` what is wrong with it; the text is one line with both.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path
        self.reason = reason
