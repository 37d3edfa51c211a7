"""What was used, what is allowed, and what follows: values and arithmetic only."""
