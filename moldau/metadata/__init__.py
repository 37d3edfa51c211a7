"""What the cluster is: the image of its metadata log, and the features it may run at."""
