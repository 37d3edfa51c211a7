"""How many descriptors the process may have open: as many as the system allows it.

Owns: raising the soft limit at the start of a node. Must not: count what is open.
Why: every connection takes one and every partition that is written to takes three, while the soft
limit is often 1,024; a JVM raises it for its process in the same way.
"""

from __future__ import annotations

import logging
import resource

FEW_DESCRIPTORS = 10_000
"""With fewer a node works, and its operator is told."""

logger = logging.getLogger("moldau.node")


def raise_descriptor_limit() -> int:
    """Raise the soft limit to the hard one, as far as the system lets us; returns what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            # macOS reports no hard limit and grants less than that.
            logger.info("the limit of open files stays at %d: %s", soft, error)
        else:
            soft = hard
    if soft != resource.RLIM_INFINITY and soft < FEW_DESCRIPTORS:
        logger.warning(
            "only %d files and connections may be open at a time (ulimit -n), each partition that "
            "is written to takes three",
            soft,
        )
    return soft
