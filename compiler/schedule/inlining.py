"""The body of a stage with inlined stages substituted, its reads and its operation counts.

It is computed once for all programs of a sketch, whatever their tiles.
"""

from retune.compiler.core.errors import ScheduleError
from retune.compiler.ir.expr import Expr
from retune.compiler.ir.visit import substitute, transform, walk
from retune.compiler.schedule.counts import OpCounts, count_operations
from retune.compiler.schedule.dag import ComputeDAG, cached_on_dag
from retune.compiler.schedule.state import Inlined, State
from retune.compiler.te.reduction import Reduce
from retune.compiler.te.tensor import ComputeOp, TensorRead


def inline_body(state: State, stage_id: int) -> Expr:
    """The body of a stage with the inlined stages it reads written out."""
    op = state.stages[stage_id].op
    if not isinstance(op, ComputeOp):
        raise ScheduleError(f"{op.name} is an input and has no body")
    return _written_out(state.dag, stage_id, inlined_stages(state))


def inlined_stages(state: State) -> frozenset[int]:
    """The stages that have no loops because their readers compute them."""
    return frozenset(i for i, stage in enumerate(state.stages) if isinstance(stage.location, Inlined))


@cached_on_dag
def _written_out(dag: ComputeDAG, stage_id: int, inlined: frozenset[int]) -> Expr:
    """The body of an operation; programs of one sketch share it, whatever their tiles."""
    op = dag.ops[stage_id]
    assert isinstance(op, ComputeOp)
    return _inline_reads(dag, op.body, inlined) if inlined else op.body


def _inline_reads(dag: ComputeDAG, body: Expr, inlined: frozenset[int]) -> Expr:
    def rule(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        producer = dag.id_of(node.tensor)
        if producer not in inlined:
            return None
        op = dag.ops[producer]
        if not isinstance(op, ComputeOp):
            return None
        point: dict[Expr, Expr] = dict(zip(op.axes, node.indices, strict=True))
        return substitute(_inline_reads(dag, op.values[node.tensor.value_index], inlined), point)

    return transform(body, rule)


@cached_on_dag
def reads_of(dag: ComputeDAG, stage_id: int, inlined: frozenset[int]) -> tuple[TensorRead, ...]:
    """The reads of an operation's body, with the inlined stages written out."""
    return tuple(node for node in walk(_written_out(dag, stage_id, inlined)) if isinstance(node, TensorRead))


@cached_on_dag
def counts_of(dag: ComputeDAG, stage_id: int, inlined: frozenset[int]) -> OpCounts:
    """The operations of one evaluation of that body, or of one step of a reduction."""
    body = _written_out(dag, stage_id, inlined)
    return count_operations(*(body.source, body.combiner) if isinstance(body, Reduce) else (body, None))
