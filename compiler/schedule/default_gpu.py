"""In: a compute graph. Out: the steps of its untuned program on a GPU.

Always: fast to make and correct; nothing is searched or measured. What does not reduce is computed where it is read;
every other stage is a kernel of its own, a thread for each of its results.
"""

from compiler.schedule.access import consumers
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.default import default_steps
from compiler.schedule.state import Annotation, IterKind, State
from compiler.schedule.steps import Annotate, ComputeInline, Fuse, Split, Step
from compiler.schedule.task import SearchTask
from compiler.te.tensor import ComputeOp

_THREADS = 128
"""Threads of a block: four warps, of which a multiprocessor runs many."""


def untuned_steps(task: SearchTask) -> tuple[Step, ...]:
    """Steps of the untuned program of a task, on whatever it is for."""
    return default_gpu_steps(task.dag) if task.target.is_gpu else default_steps(task.dag)


def default_gpu_steps(dag: ComputeDAG) -> tuple[Step, ...]:
    """Steps of the untuned program of `dag` on a GPU."""
    state = State.initial(dag)
    inlined: set[int] = set()
    for number, stage in enumerate(state.stages):
        read = bool(consumers(state, number)) and number not in dag.output_ids
        if stage.is_compute and read and not stage.has_reduce_iter and len(stage.op.shapes) == 1:
            inlined.add(number)
    for number in sorted(inlined, reverse=True):
        state = state.apply(ComputeInline(number))
    for number, stage in enumerate(state.stages):
        if isinstance(stage.op, ComputeOp) and number not in inlined:
            state = _bound(state, number)
    return tuple(step for step in state.steps if isinstance(step, Step))


def _bound(state: State, number: int) -> State:
    """A stage whose results are spread over the threads of blocks."""
    iters = state.stages[number].iters
    count = 0
    while count < len(iters) and iters[count].kind is IterKind.SPATIAL:
        count += 1
    if not count:
        return state
    if count > 1:
        state = state.apply(Fuse(number, tuple(range(count))))
    extent = state.stages[number].iters[0].extent
    if not isinstance(extent, int) or extent <= _THREADS:
        return state.apply(Annotate(number, 0, Annotation.THREAD_X))
    state = state.apply(Split(number, 0, extent, (_THREADS,)))
    return state.apply(Annotate(number, 0, Annotation.BLOCK_X)).apply(Annotate(number, 1, Annotation.THREAD_X))
