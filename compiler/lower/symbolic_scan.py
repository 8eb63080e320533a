"""Lowers a scan of a symbolic number of steps: a step has fixed extents and is lowered as any program.

before: s[t, i] = f(s[t - 1, i], x[t, i]) for t in 1 .. n;  y[t, i] = g(s[t, i])
after:  workspace s[n + 1, 8];  steps t in n: … s[t + 1, i] …;  then the blocks of y, whose input is s
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.expr import Buffer
from retune.compiler.ir.rewrite import redirect, rewrite
from retune.compiler.ir.stmt import For, LoopFunction, LoopKind, block
from retune.compiler.ir.verify import verify
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import LoopPass
from retune.compiler.schedule.blocks import stand_in
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.state import replay
from retune.compiler.te.symbols import rebuild, symbols_of
from retune.compiler.te.tensor import (
    ComputeOp,
    Operation,
    PlaceholderOp,
    ScanOp,
    Tensor,
    post_order,
    results_of,
    scans_of,
    sources_of,
)


@dataclass(frozen=True, slots=True)
class SplitScan:
    """A program of the inputs and results `tensors`, cut around its `scan`. `before` are the inputs and results of the
    program that computes what the scan reads and has symbolic extents, `after` those of the program that computes the
    other results. What one part computes is an input of the same name in the next.
    """

    tensors: Sequence[Tensor]
    scan: ScanOp
    before: Sequence[Tensor]
    after: Sequence[Tensor]

    @property
    def between(self) -> list[Tensor]:
        """What is computed before and in the steps; those that are no results are in the workspace."""
        return [*(tensor for tensor in self.before if isinstance(tensor.op, ComputeOp)), *results_of(self.scan)]


def split_scan(tensors: Sequence[Tensor], scan: ScanOp) -> SplitScan | None:
    """The program cut around its first scan; None if anything in a step has a symbolic extent."""
    states = results_of(scan)
    order = list(post_order(states))
    inside = {order[number] for number in scans_of(order, lambda tensor: order.index(tensor.op))}
    if any(map(_is_symbolic, inside)) or any(isinstance(extent, Dim) for state in states for extent in state.shape[1:]):
        return None
    early = {op for op in order if op not in inside and _is_symbolic(op)}
    read = (tensor for op in order if op not in early for tensor in sources_of(op) if tensor.op in early)
    before = list(dict.fromkeys(read))
    inputs = {tensor: _as_input(tensor, tensor.shape) for tensor in (*before, *states)}
    others = [tensor for tensor in tensors if isinstance(tensor.op, ComputeOp) and tensor not in inputs]
    after = rebuild(others, lambda op: op.shape, lambda _: lambda _: None, replaced=inputs)
    return SplitScan(tensors, scan, [*_inputs_of(before), *before], [*_inputs_of(after), *after])


def _is_symbolic(op: Operation) -> bool:
    """Whether the operation computes elements, or adds terms, along a symbolic axis."""
    return isinstance(op, ComputeOp) and any(isinstance(axis.extent, Dim) for axis in (*op.axes, *op.reduce_axes))


def _as_input(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor(PlaceholderOp(tensor.name, shape, tensor.dtype))


def _inputs_of(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The inputs that `tensors` are computed from."""
    read = post_order(tensors)
    states = {state.op for op in read if isinstance(op, ScanOp) for state in op.states}
    return [Tensor(op) for op in read if isinstance(op, PlaceholderOp) and op not in states]


def lower_scan(
    split: SplitScan,
    name: str,
    hardware: HardwareParams,
    passes: Sequence[LoopPass],
    lower_part: Callable[[Sequence[Tensor]], LoopFunction],
) -> LoopFunction:
    """The kernel that runs what is before the steps, the steps, and what is after them; `lower_part` gives the kernels
    of the first and the last. Raises: LoweringError, as for fixed extents.
    """
    first, last = (
        [lower_part(tensors)] if any(isinstance(tensor.op, ComputeOp) for tensor in tensors) else []
        for tensors in (split.before, split.after)
    )
    parts = [*first, _lower_steps(split, name, hardware, passes), *last]
    readers = Counter(param.name for part in parts for param in part.params)
    packings = dict(packing for part in parts for packing in part.packings)
    several = [param for param in packings if readers[param] > 1]
    if several:
        raise LoweringError(f"{name}: {several[0]} is read in several layouts")
    results = [tensor for tensor in split.tensors if not isinstance(tensor.op, PlaceholderOp)]
    inner = [tensor.name for tensor in split.between if tensor not in results]
    buffers = {tensor.name: Buffer(tensor.name, tensor.shape, tensor.dtype) for tensor in split.tensors}
    buffers |= {param.name: param for part in parts for param in part.params}
    buffers |= {title: replace(buffers[title], scope="workspace") for title in inner}
    bodies = [
        redirect(part.body, lambda buffer, at: (buffers[buffer.name], at) if buffer.scope == "global" else None)
        for part in parts
    ]
    function = replace(
        parts[0],
        params=tuple(buffers[tensor.name] for tensor in split.tensors),
        workspace=(*(buffer for part in parts for buffer in part.workspace), *(buffers[title] for title in inner)),
        body=block(*bodies),
        outputs=len(results),
        symbols=symbols_of(split.tensors),
        limits=tuple(limit for part in parts for limit in part.limits),
        packings=tuple(packings.items()),
    )
    verify(function, "joining the steps of a scan with what is around them")
    return function


def _lower_steps(split: SplitScan, name: str, hardware: HardwareParams, passes: Sequence[LoopPass]) -> LoopFunction:
    """The kernel of the steps. Its parameters are what they read, and the states."""
    numbers: dict[str, int] = {}

    def shape_of(shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(stand_in(extent, numbers) for extent in shape)

    states = results_of(split.scan)
    replaced = {tensor: _as_input(tensor, shape_of(tensor.shape)) for tensor in split.between if tensor not in states}
    fixed = rebuild(states, lambda op: shape_of(op.shape), lambda _: lambda _: None, replaced=replaced)
    dag = ComputeDAG([*_inputs_of(fixed), *fixed])
    function = build_loops(replay(dag, default_steps(dag, hardware)), name)
    for loop_pass in passes:
        function = loop_pass(function)
    tensors = {tensor.name: tensor for tensor in (*split.tensors, *split.between)}
    packed, buffers = dict(function.packings), dict[Buffer, Buffer]()
    for param, tensor in zip(function.params, (*dag.inputs, *dag.outputs), strict=True):
        shape = param.shape if param.name in packed else tensors[tensor.name].shape
        buffers[param] = replace(param, name=tensor.name, shape=shape)
    body = redirect(function.body, lambda buffer, at: (buffers[buffer], at) if buffer in buffers else None)

    def with_steps(loop: For) -> For | None:
        return replace(loop, extent=split.scan.steps) if loop.kind is LoopKind.STEPS else None

    return replace(function, params=tuple(buffers.values()), body=rewrite(body, {For: with_steps}))
