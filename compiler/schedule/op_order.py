"""Orders the operations of a computation into stages, producers first; the order depends only on the definition."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from retune.compiler.ir.expr import Expr
from retune.compiler.ir.visit import children
from retune.compiler.te.tensor import ComputeOp, Operation, Tensor, TensorRead, reads_of


def post_order(tensors: Sequence[Tensor]) -> dict[Operation, None]:
    """The operations of the tensors, depth first, in a set that keeps its order."""
    order: dict[Operation, None] = {}
    seen: set[Operation] = set()
    # An explicit stack: a long chain of operations would exceed Python's recursion limit.
    stack: list[tuple[Operation, bool]] = [(tensor.op, False) for tensor in reversed(tensors)]
    while stack:
        op, expanded = stack.pop()
        if expanded:
            order[op] = None
        elif op not in seen:
            seen.add(op)
            stack.append((op, True))
            stack.extend((tensor.op, False) for tensor in reversed(_sources(op)) if tensor.op not in seen)
    return order


def outputs_in_order(tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs in the order in which a depth-first walk is to visit them.

    A walk with a stack, from the last of `tensors`, numbers the operations. Of those whose sources are all placed, the
    operation with the greatest number comes next.
    """
    # TVM's order of outputs: discovery numbers of a walk with a stack, then Kahn's topological sort.
    number: dict[Operation, int] = {}
    readers: dict[Operation, list[Operation]] = {}
    missing: dict[Operation, int] = {}
    stack = [tensor.op for tensor in tensors]
    while stack:
        op = stack.pop()
        if op in number:
            continue
        number[op] = len(number)
        sources = [tensor.op for tensor in _sources(op)]
        missing[op] = len(sources)
        for source in sources:
            readers.setdefault(source, []).append(op)
        stack.extend(sources)
    by_number = list(number)
    # A min-heap of negated numbers: the operation found last comes first.
    ready = [-number[op] for op in number if not missing[op]]
    heapify(ready)
    position: dict[Operation, int] = {}
    while ready:
        op = by_number[-heappop(ready)]
        position[op] = len(position)
        for reader in readers.get(op, ()):
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, -number[reader])
    return sorted(outputs, key=lambda tensor: position[tensor.op])


def _sources(op: Operation) -> list[Tensor]:
    """The tensors that an operation reads, each once; a tensor read inside an index comes before the indexed tensor."""
    if not isinstance(op, ComputeOp):
        return list(dict.fromkeys(tensor for tensor, _ in reads_of(op)))
    read: dict[Tensor, None] = {}

    def visit(expr: Expr) -> None:
        for child in children(expr):
            visit(child)
        if isinstance(expr, TensorRead):
            read[expr.tensor] = None

    visit(op.body)
    return list(read)
