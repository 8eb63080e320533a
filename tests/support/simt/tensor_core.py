"""Simulates tensor-core statements, lane by lane, as the instruction set defines them.

A fault is whatever a GPU leaves undefined: a partial warp, a misaligned address, or a read of memory that an
asynchronous copy is still writing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler.ir.expr import Buffer, Expr
from retune.compiler.ir.tensor_core import (
    COLUMNS,
    HALF_STEP,
    MATRIX,
    PAIR,
    QUAD,
    ROW_BYTES,
    ROWS,
    SUM_ELEMENTS,
    WARP,
    AsyncCopy,
    CommitGroup,
    Instruction,
    LoadMatrix,
    Mma,
    ProxyFence,
    TensorStmt,
    TransposeQuad,
    WaitGroup,
    WarpgroupMma,
    WarpgroupWait,
)
from tests.support.simt.checked_memory import Array, Memory, Place
from tests.support.simt.sides import Side
from tests.support.simt.tags import Numbers
from tests.support.simt.warpgroups import Warpgroups, sum_position

_LANES = np.arange(WARP)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Asynchronous copies in flight.

    Thread `numbers[i]` has started to copy `values[i]` to element `places[i]`, in its commit group `groups[i]`.
    """

    memory: Memory
    numbers: Numbers
    groups: Numbers
    places: Numbers
    values: Array
    who: Numbers


class TensorUnit:
    """Executes tensor-core statements for the `count` threads of the blocks being simulated, and tracks their
    asynchronous copies.
    """

    def __init__(self, place: Place, count: int) -> None:
        self.place = place
        self.groups = np.zeros(count, np.int64)
        self.under_way: list[_Batch] = []
        self.warpgroups = Warpgroups(place, count)

    def execute(
        self,
        stmt: TensorStmt,
        numbers: Numbers,
        values: Callable[[Sequence[Expr]], list[Array]],
        side: Callable[[Buffer], Side],
        epochs: Numbers,
    ) -> None:
        """Execute a statement for the threads `numbers`; `values` are those of expressions, `side` tells of a buffer.

        Raises: KernelFaultError.
        """
        match stmt:
            case AsyncCopy():
                self.start(stmt, numbers, values, side)
            case CommitGroup():
                self.groups[numbers] += 1
            case WaitGroup():
                self.wait(stmt, numbers, epochs)
            case LoadMatrix():
                self.load(stmt, numbers, values, side)
            case Mma():
                self.multiply(stmt, numbers, values, side)
            case TransposeQuad():
                self.place.check_whole(numbers, WARP, "warp", "lane")
                held = self.fragment(side(stmt.source), values(stmt.source_indices), QUAD * PAIR)
                quads = held.reshape(-1, QUAD, QUAD, PAIR).swapaxes(1, 2)
                self.keep(side(stmt.target), values(stmt.indices), quads.reshape(len(numbers), -1))
            case ProxyFence():
                pass  # of all shared memory, see `_Blocks.tensor`
            case WarpgroupMma():
                self.warpgroups.start(stmt, numbers, values, side)
            case WarpgroupWait():
                self.warpgroups.wait(stmt, numbers, epochs)

    def start(
        self,
        stmt: AsyncCopy,
        numbers: Numbers,
        values: Callable[[Sequence[Expr]], list[Array]],
        side: Callable[[Buffer], Side],
    ) -> None:
        """Begin copies: what lies in global memory is read now, what arrives is seen later."""
        target, source, count = side(stmt.target), side(stmt.source), stmt.count
        size = count * target.memory.data.itemsize
        places = target.memory.neighbors(target.copies, values(stmt.indices), target.who, count)
        target.memory.check_aligned(places, target.who, size)
        wanted = np.broadcast_to(values([stmt.condition])[0], numbers.shape)
        read = np.zeros((len(numbers), count), target.memory.data.dtype)
        # Where the condition fails the source's index may be out of bounds, so it is not looked at.
        if wanted.any():
            at = [np.broadcast_to(index, numbers.shape)[wanted] for index in values(stmt.source_indices)]
            who = source.who[wanted]
            sources = source.memory.neighbors(source.copies[wanted], at, who, count)
            source.memory.check_aligned(sources, who, size)
            spread = (np.repeat(each, count) for each in (who, source.epochs[wanted]))
            read[wanted] = source.memory.read_at(sources.reshape(-1), *spread).reshape(-1, count)
        owners, when = (np.repeat(each, count) for each in (target.who, target.epochs))
        target.memory.start_copy(places.reshape(-1), owners, when)
        mine = np.repeat(numbers, count)
        self.under_way.append(
            _Batch(target.memory, mine, self.groups[mine], places.reshape(-1), read.reshape(-1), owners)
        )

    def wait(self, stmt: WaitGroup, numbers: Numbers, epochs: Numbers) -> None:
        """The copies of all but the youngest groups of every thread arrive."""
        waiting = np.zeros(self.groups.size, np.bool_)
        waiting[numbers] = True
        when = np.zeros(self.groups.size, np.int64)
        when[numbers] = epochs
        left: list[_Batch] = []
        for batch in self.under_way:
            # Complete are all committed groups but the youngest `pending`.
            done = waiting[batch.numbers] & (batch.groups < self.groups[batch.numbers] - stmt.pending)
            if done.any():
                places, values, who = (each[done] for each in (batch.places, batch.values, batch.who))
                batch.memory.end_copy(places, values, who, when[batch.numbers[done]])
            if not done.all():
                kept = (each[~done] for each in (batch.numbers, batch.groups, batch.places, batch.values, batch.who))
                left.append(_Batch(batch.memory, *kept))
        self.under_way = left

    def load(
        self,
        stmt: LoadMatrix,
        numbers: Numbers,
        values: Callable[[Sequence[Expr]], list[Array]],
        side: Callable[[Buffer], Side],
    ) -> None:
        """Every lane gets its elements of matrices whose rows the lanes point to."""
        self.place.check_whole(numbers, WARP, "warp", "lane")
        source, target = side(stmt.source), side(stmt.target)
        # Of one matrix only lanes 0 to 7 give row addresses, of two lanes 0 to 15 (PTX ISA, ldmatrix).
        pointing = np.arange(len(numbers)).reshape(-1, WARP)[:, : stmt.count * MATRIX].reshape(-1)
        at = [np.broadcast_to(index, numbers.shape)[pointing] for index in values(stmt.source_indices)]
        who = source.who[pointing]
        rows = source.memory.neighbors(source.copies[pointing], at, who, stmt.row_elements)
        source.memory.check_aligned(rows, who, ROW_BYTES)
        held = stmt.lane_elements
        line, place = np.meshgrid(np.arange(MATRIX), np.arange(stmt.row_elements), indexing="ij")
        # The fragment layout of ldmatrix (PTX ISA): of each row four lanes hold a register each.
        lane = place * 4 + line // held if stmt.transposed else line * 4 + place // held
        half = line % held if stmt.transposed else place % held
        shape = (len(numbers) // WARP, stmt.count, MATRIX, stmt.row_elements)
        getting, when = (
            np.broadcast_to(each.reshape(-1, WARP)[:, lane][:, None], shape).reshape(-1)
            for each in (source.who, source.epochs)
        )
        found = source.memory.read_at(rows.reshape(-1), getting, when).reshape(shape)
        loaded = np.empty((shape[0], WARP, stmt.count, held), found.dtype)
        loaded[:, lane, :, half] = np.moveaxis(found, 1, -1).transpose(1, 2, 0, 3)
        self.keep(target, values(stmt.indices), loaded.reshape(len(numbers), -1))

    def multiply(
        self,
        stmt: Mma,
        numbers: Numbers,
        values: Callable[[Sequence[Expr]], list[Array]],
        side: Callable[[Buffer], Side],
    ) -> None:
        """The warps add the products of their fragments to their sums, in float32."""
        self.place.check_whole(numbers, WARP, "warp", "lane")
        kind, sums = stmt.instruction, side(stmt.sums)
        left = self.fragment(side(stmt.left), values(stmt.left_at), kind.left_elements)
        right = self.fragment(side(stmt.right), values(stmt.right_at), kind.right_elements)
        held = self.fragment(sums, values(stmt.at), SUM_ELEMENTS)
        one = _matrix(left, (ROWS, kind.depth), [_places(kind, "left", e) for e in range(kind.left_elements)])
        other = _matrix(right, (kind.depth, COLUMNS), [_places(kind, "right", e) for e in range(kind.right_elements)])
        sum_places = [(np.asarray(row), np.asarray(column)) for row, column in map(_sum_places, range(SUM_ELEMENTS))]
        before = _matrix(held, (ROWS, COLUMNS), sum_places)
        # PTX leaves the order of the sum open, so NumPy's will do.
        after = before + np.matmul(_rounded(one, stmt.kind), _rounded(other, stmt.kind))
        spread = np.stack([after[:, row, column] for row, column in sum_places], axis=-1)
        self.keep(sums, values(stmt.at), spread.reshape(len(numbers), -1))

    @staticmethod
    def fragment(side: Side, at: Sequence[Array], count: int) -> Array:
        """What every lane holds, shape (warps, lanes, elements)."""
        places = side.memory.neighbors(side.copies, at, side.who, count)
        who, when = (np.repeat(each, count) for each in (side.who, side.epochs))
        return np.asarray(side.memory.read_at(places.reshape(-1), who, when).reshape(-1, WARP, count))

    @staticmethod
    def keep(side: Side, at: Sequence[Array], values: Array) -> None:
        """Every lane keeps `values` (threads, elements) from a place in its own memory on."""
        count = values.shape[1]
        places = side.memory.neighbors(side.copies, at, side.who, count)
        who, when = (np.repeat(each, count) for each in (side.who, side.epochs))
        side.memory.write_at(places.reshape(-1), values.reshape(-1), who, when)


def _places(kind: Instruction, side: str, element: int) -> tuple[Numbers, Numbers]:
    """Where in its matrix the element lies that each lane holds."""
    place = kind.left_position if side == "left" else kind.right_position
    pairs = [place(lane, element) for lane in range(WARP)]
    return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def _sum_places(element: int) -> tuple[Numbers, Numbers]:
    pairs = [sum_position(lane, element) for lane in range(WARP)]
    return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def _matrix(held: Array, shape: tuple[int, int], places: Sequence[tuple[Numbers, Numbers]]) -> Array:
    """The matrices, shape (warps, rows, columns), of what lanes hold."""
    found = np.empty((len(held), *shape), held.dtype)
    for element, (row, column) in enumerate(places):
        found[:, row, column] = held[:, :, element]
    return found


def _rounded(values: Array, kind: str) -> Array:
    """Factors as they are multiplied, in float32."""
    exact = values.astype(np.float32)
    if kind != "tf32":
        return exact
    bits = exact.view(np.uint32)
    # To the nearest, halves away from zero (cvt.rna): half of the last bit that is kept is added, the rest is cut.
    near = ((bits + np.uint32(HALF_STEP)) & np.uint32(0xFFFFFFFF - 2 * HALF_STEP + 1)).view(np.float32)
    # NaNs stay: a carry out of their mantissa would run through the ones of the exponent into the sign.
    return np.where(np.isfinite(exact), near, exact)
