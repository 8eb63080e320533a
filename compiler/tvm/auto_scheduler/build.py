"""Builds a callable function from a scheduled program and its arguments.

Arrays have the shapes of the arguments; layout changes are already part of the graph.
"""

from collections.abc import Sequence

from retune.compiler.core.config import usable_cpus
from retune.compiler.core.target import Target
from retune.compiler.driver import build as driver
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.runtime.cuda.function import CudaFunction
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import Tensor
from retune.compiler.tvm.auto_scheduler.loop_state import State


def build(
    schedule: State, args: Sequence[Tensor], target: Target | str | None = None, name: str = "kernel"
) -> KernelFunction | CudaFunction:
    """Compile the result of `apply_best` or `apply_steps_from_state`; `target` defaults to this machine, and must be
    the task's for a GPU program.

    Raises: ScheduleError when the program does not fit the arguments, LoweringError, TargetError, ArtifactError when
    the code is for another machine, DeviceError when there is no GPU.
    """
    machine = Target.host() if target is None else Target(str(target))
    hardware = hardware_of(machine, len(usable_cpus()))
    # The graph is already in the program's layout; a second rewrite would transform it again.
    task = SearchTask(name, ComputeDAG(args), machine, hardware, layout=LayoutRewriteOption.NO_REWRITE)
    return driver.build(task, schedule.steps, name)
