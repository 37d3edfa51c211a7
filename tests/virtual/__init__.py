"""A machine on virtual time, for simulators and unit tests: event loop, network, wall clocks."""
