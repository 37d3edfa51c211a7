"""`moldau bench`, and the loads that it shares with the repository's benchmarks."""
