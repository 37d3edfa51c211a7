"""Writing: transactions of the workers, decided on the driver."""
