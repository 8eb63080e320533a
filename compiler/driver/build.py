"""Builds functions of arrays: compiles a computation, loads its kernel and calls it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.codegen.build import build_kernel, build_symbolic_kernel, kernel_source
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of, hardware_of_gpu, target_on
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.runtime.cuda.driver import driver
from retune.compiler.runtime.cuda.function import CudaFunction
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.runtime.loader import load_kernels
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import Step
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import Tensor

__all__ = ["Program", "build", "build_kernel", "build_symbolic", "kernel_source"]


class Program(Protocol):
    """A state of any kind: what was done to a graph."""

    @property
    def steps(self) -> Sequence[object]:
        """The steps, in order."""


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
        steps = default_steps_of(what)
    elif not isinstance(steps, Sequence):
        steps = [step for step in steps.steps if isinstance(step, Step)]
    return _LOADERS[what.target.kind](what, steps, name)


def build_symbolic(
    tensors: Sequence[Tensor], name: str = "kernel", target: Target | None = None
) -> KernelFunction | Unsupported:
    """A function of arrays for all values of the symbols in the shapes of `tensors`, inputs and outputs, compiled once
    for this machine; or why there is none.

    Raises: as `build_symbolic_kernel`.
    """
    chosen = target or Target.host()
    task = SearchTask(name, ComputeDAG(tensors), chosen, hardware_of(chosen, 1))
    kernel = build_symbolic_kernel(task, (), name)
    return kernel if isinstance(kernel, Unsupported) else KernelFunction(load_kernels([kernel])[name])


def _load_on_gpu(task: SearchTask, steps: Sequence[Step], name: str) -> CudaFunction:
    cuda = driver()
    here = cuda.devices()[0]
    target = target_on(task.target, here)
    mine = replace(task, target=target, hardware=hardware_of_gpu(here, target))
    return CudaFunction(cuda, build_kernel(mine, steps, name))


_LOADERS: dict[str, Callable[[SearchTask, Sequence[Step], str], KernelFunction | CudaFunction]] = {
    "llvm": lambda task, steps, name: KernelFunction(load_kernels([build_kernel(task, steps, name)])[name]),
    "cuda": _load_on_gpu,
}
