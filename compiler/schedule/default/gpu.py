"""The default schedule of a compute graph on GPUs: fast to derive and correct, without search or measurement.

A stage without a reduction is inlined into its consumers, and a reduction is computed by the threads of its elementwise
consumer; every other stage is a kernel.

A thread computes one result, unless that leaves the GPU under-occupied, or loads of adjacent threads uncoalesced:

    rows       the input is contiguous along the reduction    blockIdx, threadIdx.y: results; threadIdx.x: the reduction
    columns    it is along the results, which are few         blockIdx, threadIdx.x: results; threadIdx.y: the reduction

In products with enough results, a thread computes a few rows, for which it reads the other factor once. A very long
reduction with very few results is split first, so that there are blocks for all parts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from retune.compiler.core.errors import ScheduleError
from retune.compiler.ir.affine import flat_index
from retune.compiler.ir.expr import Expr, const
from retune.compiler.ir.visit import substitute, walk
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.product_tiles import row_axis_of
from retune.compiler.schedule.inlining import inline_body
from retune.compiler.schedule.reads import consumers, is_read_by_function, single_elementwise_consumer
from retune.compiler.schedule.state import Annotation, IterKind, Root, State
from retune.compiler.schedule.steps import (
    Annotate,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    Fuse,
    Reorder,
    Rfactor,
    Split,
    Step,
)
from retune.compiler.te.reduction import Axis
from retune.compiler.te.tensor import ComputeOp, TensorRead

_THREADS = 128
"""Threads of a block: four warps, of which a multiprocessor runs many."""
_WARP = 32
_MOST_THREADS = 1024
# Four blocks of 128 threads on each of an H100's 132 multiprocessors.
_BUSY = 1 << 16
"""Threads that keep a large GPU busy."""
# Half of that.
_ENOUGH = 1 << 15
"""Threads that suffice if each has more work for it."""
_ROWS = (4, 7, 6, 5, 3, 2)
"""Rows that a thread computes: the first count that divides them."""
LEAST_ITERATIONS = 4
"""Least terms that a thread adds itself, so that joining the partial sums costs little in comparison."""
_MOST_JOINED = 512
"""Threads of a block that join columns, in shared memory."""
_PIECE, _MOST_PIECES = 1 << 12, 128
"""Least terms of a piece of a long reduction, and most pieces of all results."""
_NEAR = 4
"""Distance, in elements, up to which the reads of neighboring threads cost little more than neighbors."""


@dataclass(frozen=True, slots=True)
class _Spread:
    """A spread reduction: `results` of them by a block, along `along`, each by `width` threads along `across`."""

    results: int
    along: Annotation
    across: Annotation
    width: int


@dataclass(frozen=True, slots=True)
class _Rows:
    """Each thread computes `count` results along axis number `axis`."""

    axis: int
    count: int


def default_gpu_steps(dag: ComputeDAG) -> tuple[Step, ...]:
    state = _inline(State.initial(dag))
    number = len(state.stages)
    # Backwards: the reader, which comes later, decides where a reduction is computed.
    while number:
        number -= 1
        stage = state.stages[number]
        if not isinstance(stage.op, ComputeOp) or not isinstance(stage.location, Root):
            continue
        if stage.has_reduce_iter:
            state, number = _cut(state, number)
            if _rows_of(state, number) is None:
                state = _bound_reduction(state, number)
            else:
                # A write cache holds the sums of the rows in registers.
                state = _joint(state.apply(CacheWrite(number)), number, number + 1)
            continue
        read = _read_by_element(state, number)
        if read is not None:
            before = len(state.stages)
            state, read = _cut(state, read)
            number += len(state.stages) - before
        state = _bound(state, number, _THREADS, Annotation.THREAD_X) if read is None else _joint(state, read, number)
    return tuple(step for step in state.steps if isinstance(step, Step))


def _inline(state: State) -> State:
    """Stages without a reduction, except results, computed where they are read."""
    inlined: set[int] = set()
    for number, stage in enumerate(state.stages):
        read = bool(consumers(state, number)) and number not in state.dag.output_ids
        read = read and not is_read_by_function(state, number)
        if stage.is_compute and read and not stage.has_reduce_iter and len(stage.op.shapes) == 1:
            inlined.add(number)
    # From readers to producers: chains collapse into the last stage.
    for number in sorted(inlined, reverse=True):
        state = state.apply(ComputeInline(number))
    return state


def _cut(state: State, number: int) -> tuple[State, int]:
    """A very long reduction of few results as pieces and their join; returns the join's number."""
    results, terms = _sizes(state, number)
    # Pieces must be long, or the second kernel costs more than the blocks gain.
    most = min(_MOST_PIECES // results, terms // _PIECE)
    pieces = next((count for count in range(most, 1, -1) if terms % count == 0), 1)
    if pieces == 1:
        return state, number
    try:
        cut, loop = _fused_terms(state, number)
        cut = cut.apply(Split(number, loop, terms, (terms // pieces,))).apply(Rfactor(number, loop, loop))
    except ScheduleError:  # not every reduction can be done in two steps
        return state, number
    return cut, number + 1


def _bound_reduction(state: State, number: int) -> State:
    spread = _spread_of(state, number)
    if spread is None:
        return _bound(state, number, _THREADS, Annotation.THREAD_X)
    return _spread_out(_bound(state, number, spread.results, spread.along), number, spread)


def _joint(state: State, number: int, reader: int) -> State:
    """A reduction in the kernel of its elementwise reader."""
    spread, rows = _spread_of(state, number), _rows_of(state, number)
    if rows is not None:
        return _in_rows(state, number, reader, rows)
    if spread is None:
        state = _bound(state, reader, _THREADS, Annotation.THREAD_X)
    else:
        state = _spread_out(_bound(state, reader, spread.results, spread.along), number, spread)
    return _attach_to(state, number, reader)


def _attach_to(state: State, number: int, reader: int) -> State:
    """A stage inside the loops over blocks and threads of `reader`."""
    bound = [index for index, loop in enumerate(state.stages[reader].iters) if loop.annotation is not Annotation.NONE]
    return state.apply(ComputeAt(number, reader, bound[-1]))


def _in_rows(state: State, number: int, reader: int, rows: _Rows) -> State:
    """The same where each thread computes a few rows: the terms around these, which are kept in registers."""
    count, extent = len(_spatial(state, reader)), state.stages[reader].iters[rows.axis].extent
    assert isinstance(extent, int), "nothing has been split yet"
    state = state.apply(Split(reader, rows.axis, extent, (rows.count,)))
    inner = rows.axis + 1
    # The rows go innermost, inside the loops over threads: each thread has its own.
    state = state.apply(Reorder(reader, (*(loop for loop in range(count + 1) if loop != inner), inner)))
    state = _threads_along(state, reader, count, _THREADS, Annotation.THREAD_X)
    spatial = _spatial(state, number)
    terms = tuple(loop for loop in range(len(state.stages[number].iters)) if loop not in spatial)
    return _attach_to(state.apply(Reorder(number, (*terms, *spatial))), number, reader)


def _bound(state: State, number: int, threads: int, along: Annotation) -> State:
    """A stage whose results are spread over blocks, `threads` of them a block along `along`."""
    return _threads_along(state, number, len(_spatial(state, number)), threads, along)


def _threads_along(state: State, number: int, count: int, threads: int, along: Annotation) -> State:
    """The first `count` loops of a stage as one over blocks and one over threads."""
    if not count:
        return state
    if count > 1:
        state = state.apply(Fuse(number, tuple(range(count))))
    extent = state.stages[number].iters[0].extent
    if threads == 1:
        return state.apply(Annotate(number, 0, Annotation.BLOCK_X))
    # One block suffices.
    if not isinstance(extent, int) or extent <= threads:
        return state.apply(Annotate(number, 0, along))
    state = state.apply(Split(number, 0, extent, (threads,)))
    return state.apply(Annotate(number, 0, Annotation.BLOCK_X)).apply(Annotate(number, 1, along))


def _spread_out(state: State, number: int, spread: _Spread) -> State:
    """A reduction whose terms are spread over threads, neighbors over neighbors."""
    state, loop = _fused_terms(state, number)
    terms = _sizes(state, number)[1]
    state = state.apply(Split(number, loop, terms, (spread.width,)))
    return state.apply(Annotate(number, loop + 1, spread.across))


def _fused_terms(state: State, number: int) -> tuple[State, int]:
    """All reduction loops fused, and the number of the fused loop."""
    loops = tuple(index for index, loop in enumerate(state.stages[number].iters) if loop.kind is IterKind.REDUCTION)
    return (state.apply(Fuse(number, loops)) if len(loops) > 1 else state), loops[0]


def _rows_of(state: State, number: int) -> _Rows | None:
    """The rows of a product that a thread computes; None where each computes one result, or several share a result."""
    op = state.stages[number].op
    if _spread_of(state, number) is not None or len(op.shapes) > 1:
        return None
    axis = row_axis_of(state, number)
    if axis is None or axis < 0:
        return None
    extent, most = op.shape[axis], _sizes(state, number)[0] // _ENOUGH
    return next((_Rows(axis, count) for count in _ROWS if extent % count == 0 and count <= most), None)


def _spread_of(state: State, number: int) -> _Spread | None:
    """How a reduction is spread over threads; None where a thread computes each result alone."""
    results, terms = _sizes(state, number)
    wanted_threads = _power(-(-_BUSY // results))
    most = max(1, _power(terms // LEAST_ITERATIONS + 1) // 2)  # no more than that
    if terms >= _WARP and _reads_along_terms(state, number):
        # At least a warp along the terms: its loads of four bytes are a whole cache line.
        width = max(_WARP, min(wanted_threads, most, _MOST_THREADS))
        # One warp a reduction leaves room for four of them in a block.
        return _Spread(_THREADS // _WARP if width == _WARP else 1, Annotation.THREAD_Y, Annotation.THREAD_X, width)
    along = min(results, _WARP)
    width = min(wanted_threads, most, _MOST_JOINED // _power(along))
    return _Spread(along, Annotation.THREAD_X, Annotation.THREAD_Y, width) if width > 1 else None


def _reads_along_terms(state: State, number: int) -> bool:
    """Whether the reads that move with every term are contiguous along the terms, and no read along the results."""
    op = state.stages[number].op
    assert isinstance(op, ComputeOp), "inputs do not reduce"
    is_contiguous = False
    for strides in _strides(state, number):
        terms = [abs(stride) for axis, stride in strides.items() if axis in op.reduce_axes]
        if any(terms):
            if any(0 < abs(stride) <= _NEAR for axis, stride in strides.items() if axis in op.axes):
                return False
            is_contiguous = is_contiguous or 1 in terms
    return is_contiguous


def _strides(state: State, number: int) -> Iterator[dict[Axis, int]]:
    """The distance in elements between each read's first and second element along every axis."""
    op = state.stages[number].op
    assert isinstance(op, ComputeOp), "inputs read nothing"
    axes = [axis for axis in (*op.axes, *op.reduce_axes) if axis.extent > 1]
    for read in walk(inline_body(state, number)):
        if not isinstance(read, TensorRead):
            continue
        offsets = {}
        # By difference, from the origin one step along each axis: that needs no affine form of the indices.
        for moved_axis in (None, *axes):
            point: dict[Expr, Expr] = {axis: const(int(axis is moved_axis)) for axis in (*op.axes, *op.reduce_axes)}
            form = flat_index(read.tensor.shape, [substitute(index, point) for index in read.indices])
            if not form.terms:  # else another tensor says where
                offsets[moved_axis] = form.const
        if None in offsets:
            yield {axis: offsets[axis] - offsets[None] for axis in axes if axis in offsets}


def _read_by_element(state: State, reader: int) -> int | None:
    """The only reduction that `reader` reads element by element, if it is the only such reduction."""
    reductions = [
        number
        for number, stage in enumerate(state.stages)
        if stage.has_reduce_iter
        and isinstance(stage.op, ComputeOp)
        and len(stage.op.shapes) == 1
        and single_elementwise_consumer(state, number) == reader
    ]
    return reductions[0] if len(reductions) == 1 and _spatial(state, reader) else None


def _spatial(state: State, number: int) -> list[int]:
    iters = state.stages[number].iters
    return [index for index, loop in enumerate(iters) if loop.kind is IterKind.SPATIAL]


def _sizes(state: State, number: int) -> tuple[int, int]:
    """The number of results of a stage, and of the terms of each."""
    op = state.stages[number].op
    assert isinstance(op, ComputeOp), "an input is not computed"
    return prod(axis.extent for axis in op.axes), prod(axis.extent for axis in op.reduce_axes)


def _power(number: int) -> int:
    """The least power of two that is no less."""
    return 1 << max(0, number - 1).bit_length()
