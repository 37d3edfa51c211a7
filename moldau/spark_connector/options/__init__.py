"""The options of source and sink: Spark's own names, defaults and refusals. No I/O."""
