"""What the simulators, the crash tests and the soaks have in common, and how tests are judged.

`seeds` runs seeds and shows what became of them, `injected_bugs` is the one shape of a known bug
and looks for the seeds that find it, `gates` is what every simulator has to pass in `make test`,
`soaks` is the command line of a soak, `waiting` is how tests wait. `kinds` says of which kind a
test is, `guard` keeps the real world out of the gate, `rerun` runs real tests again that failed,
and `Verdict` is the failure after which it does not.
"""

from tests.kit.verdict import Verdict, judging

__all__ = ["Verdict", "judging"]
