"""Buffers to run a task's kernels on, with checks of a candidate's writes.

The buffers of a task are allocated once and serve all its candidates. Inputs are filled from a seed, or with registered
arrays, and write-protected; every buffer is fenced (`retune.compiler.runtime.buffers`); outputs are poisoned before a
candidate computes them. Insufficient memory is an error before anything is allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.codegen.cache_flush import LINE, RANGES, flush_kernel
from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.core.packing import most_padded
from retune.compiler.measure.check import Expected, poison, random_input
from retune.compiler.runtime.artifact import ALIGNMENT, ArgSpec, Array, KernelArtifact
from retune.compiler.runtime.buffers import CANARY, FencedArray, aligned_array
from retune.compiler.runtime.loader import BoundKernel, load_kernels
from retune.compiler.runtime.threads.affinity import last_cache_bytes, require_memory

# Reading /proc/meminfo costs more than allocating less than this.
_LARGE = 64 << 20
"""The size from which on a buffer is worth a check of the free memory."""


@dataclass(frozen=True, slots=True)
class TaskSetup:
    """Facts about a task that its kernels do not show: the terms of its sums and the float types that it rounds to (see
    `roundings_of`), the numbers of the inputs that are constants (weights), and inputs by number that must not be
    random.
    """

    terms: int = 1
    constants: tuple[int, ...] = ()
    inputs: Mapping[int, Array] = field(default_factory=dict)
    types: tuple[str, ...] = ()


@dataclass(slots=True)
class TaskBuffers:
    """The arguments of a task's kernels, and the expected outputs (empty when nothing is checked)."""

    specs: tuple[ArgSpec, ...]
    arrays: tuple[FencedArray, ...]
    constants: tuple[int, ...] = ()
    expected: tuple[Expected, ...] = ()
    packed: dict[tuple[int, int], FencedArray] = field(default_factory=dict)
    """Packed constants, by number and elements: kernels pad them differently, and several are bound at a time."""
    pools: dict[int, Array] = field(default_factory=dict)
    workspace: FencedArray | None = None

    @classmethod
    def filled(cls, specs: tuple[ArgSpec, ...], seed: int, key: str, setup: TaskSetup) -> "TaskBuffers":
        """Inputs filled from `seed`, or from `setup`, and write-protected; outputs uninitialized.

        Raises: MemoryError when there is not enough memory, OptionError when an input of `setup` does not fit.
        """
        copies = 3  # the buffers; random numbers in a wider type; expected values and tolerances
        require_memory(copies * sum(spec.nbytes for spec in specs), f"the buffers of {key[:60]}")
        arrays = tuple(FencedArray(spec.shape, spec.dtype) for spec in specs)
        for position, (spec, fenced) in enumerate(zip(specs, arrays, strict=True)):
            if not spec.is_output:
                special = setup.inputs.get(position)
                values = random_input(spec, seed, key, position) if special is None else _fitting(special, spec)
                fenced.array[...] = values
                # A candidate that writes to an input faults at once instead of spoiling the inputs of later candidates.
                fenced.protect(writable=False)
        return cls(specs, arrays, tuple(index for index in setup.constants if specs[index].nbytes))

    @property
    def nbytes(self) -> int:
        """Bytes allocated for this task."""
        expected = sum(output.values.nbytes + output.allowed.nbytes for output in self.expected)
        pools = sum(pool.nbytes for pool in self.pools.values())
        return sum(fenced.array.nbytes for fenced in (*self.arrays, *self.packed.values())) + expected + pools

    @property
    def outputs(self) -> list[Array]:
        return [fenced.array for spec, fenced in zip(self.specs, self.arrays, strict=True) if spec.is_output]

    def bind(self, artifact: KernelArtifact, threads: int) -> BoundKernel:
        """The kernel, ready to run on these buffers; constants are packed as it requires.

        Raises: ArtifactError when it cannot be loaded or takes other arguments than the task's default kernel.
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
        """Fill the outputs so that elements that are not computed show."""
        for index, array in enumerate(self.outputs):
            poison(array, self.expected[index].values if self.expected else None)

    def damage(self) -> str:
        """The argument that was written out of bounds, as text; empty when none was. The damage is undone."""
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
        """The differences of the outputs from the expected values, as text; empty if there are none."""
        texts = (
            output.mismatch(array) for output, array in zip(self.expected, self.outputs, strict=bool(self.expected))
        )
        return "\n".join(text for text in texts if text)

    def addresses_of_constants(self, pool_bytes: int) -> dict[int, list[int]]:
        """For every constant the addresses of copies of it, which make up `pool_bytes` together with those of the other
        constants: a kernel that cycles through them finds each outside the caches.

        The copies are not packed as a kernel requires: they are for timing.
        """
        total = sum(self.arrays[index].array.nbytes for index in self.constants)
        addresses = {}
        for index in self.constants:
            array = self.arrays[index].array
            nbytes, room = array.nbytes, most_padded(array.size) * array.itemsize
            # Kernels assume aligned constants, so each copy begins at a multiple of the alignment; a kernel that pads
            # the constant reads zeros after it.
            step = room + -room % ALIGNMENT
            # Every constant gets equally many copies, so their proportions are those of one call.
            count = max(2, -(-pool_bytes // max(total, 1)))
            if index not in self.pools or self.pools[index].nbytes < count * step:
                require_memory(count * step, "the copies of constants")
                pool = aligned_array((count, step), "uint8")
                pool[:, :nbytes] = array.reshape(-1).view("uint8")
                pool[:, nbytes:] = 0
                self.pools[index] = pool
            start = self.pools[index].ctypes.data
            addresses[index] = [start + number * step for number in range(count)]
        return addresses

    @property
    def flushed(self) -> list[Array]:
        """All arguments but the first; of a constant all its packed forms, or itself where it has none."""
        arrays: list[Array] = []
        for index, fenced in enumerate(self.arrays[1:], 1):
            packed = [form for (position, _), form in self.packed.items() if position == index]
            arrays.extend(form.array for form in packed or [fenced])
        return arrays

    def flusher(self) -> BoundKernel | None:
        """A kernel that evicts all arguments but the first from the caches, as far as they fit the flush kernel's
        table; None where the CPU has no such instruction.
        """
        kernel = flush_kernel()
        if kernel is None:
            return None
        table = aligned_array((RANGES, 2), "int64")
        table[...] = 0
        for row, array in enumerate(self.flushed[:RANGES]):
            table[row] = array.ctypes.data, -(-array.nbytes // LINE)
        return load_kernels([kernel])[kernel.name].bind([table], threads=1)

    def _argument(self, position: int, spec: ArgSpec) -> Array:
        original = self.arrays[position].array
        if spec.packing is None:
            return original
        key = position, spec.size
        if key not in self.packed:
            self.packed[key] = FencedArray((spec.size,), spec.dtype)
        fenced = self.packed[key]
        fenced.protect(writable=True)
        spec.packing.pack(original, out=fenced.array)
        fenced.protect(writable=False)
        return fenced.array

    def _fresh_workspace(self, nbytes: int) -> Array:
        if self.workspace is None or self.workspace.array.nbytes != nbytes:
            if nbytes >= _LARGE:
                require_memory(nbytes, "the temporary buffers of the kernel")
            self.workspace = FencedArray((nbytes,), "uint8")
        # Stale contents of an earlier candidate could make a kernel right that forgets to initialize.
        self.workspace.array.fill(CANARY)
        return self.workspace.array


def _fitting(array: Array, spec: ArgSpec) -> Array:
    """Raises: OptionError when the array does not fit the argument."""
    if array.shape != spec.shape or array.dtype != np.dtype(spec.dtype):
        raise OptionError(
            f"input {spec.name} is {spec.dtype}{list(spec.shape)}, the array given for it is "
            f"{array.dtype.name}{list(array.shape)}"
        )
    return array


class Sweeper:
    """Touches more memory than the caches hold: for CPUs without an instruction to flush them."""

    def __init__(self) -> None:
        # More than the caches hold, so that nothing of their contents is left.
        self._scratch = np.zeros(2 * last_cache_bytes(), np.uint8)

    def __call__(self) -> None:
        self._scratch += 1
