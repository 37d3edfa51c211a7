"""kafka-python, imported here once without the warning that its import raises.

It reads its schemas with a function of importlib that is deprecated.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

__all__ = ["kafka"]
