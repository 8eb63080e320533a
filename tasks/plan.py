"""In: nothing. Out: `FleetPlan`, plain data that says how a run reaches the workers of a fleet.

Always: free of Prefect, so that the command line can make one before Prefect is imported.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """`kind` is a text for `retune.tasks.wakes.fleet_of`, `storage` the place that run and workers share, `device` the
    key of the device that times.
    """

    kind: str
    storage: str
    device: str
