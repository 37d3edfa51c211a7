"""The consumer: subscriptions, fetching, positions, group membership."""
