"""Lets Spark find `format("moldau")` by itself: it looks into every module named `pyspark_*`.

An error here would hide the data sources of all other such modules, so there is none: where ours
cannot be loaded, Spark does not know it, and a warning says why.
"""

import warnings as _warnings

try:
    from moldau.spark_connector.data_source import MoldauDataSource as DefaultSource
except (ImportError, AttributeError) as _error:
    _warnings.warn(f"format('moldau') is not available: {_error}", RuntimeWarning, stacklevel=2)
else:
    __all__ = ["DefaultSource"]
