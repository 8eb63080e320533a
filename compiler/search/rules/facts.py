"""Properties of a stage that several sketch rules ask for: predicates, loop counts and steps.

They are pure functions.
"""

from math import prod

from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.reads import (
    is_read_by_function,
    is_shifted_axis,
    is_strictly_inlineable,
    needs_multi_level_tiling,
    single_elementwise_consumer,
)
from retune.compiler.schedule.state import SHARED_SUFFIX, Annotation, Attached, IterKind, State
from retune.compiler.schedule.steps import AsMatmul, CacheRead, CacheWrite, Rfactor, Split
from retune.compiler.search.rules.base import SketchContext
from retune.compiler.te.tensor import ComputeOp

CONST_INDICES = "auto_scheduler_simplify_const_tensor_indices"
UNROLL_INNER = "auto_scheduler_always_unroll_inner"
NO_SPLIT = "auto_scheduler_no_split_at_inner"


def named_loops(state: State, stage: int, attribute: str) -> frozenset[str]:
    """The loop names in an attribute of the stage's operation, and their names in a write cache."""
    names = state.stages[stage].op.attrs.get(attribute) or ()
    return frozenset((*names, *(f"{name}_c" for name in names)))


def should_always_be_inlined(context: SketchContext, state: State, stage: int) -> bool:
    """Whether recomputing the stage at every read is nearly free; on a GPU, whether it does not reduce."""
    described = state.stages[stage]
    if not described.is_compute or stage in state.dag.output_ids or described.has_reduce_iter:
        return False
    if is_read_by_function(state, stage):
        return False
    return context.kind.recomputes or is_strictly_inlineable(state.dag, stage)


def has_cache_write(state: State, stage: int) -> bool:
    """Whether the stage is a write cache that an earlier step added; `stage` is traced back through the history."""
    # Backwards, as the number of the stage changes at every step that added a stage before it.
    for step in reversed(state.steps):
        if isinstance(step, CacheWrite) and step.stage == stage:
            return True
        stage = _number_before(step, stage)
    return False


def elementwise_consumer(state: State, stage: int) -> int | None:
    """The only, elementwise reader of the stage; shared caches do not count, they belong to their readers."""
    consumer = single_elementwise_consumer(state, stage)
    if consumer is None or state.stages[consumer].op.name.endswith(SHARED_SUFFIX):
        return None
    return consumer


def fusible_consumer(state: State, stage: int) -> int | None:
    """The elementwise consumer, if its loops can follow the tiles of the stage: none is split yet (for another product
    of the consumer), none reduces, and the same axes stay unsplit.
    """
    consumer = elementwise_consumer(state, stage)
    if consumer is None or state.stages[consumer].is_tiled or state.stages[consumer].has_reduce_iter:
        return None
    return consumer if _whole_axes(state, consumer) == _whole_axes(state, stage) else None


def _whole_axes(state: State, stage: int) -> list[bool]:
    names, op = named_loops(state, stage, NO_SPLIT), state.stages[stage].op
    return [axis.name in names for axis in op.axes] if isinstance(op, ComputeOp) else []


def loop_volumes(state: State, stage: int) -> tuple[int, int]:
    """Points of the spatial loops of an operation, and of its reduction."""
    op = state.stages[stage].op
    if not isinstance(op, ComputeOp):
        return 1, 1
    return prod(axis.extent for axis in op.axes), prod(axis.extent for axis in op.reduce_axes)


def needs_rfactor(context: SketchContext, state: State, stage: int) -> bool:
    """Whether a reduction is too long for its few points."""
    if not state.stages[stage].is_compute:
        return False
    space, reduction = loop_volumes(state, stage)
    cores = context.hardware.num_cores
    if needs_multi_level_tiling(state.dag, stage):
        # Ansor's thresholds: tiling alone gives parallel work if there are more than 16 points per core.
        return space <= reduction and space <= 16 * cores
    return reduction > 1 and reduction > cores


def has_cross_thread_reduction(state: State, stage: int) -> bool:
    """Whether threads of a block reduce together in this stage, or in a stage computed inside its loops."""
    locations = [other.location for other in state.stages]
    inside = [
        number
        for number, location in enumerate(locations)
        if isinstance(location, Attached) and location.stage == stage
    ]
    return any(
        iterator.kind is IterKind.REDUCTION and iterator.annotation is Annotation.THREAD_X
        for number in (stage, *inside)
        for iterator in state.stages[number].iters
    )


def split_steps(state: State, stage: int) -> tuple[int, ...]:
    """Numbers of the split steps of a stage, oldest first. `stage` is traced back through the history, up to the step
    that created its loops.
    """
    numbers: list[int] = []
    for number in range(len(state.steps) - 1, -1, -1):
        step = state.steps[number]
        if isinstance(step, Split) and step.stage == stage:
            numbers.append(number)
        elif isinstance(step, Rfactor) and step.stage == stage:
            break
        else:
            stage = _number_before(step, stage)
    return tuple(reversed(numbers))


def _number_before(step: object, stage: int) -> int:
    """Number of `stage` before `step`. A stage that `step` created maps to the stage it was split from."""
    # `AsMatmul` replaces one operation by four, so later stages move by three.
    if isinstance(step, AsMatmul) and step.stage < stage:
        return max(step.stage, stage - 3)
    return stage - 1 if isinstance(step, (CacheWrite, CacheRead, Rfactor)) and step.stage < stage else stage


def spatial_split_steps(state: State, stage: int) -> tuple[int, ...]:
    """The split steps of a tiled stage's spatial axes, in axis order; the splits of its reduction come later."""
    op = state.stages[stage].op
    whole = named_loops(state, stage, NO_SPLIT)
    reductions = sum(axis.name not in whole for axis in op.reduce_axes) if isinstance(op, ComputeOp) else 0
    steps = split_steps(state, stage)
    return steps[: len(steps) - reductions]


def common_outer_loops(state: State, stage: int, target: int) -> int:
    """Number of leading loops that a stage and the later stage `target`, which reads it, run over the same points; 0 if
    `target` does not read it.
    """
    op = state.stages[stage].op
    best = [-1] * len(state.stages)
    best[stage] = len(op.shape)
    for reader in range(stage + 1, target + 1):
        for producer, _ in state.dag.reads[reader]:
            if producer >= stage and best[producer] >= 0:
                common = min(best[producer], _common_pair(state.dag, reader, producer))
                # The minimum over all paths from the stage to the reader, by dynamic programming in stage order.
                best[reader] = common if best[reader] < 0 else min(best[reader], common)
    return max(best[target], 0)


def _common_pair(dag: ComputeDAG, reader: int, producer: int) -> int:
    """Number of leading dimensions of two operations with equal lengths that every read indexes one to one."""
    op, source = dag.ops[reader], dag.ops[producer]
    if not isinstance(op, ComputeOp):
        return 0
    count = 0
    reads = [indices for number, indices in dag.reads[reader] if number == producer]
    for axis, extent in zip(op.axes, source.shape, strict=False):
        if axis.extent != extent:
            break
        if not all(is_shifted_axis(at[count], axis) for at in reads):
            break
        count += 1
    return count


def original_names(name: str) -> frozenset[str]:
    """The axes of a loop: `i.0@j.0@` has i and j."""
    return frozenset(part.split(".")[0] for part in name.split("@") if part)


def last_outer_reduction(state: State, stage: int) -> int:
    """The innermost loop of the outermost reduction tile of a tiled stage: the operands of its reduction are fetched
    there.

    The tile of an unsplit reduction is its first loop.
    """
    described = state.stages[stage]
    op = described.op
    whole = named_loops(state, stage, NO_SPLIT)
    reductions = op.reduce_axes if isinstance(op, ComputeOp) else ()
    wanted = sum(axis.name not in whole for axis in reductions)
    seen: set[str] = set()
    for number, iterator in enumerate(described.iters):
        if iterator.kind is IterKind.REDUCTION:
            seen |= original_names(iterator.name)
            if len(seen) >= wanted:
                return number
    raise AssertionError(f"{op.name} was asked for its reduction loops and has none")


def outer_space_loops(state: State, stage: int) -> tuple[int, ...]:
    """The outermost loops that can be fused: up to a reduction, an annotated loop, or just after an attachment."""
    numbers: list[int] = []
    for number, iterator in enumerate(state.stages[stage].iters):
        if iterator.kind is IterKind.REDUCTION or iterator.annotation is not Annotation.NONE:
            break
        if number and state.attached_at(stage, number - 1):
            break
        numbers.append(number)
    return tuple(numbers)
