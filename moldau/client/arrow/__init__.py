"""Arrow batches to record columns and back."""
