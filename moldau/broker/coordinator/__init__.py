"""State machines on the partitions of internal topics.

A package for each kind of coordinator, `group` and `transaction`. They run on `runtime`;
`coordinators` makes them.
"""
