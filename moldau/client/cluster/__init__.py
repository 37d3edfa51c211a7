"""What all clients share: connections to a cluster, what is known of it, its coordinators."""
