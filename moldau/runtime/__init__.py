"""What stands between us and the operating system: clock, network, files, timers, telemetry."""
