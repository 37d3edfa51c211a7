"""What the cluster is (`image`) and who may change it (`controller`)."""
