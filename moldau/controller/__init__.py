"""Who may change the cluster: the controller's core, its driver and its listener's handlers."""
