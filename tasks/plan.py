"""How a run reaches the workers of a fleet, as plain data: `FleetPlan`. Free of Prefect, for the command line."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """`kind` is a string for `retune.tasks.engines.fleet_of`, `storage` the folder that a Prefect server's
    workers share, `device` the key of the device that times.
    """

    kind: str
    storage: str
    device: str
