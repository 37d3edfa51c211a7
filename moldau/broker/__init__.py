"""A broker: requests (`api`), partitions (`replica`), coordinators, its standing (`lifecycle`)."""
