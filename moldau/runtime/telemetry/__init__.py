"""What a node tells about itself: metrics under Kafka's names, and logs."""

from moldau.runtime.telemetry.logs import (
    RateLimitedLog,
    configure_logging,
    enhance,
    get_levels,
    load_renderer,
    set_level,
)
from moldau.runtime.telemetry.metrics import Counter, Gauge, Histogram, Meter, Metric, Registry

__all__ = [
    "Counter",
    "Gauge",
    "Histogram",
    "Meter",
    "Metric",
    "RateLimitedLog",
    "Registry",
    "configure_logging",
    "enhance",
    "get_levels",
    "load_renderer",
    "set_level",
]
