"""State machines on the partitions of internal topics: groups and transactions run on it."""

from moldau.broker.coordinator.replies import Answerable, CallbackReply
from moldau.broker.coordinator.runtime import CoordinatorRuntime
from moldau.broker.coordinator.runtimes import CoordinatorRuntimes
from moldau.broker.coordinator.settings import RuntimeSettings

__all__ = [
    "Answerable",
    "CallbackReply",
    "CoordinatorRuntime",
    "CoordinatorRuntimes",
    "RuntimeSettings",
]
