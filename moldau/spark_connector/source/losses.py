"""What becomes of records that cannot be read any more: `failOnDataLoss`.

Owns the error and the warning. Invariant: no loss is passed over in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from moldau.spark_connector.core.continuity import Loss
from moldau.spark_connector.errors import DataLoss, TopicsNotFound

_log: Final = logging.getLogger("moldau.spark_connector")

MAX_SHOWN: Final = 10


def report(losses: Sequence[Loss], *, fail_on_data_loss: bool) -> None:
    """Stop the query, or say what it goes on without.

    Raises:
        DataLoss: there are losses, and they shall stop the query.
    """
    if not losses:
        return
    shown = "; ".join(str(loss) for loss in losses[:MAX_SHOWN])
    if len(losses) > MAX_SHOWN:
        shown += f"; and {len(losses) - MAX_SHOWN} more partitions"
    if fail_on_data_loss:
        raise DataLoss(
            f"records are lost to this query. {shown}. To go on with what there is, set "
            "failOnDataLoss=false"
        )
    _log.warning("going on without records that are lost (failOnDataLoss=false). %s", shown)


def check_found(missing: Sequence[str]) -> None:
    """Refuse to begin with something that does not exist. Raises: TopicsNotFound"""
    if missing:
        raise TopicsNotFound(
            f"there is no {', '.join(missing)}: create it first, or see whether "
            "kafka.bootstrap.servers names the right cluster"
        )
