"""Orders the outputs of a computation as TVM does; the order depends only on the definition."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from retune.compiler.te.tensor import Operation, Tensor, sources_of


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
        sources = [tensor.op for tensor in sources_of(op)]
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
