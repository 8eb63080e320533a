"""SIMT simulator: executes GPU kernels from their loop IR on the CPU, and checks what a GPU would not report.

All threads of some blocks execute a statement at once, one lane of NumPy arrays per thread; a thread whose condition is
false is masked. These raise an error: races in shared and global memory, out-of-bounds accesses, reads of uninitialized
memory, barriers that not all threads of a block reach, shuffles that not all threads of a warp reach, and misaligned
vectors. Between barriers no execution order of threads is assumed, so no kernel passes because its threads happen to
run in lockstep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.errors import DefinitionError, LoweringError
from retune.compiler.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Not, Select, Var
from retune.compiler.ir.kernel import INDICES, DeviceFunction, Kernel
from retune.compiler.ir.numeric import BINARY, intrinsic
from retune.compiler.ir.stmt import (
    BLOCK_KINDS,
    THREAD_KINDS,
    Allocate,
    Barrier,
    Block,
    For,
    If,
    Invoke,
    Let,
    Shuffle,
    Stmt,
    Store,
)
from retune.compiler.ir.tensor_core import ProxyFence, TensorStmt
from tests.support.simt.checked_memory import Array, Memory, Place
from tests.support.simt.sides import Side
from tests.support.simt.tags import Numbers, Tags
from tests.support.simt.tensor_core import TensorUnit
from tests.support.simt.vectors import astray
from tests.support.simt.warps import missing, sources

MAX_LANES = 1 << 13
"""Threads that are executed at once: enough to make little of Python's own time, few enough for the cache."""


def execute(function: DeviceFunction, inputs: Sequence[Array], shared: Mapping[str, int] | None = None) -> list[Array]:
    """The outputs of `function` for arrays of the shapes and types of its inputs, in the order of its parameters.
    `shared` are the bytes of shared memory that the launches of kernels give a block, by name; where nothing is said,
    as many as the kernel asks for.

    Raises: DefinitionError for arrays that do not fit, KernelFaultError for what no GPU would answer for.
    """
    taken = function.params[: len(function.params) - function.outputs]
    arrays = [array for array in inputs if isinstance(array, np.ndarray)] if isinstance(inputs, Sequence) else []
    fit = [(array.shape, array.dtype.name) for array in arrays] == [(buffer.shape, buffer.dtype) for buffer in taken]
    if not isinstance(inputs, Sequence) or not fit or len(arrays) < len(inputs):
        wanted = ", ".join(f"{buffer}: {buffer.dtype}{list(buffer.shape)}" for buffer in taken)
        raise DefinitionError(f"{function.name}: the inputs must be {wanted}, as arrays of NumPy")
    place = Place(function.name, 1)
    memories = {buffer: Memory(buffer, place, given=array) for buffer, array in zip(taken, inputs, strict=True)}
    made = (*function.workspace, *function.params[len(taken) :])
    memories.update((buffer, Memory(buffer, place)) for buffer in made)
    # Overflow, NaNs and division by zero have results here, as in a kernel.
    with np.errstate(all="ignore"):
        for kernel in function.kernels:
            given = (shared or {}).get(kernel.name, kernel.dynamic_shared)
            _launch(kernel, memories, made, given)
    results = [memories[buffer] for buffer in function.params[len(taken) :]]
    for result in results:
        if not result.known.all():
            raise place.fault(f"element {int(np.argmin(result.known))} of the output {result.buffer} is never written")
    return [result.data.reshape(result.buffer.shape) for result in results]


def _launch(kernel: Kernel, memories: Mapping[Buffer, Memory], written: Sequence[Buffer], shared: int) -> None:
    place = Place(kernel.name, kernel.threads)
    for buffer, memory in memories.items():
        memory.place = place
        # Inputs are only read, so nothing can race.
        memory.tags = Tags(buffer.size, kernel.threads, blocks_meet=True) if buffer in written else None
    rooms = {}
    if kernel.dynamic_shared:
        starts = kernel.shared_offsets.items()
        rooms = {buffer: max(0, shared - start) // item_bytes(buffer.dtype) for buffer, start in starts}
    blocks, together = prod(kernel.grid), max(1, MAX_LANES // kernel.threads)
    for first in range(0, blocks, together):
        _Blocks(kernel, place, memories, rooms, first, min(together, blocks - first)).run()


@dataclass(frozen=True, slots=True)
class _Lanes:
    """The threads that execute a statement, by number within the blocks being simulated, and the values of
    their variables.
    """

    numbers: Numbers
    values: dict[Var, Array]

    def where(self, mask: Array) -> "_Lanes":
        """Those of the threads for which the mask holds."""
        if mask.all():
            return self
        # A value without dimensions is the same for all threads.
        values = {var: value[mask] if value.ndim else value for var, value in self.values.items()}
        return _Lanes(self.numbers[mask], values)

    def with_value(self, var: Var, value: Array) -> "_Lanes":
        """The same threads with one more variable."""
        return _Lanes(self.numbers, {**self.values, var: value})


class _Blocks:
    """Consecutive blocks of a launch, from block `first`, that are simulated together.

    `rooms` maps a shared buffer to the number of elements each block has memory for; for a buffer that is missing all
    of them fit.
    """

    def __init__(
        self,
        kernel: Kernel,
        place: Place,
        memories: Mapping[Buffer, Memory],
        rooms: Mapping[Buffer, int],
        first: int,
        count: int,
    ) -> None:
        self.kernel = kernel
        self.place = place
        self.rooms = rooms
        self.threads = kernel.threads
        self.first = first
        self.count = count
        self.epochs = np.ones(count, np.int64)
        self.memories = dict(memories)
        self.conditions: list[If] = []
        self.unit = TensorUnit(place, count * self.threads)

    def run(self) -> None:
        """Execute the kernel from its start to its end."""
        numbers = np.arange(self.count * self.threads, dtype=np.int64)
        values: dict[Var, Array] = {}
        rests = (self.first + numbers // self.threads, numbers % self.threads)
        for rest, kinds in zip(rests, (BLOCK_KINDS, THREAD_KINDS), strict=True):
            for kind in kinds:
                extent = self.kernel.sizes[kind]
                # x varies fastest, as CUDA numbers the threads of a block.
                values[INDICES[kind]], rest = rest % extent, rest // extent
        self.statement(self.kernel.body.body, _Lanes(numbers, values))

    def statement(self, stmt: Stmt, lanes: _Lanes) -> None:
        """Execute a statement for some threads."""
        match stmt:
            case Block():
                for inner in stmt.statements:
                    self.statement(inner, lanes)
            case For():
                self.check_vectors(stmt, lanes)
                # All threads are in the same iteration: without a barrier any order of theirs must do.
                for iteration in range(stmt.extent):
                    self.statement(stmt.body, lanes.with_value(stmt.var, np.asarray(iteration)))
            case Let():
                self.place.at(stmt)
                self.statement(stmt.body, lanes.with_value(stmt.var, self.value(stmt.value, lanes)))
            case If():
                self.branch(stmt, lanes)
            case Allocate():
                self.allocate(stmt.buffer, lanes)
                self.statement(stmt.body, lanes)
            case Store():
                self.store(stmt, lanes)
            case Barrier():
                self.barrier(lanes)
            case Shuffle():
                self.shuffle(stmt, lanes)
            case TensorStmt():
                self.tensor(stmt, lanes)
            case Invoke():
                raise LoweringError(f"{self.kernel.name}: the function {stmt.function} is called inside a GPU kernel")

    def check_vectors(self, loop: For, lanes: _Lanes) -> None:
        """The vectors that code moves at once, because their indices prove them aligned, are."""
        first = lanes.with_value(loop.var, np.asarray(0))
        found = astray(loop, lambda expr: self.value(expr, first), lanes.numbers.size)
        if found is not None:
            buffer, apart, place = found
            who = self.place.who(self.first * self.threads + int(lanes.numbers[place]))
            self.place.at(loop.body)
            raise self.place.fault(
                f"{who} moves a vector of {buffer} that does not start at a multiple of {apart} elements, in "
                f"{self.place.text()}"
            )

    def tensor(self, stmt: TensorStmt, lanes: _Lanes) -> None:
        """Copy asynchronously, or let the tensor cores work."""
        self.place.at(stmt)
        if isinstance(stmt, ProxyFence):
            for buffer, memory in self.memories.items():
                if buffer.scope == "shared":
                    memory.fence(self.first * self.threads + lanes.numbers)

        def side(buffer: Buffer) -> Side:
            return Side(self.memories[buffer], *self.whereabouts(buffer, lanes))

        epochs = self.epochs[lanes.numbers // self.threads]
        self.unit.execute(stmt, lanes.numbers, lambda exprs: [self.value(e, lanes) for e in exprs], side, epochs)

    def branch(self, stmt: If, lanes: _Lanes) -> None:
        """Execute the body for the threads for which the condition holds, if there are any."""
        self.place.at(stmt)
        taken = lanes.where(np.broadcast_to(self.value(stmt.condition, lanes), lanes.numbers.shape))
        if taken.numbers.size:
            self.conditions.append(stmt)
            self.statement(stmt.body, taken)
            self.conditions.pop()

    def allocate(self, buffer: Buffer, lanes: _Lanes) -> None:
        """A new buffer for every block or thread; what lay there before is undefined."""
        shared = buffer.scope == "shared"
        if buffer not in self.memories:
            copies = self.count if shared else self.count * self.threads
            tags = Tags(buffer.size * copies, self.threads, blocks_meet=False) if shared else None
            self.memories[buffer] = Memory(buffer, self.place, copies, tags=tags, room=self.rooms.get(buffer))
        else:
            self.memories[buffer].forget(np.unique(lanes.numbers // self.threads) if shared else lanes.numbers)

    def store(self, stmt: Store, lanes: _Lanes) -> None:
        """Write one element for every thread."""
        self.place.at(stmt)
        indices = [self.value(index, lanes) for index in stmt.indices]
        result = self.value(stmt.value, lanes)
        copies, who, epochs = self.whereabouts(stmt.buffer, lanes)
        self.memories[stmt.buffer].write(copies, indices, result, who, epochs)

    def whereabouts(self, buffer: Buffer, lanes: _Lanes) -> tuple[Numbers, Numbers, Numbers]:
        """For every thread the number of the copy of the buffer that is its own, its name, and its epoch."""
        blocks = lanes.numbers // self.threads
        match buffer.scope:
            case "shared":
                copies = blocks
            case "local" | "register":
                copies = lanes.numbers
            case _:
                copies = np.zeros_like(blocks)
        return copies, self.first * self.threads + lanes.numbers, self.epochs[blocks]

    def barrier(self, lanes: _Lanes) -> None:
        """All threads of a block, or none, come here; what they did before is done."""
        came = np.bincount(lanes.numbers // self.threads, minlength=self.count)
        torn = (came > 0) & (came < self.threads)
        if torn.any():
            start = int(np.argmax(torn)) * self.threads
            here = np.isin(np.arange(start, start + self.threads), lanes.numbers)
            there, away = (self.first * self.threads + start + int(np.argmax(each)) for each in (here, ~here))
            inside = f", inside `if {self.conditions[-1].condition}`" if self.conditions else ""
            raise self.place.fault(
                f"{self.place.who(there)} comes to a barrier that {self.place.who(away)} does not come to{inside}"
            )
        # An epoch for each barrier: two accesses race if they are of one epoch and different threads.
        self.epochs[came > 0] += 1

    def shuffle(self, stmt: Shuffle, lanes: _Lanes) -> None:
        """All threads of a warp, or none, come here and get a value of another one."""
        self.place.at(stmt)
        torn = missing(lanes.numbers, self.threads)
        if torn is not None:
            there, away = (self.place.who(self.first * self.threads + number) for number in torn)
            raise self.place.fault(
                f"{there} comes to a shuffle that {away}, of the same warp, does not come to: {self.place.text()}"
            )
        places, found = sources(lanes.numbers, self.threads, stmt.distance, stmt.width)
        values = np.broadcast_to(self.value(stmt.value, lanes), lanes.numbers.shape)[places]
        indices = [self.value(index, lanes) for index in stmt.indices]
        copies, who, epochs = self.whereabouts(stmt.buffer, lanes)
        self.memories[stmt.buffer].write(copies, indices, values, who, epochs)
        self.memories[stmt.buffer].lose(copies, indices, who, ~found)

    def value(self, expr: Expr, lanes: _Lanes) -> Array:
        """What an expression is, for every thread or, of no dimensions, for all of them."""
        match expr:
            case Const():
                return np.asarray(expr.value, expr.dtype)
            case Var():
                return lanes.values[expr]
            case Binary():
                return np.asarray(BINARY[expr.op](self.value(expr.lhs, lanes), self.value(expr.rhs, lanes)))
            case Not():
                return np.asarray(np.logical_not(self.value(expr.value, lanes)))
            case Cast():
                return self.value(expr.value, lanes).astype(expr.dtype)
            case Call():
                return intrinsic(expr.name, [self.value(arg, lanes) for arg in expr.args], expr.dtype)
            case Select():
                return self.choice(expr, lanes)
            case Load():
                indices = [self.value(index, lanes) for index in expr.indices]
                copies, who, epochs = self.whereabouts(expr.buffer, lanes)
                return self.memories[expr.buffer].read(copies, indices, who, epochs)
        raise LoweringError(f"{self.kernel.name}: a {type(expr).__name__} node has no meaning in a GPU kernel")

    def choice(self, expr: Select, lanes: _Lanes) -> Array:
        """A lazy choice: a thread reads only what it chooses."""
        chosen = np.broadcast_to(self.value(expr.condition, lanes), lanes.numbers.shape)
        if chosen.all():
            return self.value(expr.then, lanes)
        if not chosen.any():
            return self.value(expr.otherwise, lanes)
        # Each side only for the threads that take it: the other may lie out of bounds.
        result = np.empty(lanes.numbers.shape, expr.dtype)
        result[chosen] = self.value(expr.then, lanes.where(chosen))
        result[~chosen] = self.value(expr.otherwise, lanes.where(~chosen))
        return result
