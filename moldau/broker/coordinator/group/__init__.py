"""Groups: which member consumes which partitions, and the committed offsets."""
