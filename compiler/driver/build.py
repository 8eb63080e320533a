"""Builds functions of arrays: a computation goes in, what it compiles to is loaded and called with arrays."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from retune.compiler.codegen.build import build_kernel, device_source, kernel_source
from retune.compiler.codegen.device_build import build_device_kernel
from retune.compiler.driver.hardware import hardware_of, hardware_of_gpu, target_on
from retune.compiler.runtime.cuda import driver
from retune.compiler.runtime.cuda_function import CudaFunction
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default_gpu import untuned_steps
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.target import Target
from retune.compiler.te.tensor import Tensor

__all__ = ["Program", "build", "build_kernel", "device_source", "kernel_source"]


class Program(Protocol):
    """A state of any kind: what was done to a graph."""

    @property
    def steps(self) -> Sequence[object]:
        """The steps, in order."""
        ...


def build(
    what: SearchTask | ComputeDAG | Sequence[Tensor],
    steps: Sequence[Step] | Program | None = None,
    name: str = "kernel",
    target: Target | None = None,
) -> KernelFunction | CudaFunction:
    """A function of arrays: the computation compiled for this machine, or for the first GPU of it, as `steps` (or those
    of a state) say, or untuned.

    `what` is a task, a graph, or the tensors that are its arguments: inputs and outputs. `target` is for graphs and
    tensors; the default is this machine.

    Raises: as `build_kernel`; ArtifactError when the code is for another machine, DeviceError when there is no GPU.
    """
    if not isinstance(what, SearchTask):
        dag = what if isinstance(what, ComputeDAG) else ComputeDAG(what)
        chosen = target or Target.host()
        what = SearchTask(name, dag, chosen, hardware_of(chosen, 1))
    if steps is None:
        steps = untuned_steps(what)
    elif not isinstance(steps, Sequence):
        steps = [step for step in steps.steps if isinstance(step, Step)]
    if what.target.is_gpu:
        cuda = driver()
        here = cuda.devices()[0]
        mine = replace(what, target=target_on(what.target, here), hardware=hardware_of_gpu(here))
        return CudaFunction(cuda, build_device_kernel(mine, steps, name))
    return KernelFunction(load_kernels([build_kernel(what, steps, name)])[name])
