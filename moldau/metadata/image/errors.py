"""What replaying records can stumble over.

Owns: the exception types of `image`. Invariant: each names the record, so that one line is enough
to find it.
"""

from __future__ import annotations


class InvalidMetadataRecord(Exception):
    """A record that does not fit the image it is applied to, or is of a type nobody knows here.

    The metadata cannot be trusted any further: the node has to stop rather than skip it.
    """
