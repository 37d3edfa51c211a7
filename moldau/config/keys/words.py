"""Short names for the enumerations, so that each declaration in this package stays readable.

Owns: aliases and three numeric limits.
Must not: declare keys.
"""

from __future__ import annotations

from moldau.config.definition import ConfigType, Importance, Scope, Status

BOOLEAN = ConfigType.BOOLEAN
STRING = ConfigType.STRING
INT = ConfigType.INT
SHORT = ConfigType.SHORT
LONG = ConfigType.LONG
DOUBLE = ConfigType.DOUBLE
LIST = ConfigType.LIST
CLASS = ConfigType.CLASS
PASSWORD = ConfigType.PASSWORD

HIGH = Importance.HIGH
MEDIUM = Importance.MEDIUM
LOW = Importance.LOW

STATIC = Scope.STATIC
BROKER = Scope.BROKER
CLUSTER = Scope.CLUSTER
TOPIC = Scope.TOPIC

SERVED = Status.SERVED
REFUSED = Status.REFUSED
IGNORED = Status.IGNORED

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MAX_DOUBLE = 1.7976931348623157e308
