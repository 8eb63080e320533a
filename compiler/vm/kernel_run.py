"""Runs a sequence of kernels in one native call, without the interpreter in between.

An argument is a constant, or an offset in one of a few *slots*, whose addresses come with every call; only addresses
that differ from the last call's are written again.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import address, aligned_array
from retune.compiler.runtime.loader import BoundKernel, Kernel
from retune.compiler.runtime.sequence import KernelSequence


@dataclass(frozen=True, slots=True)
class SlotAddress:
    """Where an argument lies: so many bytes, a multiple of 64, from the beginning of a slot."""

    slot: int
    offset: int = 0


Operand = SlotAddress | Array
Note = Callable[[str, float], None]
"""Told the name of something that ran and the seconds that it took."""


class Workspace:
    """Memory that kernels use while they run, one for all of them: they run one after the other."""

    def __init__(self) -> None:
        self._array = aligned_array((ALIGNMENT,), "uint8")
        self._nbytes = ALIGNMENT
        self._address = address(self._array)

    def array(self, nbytes: int) -> Array:
        """Memory of at least so many bytes. Raises: ArtifactError when there is none."""
        if nbytes > self._nbytes:
            self._array = aligned_array((nbytes,), "uint8")
            self._nbytes = nbytes
            self._address = address(self._array)
        return self._array

    def address(self, nbytes: int) -> int:
        """Where memory of at least so many bytes begins, until more is asked for. Raises: as `array`."""
        if nbytes > self._nbytes:
            self.array(nbytes)
        return self._address


class KernelRun:
    """Kernels, one after the other."""

    def __init__(self, calls: Sequence[tuple[Kernel, Sequence[Operand]]], threads: int, workspace: Workspace) -> None:
        """`calls` are kernels, each with its arguments."""
        self._calls = tuple((kernel, tuple(operands)) for kernel, operands in calls)
        self._threads = threads
        self._workspace = workspace
        self._addresses: list[int] = []
        self._uses: list[list[tuple[Callable[[int, int], None], int, int]]] = []
        self._bound: list[BoundKernel] = []
        self._sequence: KernelSequence | None = None

    def __call__(self, addresses: Sequence[int], note: Note | None = None) -> None:
        """Run all; slot number i begins at `addresses[i]`, a list, and what lies there is large enough. With `note`
        each kernel runs in its own call, and is timed.

        Raises: ArtifactError when an address is no multiple of 64, when a kernel fails or, the first time, when what is
        written overlaps another argument.
        """
        if self._sequence is None:
            self._sequence = self._bind(addresses)
        # Comparing a few integers costs less than writing the addresses of every argument again.
        elif addresses != self._addresses:
            self._move(addresses)
        if note is None:
            self._sequence()
        else:
            self._run_timed(note)

    def _run_timed(self, note: Note) -> None:
        for (kernel, _), bound in zip(self._calls, self._bound, strict=True):
            start = time.perf_counter()
            bound()
            note(kernel.artifact.name, time.perf_counter() - start)

    def _move(self, addresses: Sequence[int]) -> None:
        for slot, (start, before) in enumerate(zip(addresses, self._addresses, strict=True)):
            if start != before:
                if start % ALIGNMENT:
                    raise ArtifactError(f"an array of a kernel begins at {start:#x}, no multiple of {ALIGNMENT}")
                for move, number, offset in self._uses[slot]:
                    move(number, start + offset)
                self._addresses[slot] = start

    def _bind(self, addresses: Sequence[int]) -> KernelSequence:
        self._uses = [[] for _ in addresses]
        nbytes = max((kernel.artifact.workspace_bytes for kernel, _ in self._calls), default=0)
        workspace = self._workspace.array(nbytes) if nbytes else 0
        self._bound = []
        for kernel, operands in self._calls:
            buffers = [
                addresses[operand.slot] + operand.offset if isinstance(operand, SlotAddress) else operand
                for operand in operands
            ]
            # Checked here once; a move keeps sizes and types, which the callers have checked, so that only places
            # differ.
            bound = kernel.bind([*buffers, workspace], self._threads)
            for number, operand in enumerate(operands):
                if isinstance(operand, SlotAddress):
                    self._uses[operand.slot].append((bound.move, number, operand.offset))
            self._bound.append(bound)
        self._addresses = list(addresses)
        return KernelSequence(self._bound)
