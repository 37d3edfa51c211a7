"""What the simulators, the crash tests and the soaks have in common.

`seeds` runs seeds and shows what became of them, `injected_bugs` is the one shape of a known bug
and looks for the seeds that find it, `gates` is what every simulator has to pass in `make test`,
`soaks` is the command line of a soak.
"""
