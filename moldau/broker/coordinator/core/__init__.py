"""State machines' results, and the regular expressions that coordinators take: no I/O."""
