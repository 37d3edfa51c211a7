"""`KAFKA_LOG_DIRS`-style environment variables, the convention of Kafka's container images.

Owns: the name translation and the list of variables that are for scripts, not for the node.
Must not: read the process's environment itself; the caller passes it in.
Invariant: only variables that start with `KAFKA_` are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

PREFIX: Final = "KAFKA_"

NOT_CONFIGURATION: Final = frozenset(
    {
        "KAFKA_CLUSTER_ID",
        "KAFKA_DEBUG",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_HOME",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_LOG4J_ROOT_LOGLEVEL",
        "KAFKA_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)

_UNDERSCORES = re.compile(r"_{1,3}")
_TRANSLATION = {"_": ".", "__": "_", "___": "-"}
# What Kubernetes injects for a service called "kafka": KAFKA_PORT=tcp://…, KAFKA_SERVICE_HOST, …
_SERVICE_LINK = re.compile(r"KAFKA_(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)")


def key_of_variable(variable: str) -> str:
    """`log.dirs` of `KAFKA_LOG_DIRS`: `_` is a dot, `__` an underscore, `___` a dash."""
    name = variable[len(PREFIX) :]
    return _UNDERSCORES.sub(lambda match: _TRANSLATION[match[0]], name).lower()


def properties_of_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The configuration that an environment holds, by dotted key."""
    return {
        key_of_variable(variable): value
        for variable, value in sorted(environ.items())
        if variable.startswith(PREFIX)
        and len(variable) > len(PREFIX)
        and variable not in NOT_CONFIGURATION
        and not _SERVICE_LINK.fullmatch(variable)
    }
