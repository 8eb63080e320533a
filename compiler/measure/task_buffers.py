"""Buffers to run a task's kernels on, with checks of what a candidate left in them.

The buffers of a task are allocated once and serve all its candidates. Inputs are filled from a seed, or with given
arrays, and write-protected; every buffer is fenced (`retune.compiler.runtime.buffers`); outputs are poisoned before a
candidate computes them. Insufficient memory is an error before anything is allocated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.codegen.cache_flush import LINE, RANGES, flush_kernel
from retune.compiler.errors import ArtifactError, OptionError
from retune.compiler.measure.check import Expected, poison, random_input
from retune.compiler.packing import most_padded
from retune.compiler.runtime.artifact import ALIGNMENT, ArgSpec, Array, KernelArtifact
from retune.compiler.runtime.buffers import CANARY, FencedArray, aligned_array
from retune.compiler.runtime.loader import BoundKernel, load_kernels
from retune.compiler.runtime.machine import last_cache_bytes, require_memory

# Reading /proc/meminfo costs more than allocating less than this.
_LARGE = 64 << 20
"""From here on it is worth a look whether there is memory for a buffer."""


@dataclass(frozen=True, slots=True)
class TaskSetup:
    """What is known of a task beside its kernels: the terms of its sums and the float types that it rounds to (see
    `roundings_of`), the numbers of the inputs that are constants (weights), and inputs by number that must not be
    random.
    """

    terms: int = 1
    constants: tuple[int, ...] = ()
    inputs: Mapping[int, Array] = field(default_factory=dict)
    types: tuple[str, ...] = ()


@dataclass(slots=True)
class TaskBuffers:
    """The arguments of a task's kernels, and what its outputs should hold (empty when nothing is checked)."""

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
        """Inputs filled from `seed`, or as `setup` gives them, and write-protected; outputs as they come.

        Raises: MemoryError when there is not enough memory, OptionError when a given input does not fit.
        """
        copies = 3  # the buffers; numbers that are drawn in a wider type; what is expected and allowed
        require_memory(copies * sum(spec.nbytes for spec in specs), f"the buffers of {key[:60]}")
        arrays = tuple(FencedArray(spec.shape, spec.dtype) for spec in specs)
        for position, (spec, fenced) in enumerate(zip(specs, arrays, strict=True)):
            if not spec.is_output:
                given = setup.inputs.get(position)
                values = random_input(spec, seed, key, position) if given is None else _fitting(given, spec)
                fenced.array[...] = values
                # A candidate that writes to an input faults at once instead of spoiling those after it.
                fenced.protect(writable=False)
        return cls(specs, arrays, tuple(place for place in setup.constants if specs[place].nbytes))

    @property
    def nbytes(self) -> int:
        """Bytes held for this task."""
        expected = sum(output.values.nbytes + output.allowed.nbytes for output in self.expected)
        pools = sum(pool.nbytes for pool in self.pools.values())
        return sum(fenced.array.nbytes for fenced in (*self.arrays, *self.packed.values())) + expected + pools

    @property
    def outputs(self) -> list[Array]:
        """The output arrays, in order."""
        return [fenced.array for spec, fenced in zip(self.specs, self.arrays, strict=True) if spec.is_output]

    def bind(self, artifact: KernelArtifact, threads: int) -> BoundKernel:
        """The kernel, ready to run on these buffers; constants are packed the way it wants them.

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
        """Make sure that an output element which is not computed shows."""
        for place, array in enumerate(self.outputs):
            poison(array, self.expected[place].values if self.expected else None)

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

    def places_of_constants(self, pool_bytes: int) -> dict[int, list[int]]:
        """For every constant the addresses of copies of it, that make up `pool_bytes` together with those of the other
        constants: a kernel that goes through them finds each out of the caches.

        The copies are the constant as it is, not packed as a kernel wants it: they are for timing.
        """
        total = sum(self.arrays[place].array.nbytes for place in self.constants)
        places = {}
        for place in self.constants:
            array = self.arrays[place].array
            nbytes, room = array.nbytes, most_padded(array.size) * array.itemsize
            # Kernels assume aligned constants, so each copy begins at a multiple of the alignment; one that pads it
            # reads zeros after it.
            step = room + -room % ALIGNMENT
            # Every constant gets equally many copies, so their proportions are those of one call.
            count = max(2, -(-pool_bytes // max(total, 1)))
            if place not in self.pools or self.pools[place].nbytes < count * step:
                require_memory(count * step, "the copies of constants")
                pool = aligned_array((count, step), "uint8")
                pool[:, :nbytes] = array.reshape(-1).view("uint8")
                pool[:, nbytes:] = 0
                self.pools[place] = pool
            start = self.pools[place].ctypes.data
            places[place] = [start + number * step for number in range(count)]
        return places

    @property
    def flushed(self) -> list[Array]:
        """All arguments but the first; of a constant all its packed forms, or itself where it has none."""
        found: list[Array] = []
        for place, one in enumerate(self.arrays[1:], 1):
            packed = [held for (position, _), held in self.packed.items() if position == place]
            found.extend(held.array for held in packed or [one])
        return found

    def flusher(self) -> BoundKernel | None:
        """What takes all arguments but the first out of the caches, as far as they fit the flush kernel's table; None
        where the CPU has no such instruction.
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


def _fitting(given: Array, spec: ArgSpec) -> Array:
    """Raises: OptionError when the array is not what the argument takes."""
    if given.shape != spec.shape or given.dtype != np.dtype(spec.dtype):
        raise OptionError(
            f"input {spec.name} is {spec.dtype}{list(spec.shape)}, the array given for it is "
            f"{given.dtype.name}{list(given.shape)}"
        )
    return given


class Sweeper:
    """Goes through more memory than the caches hold: for CPUs without an instruction to flush them."""

    def __init__(self) -> None:
        # More than the caches hold, so that nothing of what was there before is left.
        self._scratch = np.zeros(2 * last_cache_bytes(), np.uint8)

    def __call__(self) -> None:
        self._scratch += 1
