"""In: a compute graph and a target. Out: a `SearchTask`, the thing that is tuned.

Always: frozen and picklable; equal computations have equal keys.
"""

from dataclasses import dataclass

from compiler.schedule.dag import ComputeDAG
from compiler.target import HardwareParams, Target


@dataclass(frozen=True, slots=True)
class SearchTask:
    """A computation to tune for a machine. `name` is for people; `workload_key` identifies it in records."""

    name: str
    dag: ComputeDAG
    target: Target
    hardware: HardwareParams

    @property
    def workload_key(self) -> str:
        """Key of the computation, see `ComputeDAG.workload_key`."""
        return self.dag.workload_key

    @property
    def flop_count(self) -> float:
        """Floating-point operations of one call."""
        return self.dag.flop_count
