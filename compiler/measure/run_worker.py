"""In: kernels of a task. Out: what they cost and whether they are right. Always: runs inside the one worker
process that times.

The buffers of a task are made once and serve all its candidates: inputs are filled from a seed and
write-protected, every buffer is fenced (`compiler.runtime.buffers`), outputs are poisoned before a candidate
computes them. The untuned kernel runs first, and what it computes is what every candidate must compute.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.errors import ArtifactError, MeasureError
from compiler.measure.attribution import STARTED
from compiler.measure.check import Expected, poison, random_input
from compiler.measure.options import MeasureOptions
from compiler.measure.record import MeasureStatus
from compiler.measure.results import MeasureResult, describe
from compiler.runtime.affinity import bind_process
from compiler.runtime.artifact import ArgSpec, Array, KernelArtifact
from compiler.runtime.buffers import CANARY, FencedArray
from compiler.runtime.loader import BoundKernel, load_kernels
from compiler.runtime.openmp import openmp_runtime
from compiler.runtime.timing import TimeEvaluator

_KEPT_BYTES = 1 << 30


@dataclass(slots=True)
class TaskBuffers:
    """The arguments of a task's kernels, and what its outputs should hold (empty when nothing is checked)."""

    specs: tuple[ArgSpec, ...]
    arrays: tuple[FencedArray, ...]
    expected: tuple[Expected, ...] = ()
    packed: dict[int, FencedArray] = field(default_factory=dict)
    workspace: FencedArray | None = None

    @classmethod
    def random(cls, specs: tuple[ArgSpec, ...], seed: int, key: str) -> "TaskBuffers":
        """Inputs filled from `seed` and write-protected, outputs as they come."""
        arrays = tuple(FencedArray(spec.shape, spec.dtype) for spec in specs)
        for position, (spec, fenced) in enumerate(zip(specs, arrays, strict=True)):
            if not spec.is_output:
                fenced.array[...] = random_input(spec, seed, key, position)
                fenced.protect(writable=False)
        return cls(specs, arrays)

    @property
    def nbytes(self) -> int:
        """Bytes held for this task."""
        expected = sum(output.values.nbytes + output.allowed.nbytes for output in self.expected)
        return sum(fenced.array.nbytes for fenced in (*self.arrays, *self.packed.values())) + expected

    @property
    def outputs(self) -> list[Array]:
        """The output arrays, in order."""
        return [fenced.array for spec, fenced in zip(self.specs, self.arrays, strict=True) if spec.is_output]

    def bind(self, artifact: KernelArtifact, threads: int) -> BoundKernel:
        """The kernel, ready to run on these buffers; constants are packed the way it wants them.

        Raises: ArtifactError when it cannot be loaded or takes other arguments than the task's untuned kernel.
        """
        kernel = load_kernels([artifact])[artifact.name]
        if [(arg.shape, arg.dtype, arg.is_output) for arg in artifact.args] != [
            (spec.shape, spec.dtype, spec.is_output) for spec in self.specs
        ]:
            raise ArtifactError(f"the kernel takes {artifact.args}, the task has {self.specs}")
        buffers = [self._argument(position, spec) for position, spec in enumerate(artifact.args)]
        if artifact.workspace_bytes:
            buffers.append(self._fresh_workspace(artifact.workspace_bytes))
        return kernel.bind(buffers, threads)

    def poison_outputs(self) -> None:
        """Make sure that an output element which is not computed shows."""
        for array in self.outputs:
            poison(array)

    def damage(self) -> str:
        """Which argument was written out of bounds, in words; empty when none was. The damage is undone."""
        named = [(spec.name, fenced) for spec, fenced in zip(self.specs, self.arrays, strict=True)]
        if self.workspace is not None:
            named.append(("workspace", self.workspace))
        texts = []
        for name, fenced in named:
            if text := fenced.damage():
                texts.append(f"{name}: {text}")
                fenced.repair()
        return f"out of bounds: {'; '.join(texts)}" if texts else ""

    def mismatch(self) -> str:
        """How the outputs differ from what they should hold, in words; empty when they do not."""
        texts = (
            output.mismatch(array) for output, array in zip(self.expected, self.outputs, strict=bool(self.expected))
        )
        return "\n".join(text for text in texts if text)

    def _argument(self, position: int, spec: ArgSpec) -> Array:
        original = self.arrays[position].array
        if spec.packing is None:
            return original
        if position not in self.packed:
            self.packed[position] = FencedArray((spec.size,), spec.dtype)
        fenced = self.packed[position]
        fenced.protect(writable=True)
        spec.packing.pack(original, out=fenced.array)
        fenced.protect(writable=False)
        return fenced.array

    def _fresh_workspace(self, nbytes: int) -> Array:
        if self.workspace is None or self.workspace.array.nbytes != nbytes:
            self.workspace = FencedArray((nbytes,), "uint8")
        self.workspace.array.fill(CANARY)
        return self.workspace.array


_tasks: OrderedDict[str, TaskBuffers] = OrderedDict()


def set_up(processors: tuple[int, ...]) -> None:
    """Bind this process to `processors` and load the OpenMP runtime. Raises: ArtifactError when there is none."""
    bind_process(processors)
    openmp_runtime()


def knows(key: str) -> bool:
    """Whether this worker has the buffers of the task of that key."""
    return key in _tasks


def prepare(key: str, pattern: KernelArtifact, operations: float, options: MeasureOptions) -> None:
    """Make the buffers of a task; `pattern` is its untuned kernel, run here for what it computes when answers
    are checked.

    `operations` is the number of arithmetic operations per output element.

    Raises: ArtifactError when the untuned kernel cannot be run or writes out of bounds.
    """
    buffers = TaskBuffers.random(pattern.args, options.seed, key)
    if options.check:
        buffers.poison_outputs()
        buffers.bind(pattern, options.threads)()
        if damage := buffers.damage():
            raise ArtifactError(f"the untuned kernel writes {damage}")
        names = [spec.name for spec in pattern.outputs]
        buffers.expected = tuple(
            Expected.of(name, np.array(array), operations, options.tolerance_factor)
            for name, array in zip(names, buffers.outputs, strict=True)
        )
    _tasks[key] = buffers
    while len(_tasks) > 1 and sum(task.nbytes for task in _tasks.values()) > _KEPT_BYTES:
        _tasks.popitem(last=False)


def run_stream(
    key: str, artifacts: Sequence[KernelArtifact], best_seconds: float, options: MeasureOptions
) -> Iterator[str | MeasureResult]:
    """STARTED, then one result per kernel. `best_seconds` is the best cost known for the task, infinite for none."""
    if key not in _tasks:
        raise MeasureError("this worker was replaced before it was told of the task; ask again")
    buffers = _tasks[key]
    _tasks.move_to_end(key)
    yield STARTED
    for artifact in artifacts:
        begun = time.perf_counter()
        costs, status, error = _run(buffers, artifact, best_seconds, options)
        best_seconds = min(best_seconds, *costs, math.inf)
        yield MeasureResult(costs, status, error, time.perf_counter() - begun)


def _run(
    buffers: TaskBuffers, artifact: KernelArtifact, best_seconds: float, options: MeasureOptions
) -> tuple[tuple[float, ...], MeasureStatus, str]:
    try:
        kernel = buffers.bind(artifact, options.threads)
    except Exception as failure:  # a candidate that cannot be loaded is a result
        return (), MeasureStatus.COMPILE_DEVICE, describe(failure)
    timer = TimeEvaluator(
        number=options.number,
        repeat=options.repeat,
        min_repeat_ms=options.min_repeat_ms,
        cooldown_ms=options.cooldown_ms,
        flush_bytes=options.flush_bytes,
    )
    try:
        buffers.poison_outputs()
        kernel()
        if damage := buffers.damage():
            return (), MeasureStatus.RUNTIME_DEVICE, damage
        if mismatch := buffers.mismatch():
            return (), MeasureStatus.WRONG_ANSWER, mismatch
        limit = best_seconds * options.give_up_factor
        costs = timer(kernel, warm_up=False, give_up_above=limit).results
        if damage := buffers.damage():
            return (), MeasureStatus.RUNTIME_DEVICE, damage
        if mismatch := buffers.mismatch():  # threads in a race are not wrong every time
            return (), MeasureStatus.WRONG_ANSWER, f"right at first, later not: {mismatch}"
    except Exception as failure:  # so is one that fails while it runs
        return (), MeasureStatus.RUNTIME_DEVICE, describe(failure)
    return costs, MeasureStatus.OK, ""
