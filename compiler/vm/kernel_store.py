"""A cache of kernels built in this process: a kernel built for one set of input shapes is reused for others.

The key of a kernel is its computation, target and transform steps.
"""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.codegen.build import build_kernel, build_symbolic_kernel
from retune.compiler.driver.compile_network import BuildError, ChosenProgram, build_in_process
from retune.compiler.graph.partition.partition import Alternative, Partition
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.loader import Kernel
from retune.compiler.schedule.steps import Step, dump_steps
from retune.compiler.schedule.task import SearchTask

# Eight hexadecimal digits: 32 bits tell the kernels of a process apart, and names stay readable.
_LETTERS, _DIGITS = 64, 8
K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class StoreUse:
    """How many kernels were asked for, and how many of them were built."""

    asked: int = 0
    built: int = 0


class KernelStore:
    """A least-recently-used cache of kernels."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._artifacts: OrderedDict[tuple[str, str], KernelArtifact] = OrderedDict()
        self._loaded: OrderedDict[str, tuple[KernelArtifact, Kernel]] = OrderedDict()
        self._lock = threading.Lock()
        self.use = StoreUse()

    def build(self, programs: Sequence[ChosenProgram]) -> list[KernelArtifact | BuildError]:
        """As `build_in_process`."""
        return [self._build(program) for program in programs]

    def build_symbolic(self, task: SearchTask, steps: Sequence[Step] | None = None) -> KernelArtifact | Unsupported:
        """The kernel of a task for all values of its symbols, if any, by default in its default schedule. Raises: as
        `build_symbolic_kernel`.
        """
        build = build_symbolic_kernel if task.symbols else build_kernel
        steps = default_steps_of(task) if steps is None else steps
        return self._get(task, dump_steps(steps), lambda: build(task, steps, task.name))

    def kernel(self, artifact: KernelArtifact) -> Kernel:
        """The kernel, loaded. Raises: ArtifactError when it cannot be."""
        with self._lock:
            loaded, kernel = self._loaded.get(artifact.name, (None, None))
            if kernel is None or loaded is not artifact:
                kernel = Kernel(artifact)
            self._keep(self._loaded, artifact.name, (artifact, kernel))
            return kernel

    def _build(self, program: ChosenProgram) -> KernelArtifact | BuildError:
        return self._get(program.task, dump_steps(program.steps), lambda: build_in_process([program])[0])

    def _get(self, task: SearchTask, steps: str, build: Callable[[], KernelArtifact | V]) -> KernelArtifact | V:
        """The kernel of a task, which is built if it is not there; other results of `build` are not kept."""
        key = (f"{task.identity} {task.name}", steps)
        with self._lock:
            artifact = self._artifacts.get(key)
            self.use.asked += 1
            self.use.built += artifact is None
        # Built without the lock: a build takes tens of ms. Two threads may build the same kernel, and either will do.
        if artifact is None:
            built = build()
            if not isinstance(built, KernelArtifact):
                return built
            artifact = built
        with self._lock:
            self._keep(self._artifacts, key, artifact)
        return artifact

    def _keep(self, table: OrderedDict[K, V], key: K, value: V) -> None:
        table[key] = value
        table.move_to_end(key)
        if len(table) > self._capacity:
            table.popitem(last=False)


STORE = KernelStore()
"""The kernels of this process."""


def named_by_content(cut: Partition) -> Partition:
    """The partition with names of kernels that tell what they compute, so that equal kernels of other graphs have them
    too, and different ones have not.
    """
    names = {task.name: _name(task) for task in cut.tasks}
    tasks = {task.name: replace(task, name=names[task.name]) for task in cut.tasks}
    calls = tuple(replace(call, name=names[call.name], task=tasks[call.name]) for call in cut.kernels)
    others = tuple(_rename(other) for other in cut.alternatives)
    return replace(cut, kernels=calls, tasks=tuple(tasks.values()), alternatives=others)


def _rename(other: Alternative) -> Alternative:
    return replace(other, task=replace(other.task, name=_name(other.task)))


def _name(task: SearchTask) -> str:
    digest = hashlib.sha256(task.identity.encode()).hexdigest()[:_DIGITS]
    return f"{task.name[:_LETTERS]}_{digest}"
