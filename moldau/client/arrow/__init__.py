"""Arrow batches to record columns and back. pyarrow is imported when it is first used."""

from moldau.client.arrow.library import ArrowMissing
from moldau.client.arrow.sending import ArrowArray, ArrowData, ArrowDelivery, ArrowStream
from moldau.client.arrow.to_arrow import polled_schema

__all__ = [
    "ArrowArray",
    "ArrowData",
    "ArrowDelivery",
    "ArrowMissing",
    "ArrowStream",
    "polled_schema",
]
