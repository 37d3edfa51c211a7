"""The controller's decisions, without any input or output: state in, records and responses out."""
