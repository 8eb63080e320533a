"""Lowers programs with symbolic extents to one kernel for all values of their symbols.

A kernel covers its results with blocks of fixed extents, see `schedule/blocks.py`. Each block is lowered as any program
of fixed extents, and then placed in the whole arrays. Loops over axes that are no part of a block, as of a sum over
symbolic terms, get their extents at the end.
"""

import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from operator import attrgetter

from retune.compiler.core.errors import ScheduleError
from retune.compiler.core.target import HardwareParams
from retune.compiler.ir import trace
from retune.compiler.ir.dot import Pair
from retune.compiler.ir.expr import Buffer, Var
from retune.compiler.ir.guards import Assumptions
from retune.compiler.ir.rewrite import allocate, find_stmts, rewrite, statements_of
from retune.compiler.ir.stmt import Allocate, For, LoopFunction, LoopKind, Stmt, block
from retune.compiler.ir.verify import verify
from retune.compiler.ir.visit import of_type
from retune.compiler.lower.block_placement import (
    fits,
    in_parallel,
    in_series,
    place_block,
    regions_of,
    with_shapes,
)
from retune.compiler.lower.block_plan import POINT, BlockPlan
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.kept_rows import KeptRows, UnkeptError, keep_rows
from retune.compiler.lower.passes import LoopPass
from retune.compiler.lower.pipeline import cpu_passes
from retune.compiler.lower.symbolic_loops import bound_loop
from retune.compiler.lower.symbolic_scan import lower_scan, split_scan
from retune.compiler.schedule.axis_classes import AxisClass, SymbolicProgram
from retune.compiler.schedule.blocks import MARK, MOST, BlockSize, block_of, stand_in
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.steps import SizeLimit, Step, programs_of
from retune.compiler.te.symbols import symbols_of
from retune.compiler.te.tensor import RANKS, SCATTERS, ExternOp, ScanOp, Tensor, post_order

_MARGIN = 16 << 10
"""Bytes of the stack that code generation and LLVM may use beside the buffers of a block."""
_FAR = MOST >> 10
"""More iterations than any loop of a block has, unless it is a part of a loop over a symbolic axis."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Why there is no kernel for all values of a program's symbols: it has to be compiled for each shape."""

    reason: str


def lower_symbolic(
    tensors: Sequence[Tensor],
    name: str,
    hardware: HardwareParams,
    layout: LayoutRewriteOption = LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED,
    *,
    dots: Collection[Pair] = (),
    steps: Sequence[Step] = (),
) -> LoopFunction | Unsupported:
    """The kernel `name` of tensors with symbolic extents; its parameters are the inputs and then the results, in the
    order of a compute graph, and its `symbols` are those of the extents. `layout` and `dots` are as in `lower`, `steps`
    as in `schedule/steps/block.py`.

    A value says why a program is not taken. Raises: DefinitionError, LoweringError as for fixed extents; ScheduleError
    when the steps do not fit.
    """
    if any(isinstance(op, ExternOp) for op in post_order(tensors)):
        return Unsupported(f"{name}: it calls a function")
    # The stack of a block is checked when the rows that it keeps are known.
    passes = cpu_passes(replace(hardware, stack_bytes=sys.maxsize), layout, dots)
    # No extent is negative, whatever its formula says, so no divisor that is made of extents is 0.
    with Assumptions({}, ()):
        function = _lower_all(tensors, name, hardware, passes, steps)
    if isinstance(function, LoopFunction):
        trace.show(trace.LOOPS, name, "loop IR", lambda: str(function))
    return function


def _lower_all(
    tensors: Sequence[Tensor], name: str, hardware: HardwareParams, passes: Sequence[LoopPass], steps: Sequence[Step]
) -> LoopFunction | Unsupported:
    """The kernel of the programs in `steps`, or of a scan in its default schedule. Raises: ScheduleError."""
    scans = [op for op in post_order(tensors) if isinstance(op, ScanOp)]
    if scans and steps:
        raise ScheduleError(f"{name}: a scan of a symbolic number of steps has its default schedule")
    if scans:
        return _lower_scan(tensors, scans[0], name, hardware, passes)
    programs = programs_of(steps)
    functions = []
    for own, _ in programs:
        function = _lower_steps(tensors, name, hardware, passes, own)
        if isinstance(function, Unsupported):
            return function
        functions.append(function)
    limits = [limit for _, limit in programs if limit is not None]
    return _by_size(SymbolicProgram.of(tensors, keeps_rows=True), functions, limits) if limits else functions[0]


def _by_size(
    program: SymbolicProgram, functions: Sequence[LoopFunction], limits: Sequence[SizeLimit]
) -> LoopFunction | Unsupported:
    """One kernel that runs the program for the sizes of a call."""
    first, *others = functions
    if any((other.params, other.packings) != (first.params, first.packings) for other in others):
        return Unsupported(f"{first.name}: its programs read a constant in several layouts")
    parts: list[Stmt] = []
    remaining = 1  # for sizes that no earlier program is for
    for function, limit in zip(functions, (*limits, None), strict=True):
        admits = 1 if limit is None else fits(program.axis(limit.stage, limit.iter)[1].extent, limit.most)
        parts += _only(remaining * admits, function.body)
        remaining = remaining * (1 - admits)
    rows = tuple(dict.fromkeys(limit for function in functions for limit in function.limits))
    return replace(first, body=block(*parts), limits=rows)


def _lower_steps(
    tensors: Sequence[Tensor], name: str, hardware: HardwareParams, passes: Sequence[LoopPass], steps: Sequence[Step]
) -> LoopFunction | Unsupported:
    """The kernel of one program for all sizes, which keeps rows on the stack; where they may be too long, also what
    computes them again. Raises: ScheduleError.
    """
    result = _lower_program(SymbolicProgram.of(tensors, keeps_rows=True), name, hardware, passes, steps)
    if (isinstance(result, LoopFunction) and not result.limits) or (isinstance(result, Unsupported) and steps):
        return result
    # Rows of any length, with what is computed from them computed again for each reader.
    anyhow = _lower_program(SymbolicProgram.of(tensors, keeps_rows=False), name, hardware, passes)
    if isinstance(result, Unsupported):
        return anyhow
    other = anyhow if isinstance(anyhow, LoopFunction) and not anyhow.limits else None
    if other is None or (other.params, other.packings) != (result.params, result.packings):
        return result
    short = prod(fits(extent, most) for extent, most in result.limits)
    body = block(*_only(short, result.body), *_only(1 - short, other.body))
    return replace(result, body=body, limits=())


def _lower_scan(
    tensors: Sequence[Tensor], scan: ScanOp, name: str, hardware: HardwareParams, passes: Sequence[LoopPass]
) -> LoopFunction | Unsupported:
    """The kernel of a program with a scan, cut around it."""

    def lower_part(part: Sequence[Tensor]) -> LoopFunction:
        function = _lower_all(part, name, hardware, passes, ())
        if isinstance(function, Unsupported):
            raise _UnsupportedError(function.reason)
        return function

    split = split_scan(tensors, scan)
    if split is None:
        return Unsupported(f"{name}: a step of a scan has an axis of a symbolic extent")
    try:
        return lower_scan(split, name, hardware, passes, lower_part)
    except _UnsupportedError as error:
        return Unsupported(str(error))


def _lower_program(
    program: SymbolicProgram,
    name: str,
    hardware: HardwareParams,
    passes: Sequence[LoopPass],
    steps: Sequence[Step] = (),
) -> LoopFunction | Unsupported:
    reason = _refusal(program)
    if reason:
        return Unsupported(f"{name}: {reason}")
    try:
        return _Builder(program, name, hardware, passes).function(steps)
    except (_UnsupportedError, UnkeptError) as error:
        return Unsupported(f"{name}: {error}")


def _only(condition: int, body: Stmt) -> Iterator[Stmt]:
    """The statements of a kernel if `condition` is 1; not if it is 0."""
    for number, top in enumerate(statements_of(body)):
        if isinstance(top, For) and top.kind is LoopKind.PARALLEL:
            yield replace(top, extent=top.extent * condition)
        else:
            yield For(Var(f"only{MARK}{number}"), condition, LoopKind.SERIAL, top)


class _UnsupportedError(Exception):
    """Ends the lowering of a program that no symbolic kernel is made for."""


def _refusal(program: SymbolicProgram) -> str:
    """What keeps a program from symbolic kernels whatever its schedule; empty if nothing does."""
    names = [tensor.name for tensor in program.tensors]
    if len(set(names)) < len(names):
        return "two of its arguments have one name"
    axes = [axis.name for op in program.computed for axis in (*op.axes, *op.reduce_axes)]
    if any(MARK in text for text in axes):
        return f"an axis has {MARK} in its name"
    if any(SCATTERS in op.attrs or RANKS in op.attrs for op in program.computed):
        return "it scatters or ranks elements"
    mixed = next((known for known in program.classes if known.extent is None), None)
    if mixed is not None:
        return f"the axis {min(axis for _, axis in mixed.points)} runs over arrays of several extents"
    return ""


def _with_buffers(body: Stmt, buffers: Collection[Buffer]) -> Stmt:
    """The body with buffers on the stack of each thread."""
    tops = statements_of(body)
    if not all(isinstance(top, For) and top.kind is LoopKind.PARALLEL for top in tops):
        return allocate(list(buffers), body)
    return block(*(replace(top, body=allocate(list(buffers), top.body)) for top in of_type(For, tops)))


class _Builder:
    """Lowers the blocks of one program."""

    def __init__(
        self, program: SymbolicProgram, name: str, hardware: HardwareParams, passes: Sequence[LoopPass]
    ) -> None:
        self.program = program
        self.name = name
        self.hardware = hardware
        self.passes = passes
        self.stand_ins: dict[str, int] = {}
        self.parts: list[LoopFunction] = []
        self.kept: list[KeptRows] = []

    def function(self, steps: Sequence[Step]) -> LoopFunction:
        """The kernel. Raises: _UnsupportedError, UnkeptError, ScheduleError."""
        plan = BlockPlan.of(self.program, self.hardware, self.stand_ins, steps)
        if not plan.outer:
            strips, body, kept = self._block(plan, {})
            return self._finish(body if strips is None else replace(strips, body=body), kept)
        sizes = {known: plan.sizes_of(known) for known in plan.outer}
        # The class with several sizes of blocks, such as the rows of a tile; else the last.
        several = [known for known in plan.outer if len(sizes[known]) > 1] or plan.outer[-1:]
        if len(several) > 1:
            raise _UnsupportedError("several axes of its results have blocks of several sizes")
        (chosen,) = several
        around = [region for known in plan.outer if known is not chosen for region in regions_of(known, [POINT])]
        lowered = []
        for size in sizes[chosen]:
            lowered.append((size, *self._block(plan, {chosen: size, **{region.known: POINT for region in around}})))
            if size.is_clamped and lowered[-1][-1] is None:  # which covers rows of any length
                break
        # Rows that are too long for the array of many are in blocks of fewer.
        most = {size: (kept.extent, kept.most) for size, _, _, kept in lowered if kept is not None and size != POINT}
        regions = regions_of(chosen, [size for size, *_ in lowered], most)
        shares = [(region, strips, body) for region, (_, strips, body, _) in zip(regions, lowered, strict=True)]
        limit = lowered[-1][-1]
        blocks = [(region, body) for region, _, body in shares]
        loops = [(None, 0) if strips is None else (strips.var, strips.extent) for _, strips, _ in shares]
        if len(set(loops)) == 1:
            return self._finish(in_parallel(around, blocks, shares[0][1], 0), limit)
        parts = (
            in_parallel(around, [(region, body)], strips, number)
            for number, (region, strips, body) in enumerate(shares)
        )
        return self._finish(block(*parts), limit)

    def _block(self, plan: BlockPlan, sizes: Mapping[AxisClass, BlockSize]) -> tuple[For | None, Stmt, KeptRows | None]:
        """What a block of some sizes computes, the parallel loop around it, if any, and the rows that it keeps."""
        before = len(self.kept)
        if plan.inner is None:
            strips, body = place_block(self._lower(plan, sizes), self.program, sizes, has_strips=plan.has_strips)
        else:
            series, strips = [], None
            for region in regions_of(plan.inner, plan.sizes_of(plan.inner)):
                own = {**sizes, plan.inner: region.size}
                _, body = place_block(self._lower(plan, own), self.program, own, has_strips=False)
                series.append(in_series(region, body, len(self.parts)))
            body = block(*series)
        return strips, body, min(self.kept[before:], key=attrgetter("most"), default=None)

    def _finish(self, body: Stmt, limit: KeptRows | None) -> LoopFunction:
        """The kernel of this body. Raises: _UnsupportedError."""
        if len({part.packings for part in self.parts}) > 1:
            raise _UnsupportedError("its blocks read a constant in several layouts")
        buffers = {rows.buffer for rows in self.kept}
        if len(buffers) > 1:
            raise _UnsupportedError("its blocks keep rows of several types")
        scratch = sum(scope.buffer.nbytes for scope in find_stmts(Allocate, body) if scope.buffer.scope == "local")
        if scratch + sum(buffer.nbytes for buffer in buffers) > self.hardware.stack_bytes - _MARGIN:
            raise _UnsupportedError("the intermediate results of a block do not fit the stack of a thread")
        limits = () if limit is None else ((limit.extent, limit.most),)
        symbols = symbols_of(self.program.tensors)
        function = replace(
            self.parts[0], body=_with_buffers(body, buffers), workspace=(), symbols=symbols, limits=limits
        )
        verify(function, "placing blocks")
        return function

    def _lower(self, plan: BlockPlan, sizes: Mapping[AxisClass, BlockSize]) -> LoopFunction:
        """The loops of a block relative to its origin. Raises: _UnsupportedError, UnkeptError, ScheduleError."""
        state = plan.schedule(ComputeDAG(block_of(self.program, sizes, self.stand_ins)))
        function = build_loops(state, self.name)
        # Whole arrays already here: no pass may take a block of a result for a dense array.
        whole = {tensor.name: self._standing_in(tensor) for tensor in self.program.tensors}
        function = with_shapes(function, whole)
        for loop_pass in self.passes:
            function = loop_pass(function)
        function, kept = keep_rows(function, self.program.classes)
        self.kept += [] if kept is None else [kept]
        body = rewrite(function.body, {For: lambda loop: bound_loop(loop, self.program.classes, self.hardware)})
        if any(isinstance(loop.extent, int) and loop.extent >= _FAR for loop in find_stmts(For, body)):
            raise _UnsupportedError("a loop over a symbolic axis is cut in a way that has no symbolic form")
        shapes = {tensor.name: tensor.shape for tensor in self.program.tensors}
        self.parts.append(with_shapes(replace(function, body=body), shapes))
        return self.parts[-1]

    def _standing_in(self, tensor: Tensor) -> tuple[int, ...]:
        return tuple(stand_in(extent, self.stand_ins) for extent in tensor.shape)
