"""Schedule primitives: functions that append one transform step to a state and return the new state and its handles.

The given state is not changed.

A stage is given by its number, its name, the tensor it computes, or the operation; a loop by its number from the
outermost, its name, or the `Iterator` that an earlier call returned. Handles stay valid when stages are added. Raises:
every function raises ScheduleError if the step does not apply, naming the stage, the loop and a remedy.
"""

from collections.abc import Iterable, Sequence
from operator import index
from typing import TypeVar

import numpy as np

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.state import ANNOTATION_TEXT, Annotation, Iterator, Number, State
from retune.compiler.schedule.steps import (
    Annotate,
    AsMatmul,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Pipeline,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    StorageAlign,
)
from retune.compiler.te.tensor import Operation, Tensor

StageRef = int | str | Tensor | Operation
LoopRef = int | str | Iterator

_Item = TypeVar("_Item")
_MOST = 1 << 62
_THREADS = {ANNOTATION_TEXT[kind]: kind for kind in Annotation if Annotation.VTHREAD <= kind <= Annotation.THREAD_Z}


def _whole(what: str, value: object) -> int:
    """An integer of any type, small enough to count elements with."""
    if not isinstance(value, (int, np.integer)) or abs(index(value)) > _MOST:
        raise ScheduleError(f"{what} must be an integer, of 62 bits at most; got {value!r}")
    return index(value)


def _list(what: str, values: Iterable[_Item]) -> tuple[_Item, ...]:
    if not isinstance(values, Iterable) or isinstance(values, Tensor):
        raise ScheduleError(f"{what} must be a list; got {values!r}")
    return tuple(values)


def _length(value: Number | None) -> Number | None:
    """A tile size: a number, an array with one entry a program, or None if not chosen yet."""
    family = value is None or (isinstance(value, np.ndarray) and value.ndim > 0)
    return value if family else _whole("a length", value)


def stage_number(state: State, stage: StageRef) -> int:
    """The number of a stage. Raises: ScheduleError for an unknown name, or a name of several stages."""
    if not isinstance(stage, (str, Tensor, Operation)):
        number = _whole("a stage that is no name, tensor or operation", stage)
        state.stage(number)
        return number
    nodes = state.dag.nodes
    if isinstance(stage, str):
        matches = [number for number, node in enumerate(nodes) if node.op.name == stage]
        matches = matches or [number for number, node in enumerate(nodes) if any(t.name == stage for t in node.tensors)]
    else:
        matches = [
            number
            for number, node in enumerate(nodes)
            if stage in node.tensors or node.op is stage or node.tensor.op is stage
        ]
    if len(matches) == 1:
        return matches[0]
    name = stage if isinstance(stage, str) else stage.name
    if matches:
        raise ScheduleError(f"the stages {', '.join(map(str, matches))} are all called {name}; say which by its number")
    raise ScheduleError(f"there is no stage {name}; stages: {', '.join(node.op.name for node in nodes)}")


def loop_number(state: State, stage: StageRef, loop: LoopRef) -> int:
    loops_stage = state.stage(stage_number(state, stage))
    if not isinstance(loop, (str, Iterator)):
        return _whole("a loop that is no name or iterator", loop)
    name = loop if isinstance(loop, str) else loop.name
    for number, iterator in enumerate(loops_stage.iters):
        if iterator.name == name:
            return number
    names = ", ".join(iterator.name for iterator in loops_stage.iters) or "none"
    raise ScheduleError(f"{loops_stage.op.name}: there is no loop {name}; its loops: {names}")


def _loops(state: State, stage: int, first: int, count: int) -> tuple[Iterator, ...]:
    return state.stages[stage].iters[first : first + count]


def split(
    state: State, stage: StageRef, loop: LoopRef, lengths: Sequence[Number | None], inner_to_outer: bool = True
) -> tuple[State, tuple[Iterator, ...]]:
    """Tile a loop; returns its parts, outermost first.

    `lengths` are the extents of all parts but the first, or but the last when `inner_to_outer` is False; None is a
    tile size still to be chosen. A length that does not divide the extent leaves iterations that are skipped.

    before: for i in 512: body(i)
    after (lengths 8, 2): for i.0 in 32: for i.1 in 8: for i.2 in 2: body((i.0 * 8 + i.1) * 2 + i.2)
    """
    number, index = stage_number(state, stage), loop_number(state, stage, loop)
    known = state.stages[number].iters[index : index + 1]
    extent = known[0].extent if known else None
    parts = tuple(map(_length, _list("the lengths", lengths)))
    # Records hold the extent, with 0 if unknown, as TVM's do.
    after = state.apply(Split(number, index, extent if isinstance(extent, int) else 0, parts, inner_to_outer))
    return after, _loops(after, number, index, len(parts) + 1)


def follow_split(
    state: State, stage: StageRef, loop: LoopRef, source_step: int, n_split: int
) -> tuple[State, tuple[Iterator, ...]]:
    """Tile a loop as step number `source_step` did, into `n_split` + 1 parts; the innermost part gets the remaining
    factors.

        before: step 0 split j by (2, 4, 8);  for i in 512: body(i)
        after (n_split 2): for i.0: for i.1 in 2: for i.2 in 32: body(i)
    """
    number, index = stage_number(state, stage), loop_number(state, stage, loop)
    source, count = _whole("the number of a step", source_step), _whole("the number of parts", n_split)
    after = state.apply(FollowSplit(number, index, source, count))
    return after, _loops(after, number, index, n_split + 1)


def follow_fused_split(
    state: State, stage: StageRef, loop: LoopRef, source_steps: Sequence[int], level: int, by_factor: bool = True
) -> tuple[State, tuple[Iterator, ...]]:
    """Split a loop in two by the product of length number `level` of several earlier splits.

    before: steps 0 and 1 split by (2, 4) and (8, 16);  for i in 512: body(i)
    after (level 0): for i.0 in 32: for i.1 in 16: body(i)      with `by_factor` False: i.0 runs over 16, i.1 over 32
    """
    number, at = stage_number(state, stage), loop_number(state, stage, loop)
    sources = tuple(_whole("the number of a step", step) for step in _list("the steps", source_steps))
    after = state.apply(FollowFusedSplit(number, at, sources, _whole("the level", level), by_factor))
    return after, _loops(after, number, at, 2)


def fuse(state: State, stage: StageRef, loops: Sequence[LoopRef]) -> tuple[State, Iterator]:
    """Fuse neighboring loops. Without loops: add a loop of one iteration around a stage without spatial loops.

    before: for i in 8: for j in 16: body(i, j)
    after:  for i@j@ in 128: body(i@j@ // 16, i@j@ % 16)
    """
    number = stage_number(state, stage)
    indices = tuple(loop_number(state, number, loop) for loop in _list("the loops", loops))
    after = state.apply(Fuse(number, indices))
    return after, after.stages[number].iters[indices[0] if indices else 0]


def reorder(state: State, stage: StageRef, order: Sequence[LoopRef]) -> State:
    """Permute the loops; every loop is named once, outermost first.

    before: for i: for j: for k: body      after (i, k, j): for i: for k: for j: body
    """
    number = stage_number(state, stage)
    loops = _list("the order", order)
    return state.apply(Reorder(number, tuple(loop_number(state, number, loop) for loop in loops)))


def _annotate(state: State, stage: StageRef, loop: LoopRef, annotation: Annotation) -> tuple[State, Iterator]:
    number, index = stage_number(state, stage), loop_number(state, stage, loop)
    after = state.apply(Annotate(number, index, int(annotation)))
    return after, after.stages[number].iters[index]


def parallel(state: State, stage: StageRef, loop: LoopRef) -> tuple[State, Iterator]:
    """Run the iterations of an outermost loop on several threads.

    before: for i: body(i)      after: parallel i: body(i)
    """
    return _annotate(state, stage, loop, Annotation.PARALLEL)


def vectorize(state: State, stage: StageRef, loop: LoopRef) -> tuple[State, Iterator]:
    """Run the iterations of a spatial loop in the lanes of a vector.

    before: for j in 16: body(j)      after: vectorize j in 16: body(j)
    """
    return _annotate(state, stage, loop, Annotation.VECTORIZE)


def unroll(state: State, stage: StageRef, loop: LoopRef, max_unroll: int = -1) -> tuple[State, Iterator]:
    """Replace a loop by its copies, unless it is known to be longer than `max_unroll` (-1: whatever its length).

    before: for j in 4: body(j)      after: body(0); body(1); body(2); body(3)
    """
    number, at = stage_number(state, stage), loop_number(state, stage, loop)
    extent = state.stages[number].iters[at].extent if 0 <= at < len(state.stages[number].iters) else None
    # As in TVM, a loop that is too long stays as it is and no step is recorded.
    if _whole("the longest loop", max_unroll) != -1 and isinstance(extent, int) and extent > max_unroll:
        return state, state.stages[number].iters[at]
    return _annotate(state, number, at, Annotation.UNROLL)


def bind(state: State, stage: StageRef, loop: LoopRef, thread: str) -> tuple[State, Iterator]:
    """Run the iterations of a loop on GPU threads: `thread` is blockIdx.x, threadIdx.y, vthread, …

    Code generation for a CPU refuses such a loop.
    before: for i: body(i)      after: threadIdx.x i: body(i)
    """
    if not isinstance(thread, str) or thread not in _THREADS:
        raise ScheduleError(f"there is no thread {thread!r} to bind a loop to; known: {', '.join(_THREADS)}")
    return _annotate(state, stage, loop, _THREADS[thread])


def tensorize(state: State, stage: StageRef, loop: LoopRef) -> tuple[State, Iterator]:
    """Let an instruction of a tensor core execute the iterations of a loop: the three innermost loops of a product that
    `as_matmul` made, over 16 rows, 8 columns and the depth of its kind.

        before: for i in 16: for j in 8: for k in 16: c += a * b      after: tensorize i: tensorize j: tensorize k: …
    """
    return _annotate(state, stage, loop, Annotation.TENSORIZE)


def pipeline(state: State, stage: StageRef, loop: LoopRef, depth: int) -> State:
    """Keep the copies into shared memory of `depth` iterations of a loop of a product in flight or ready.

    before: for k: (copy a[k]; wait; c += a)
    after (depth 2): copy a[0]; for k: (wait; copy a[k + 1]; c += a)
    """
    number = stage_number(state, stage)
    return state.apply(Pipeline(number, loop_number(state, number, loop), _whole("the depth", depth)))


def as_matmul(state: State, stage: StageRef, kind: str) -> tuple[State, Tensor]:
    """Write an operation as a product of two matrices, gathered in shared memory; returns the product's tensor.

    `kind` names the instruction of a tensor core that suits it: f16, bf16, or tf32, to which it rounds float32.
    before: C[i, j] += A[i, k] * B[k, j]      after: C.left.shared[b, m, k] = A[m, k]; C.right.shared[b, k, n] = B[k, n]
                                                     C.mma[b, m, n] += C.left.shared * C.right.shared
                                                     C[i, j] = C.mma[0, i, j]
    """
    number = stage_number(state, stage)
    after = state.apply(AsMatmul(number, str(kind)))
    return after, after.dag.nodes[number + 2].tensor


def pragma(state: State, stage: StageRef, loop: LoopRef, text: str) -> State:
    """Advise the code generator: `auto_unroll_max_step$N` unrolls reduction loops of up to N vector operations.

    before: for k in 4: body(k)      after (N 64): body(0); body(1); body(2); body(3)
    """
    return state.apply(Pragma(stage_number(state, stage), loop_number(state, stage, loop), str(text)))


def storage_align(state: State, stage: StageRef, loop: LoopRef, factor: int, offset: int) -> State:
    """Pad the stage's buffer: a step along the loop's axis moves a multiple of `factor`, plus `offset`, elements.

    before: C is 32 x 64, C[i, j] at i * 64 + j      after (i, 16, 4): C[i, j] at i * 68 + j
    """
    number = stage_number(state, stage)
    at = loop_number(state, number, loop)
    return state.apply(StorageAlign(number, at, _whole("the factor", factor), _whole("the offset", offset)))


def compute_at(state: State, stage: StageRef, target: StageRef, loop: LoopRef) -> State:
    """Compute a stage inside a loop of a stage that reads it, only the part that one iteration of the loop needs.

    before: for i: B[i] = f(i)            after (C, i): for i:
            for i: for j: C[i, j] = B[i]                    b = f(i)
                                                            for j: C[i, j] = b
    """
    target_id = stage_number(state, target)
    return state.apply(ComputeAt(stage_number(state, stage), target_id, loop_number(state, target_id, loop)))


def compute_inline(state: State, stage: StageRef) -> State:
    """Compute an elementwise stage wherever it is read.

    before: B[i] = A[i] + 1; C[i] = B[i] * 2      after: C[i] = (A[i] + 1) * 2
    """
    return state.apply(ComputeInline(stage_number(state, stage)))


def compute_root(state: State, stage: StageRef) -> State:
    """Give a stage a loop nest of its own again; undoes `compute_at` and `compute_inline`.

    before: for i: b = f(i); C[i] = b      after: for i: B[i] = f(i)
                                                  for i: C[i] = B[i]
    """
    return state.apply(ComputeRoot(stage_number(state, stage)))


def _scope(scope: str) -> str:
    if not isinstance(scope, str) or not scope.isidentifier():
        raise ScheduleError(f"a buffer's scope must be a word, such as local or shared; got {scope!r}")
    return scope


def cache_read(state: State, stage: StageRef, scope: str, readers: Sequence[StageRef]) -> tuple[State, Tensor]:
    """Copy a tensor into a buffer that `readers` read instead; returns the buffer's tensor (of several the first).

    The copy is the stage after the tensor's, named `<tensor>.<scope>`, with loops ax0, ax1, …
    before: C[i] = f(A[i])      after: for ax0: A.local[ax0] = A[ax0]
                                       for i: C[i] = f(A.local[i])
    """
    number = stage_number(state, stage)
    numbers = tuple(stage_number(state, reader) for reader in _list("the readers", readers))
    after = state.apply(CacheRead(number, _scope(scope), numbers))
    return after, after.dag.nodes[number + 1].tensor


def cache_write(state: State, stage: StageRef, scope: str = "local") -> tuple[State, Tensor]:
    """Compute a stage into a buffer first and copy it from there; returns the buffer's tensor (of several the first).

    The buffer is computed by the stage before, named `<stage>.<scope>`, with loops i_c, j_c, …
    before: for i: C[i] = f(i)      after: for i_c: C.local[i_c] = f(i_c)
                                           for i: C[i] = C.local[i]
    """
    number = stage_number(state, stage)
    after = state.apply(CacheWrite(number, _scope(scope)))
    return after, after.dag.nodes[number].tensor


def rfactor(state: State, stage: StageRef, loop: LoopRef, factor_iter: int) -> tuple[State, Tensor]:
    """Reduce in two steps: the reduction loop becomes axis number `factor_iter` of a first result, which is returned.

    before: for i: for k.0: for k.1: C[i] += A[i, k.0 * 16 + k.1]
    after:  for i: for k_0: for k_1: C.rf[i, k_0] += A[i, k_0 * 16 + k_1]
            for ax0: for k_0_v: C.repl[ax0] += C.rf[ax0, k_0_v]
    """
    number = stage_number(state, stage)
    after = state.apply(Rfactor(number, loop_number(state, number, loop), _whole("the axis number", factor_iter)))
    return after, after.dag.nodes[number].tensor
