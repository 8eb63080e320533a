"""Rewrites the layout of constant inputs so that a schedule reads them sequentially.

The computation stays the same. The layout is that in which the code generator packs constants: the index digits in the
order of the loops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retune.compiler.core.packing import Packing
from retune.compiler.ir.expr import Expr, const
from retune.compiler.ir.visit import transform
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes.pack_constants import pack_constants
from retune.compiler.lower.passes.simplify_indices import simplify_indices
from retune.compiler.schedule.dag import ComputeDAG, Node
from retune.compiler.schedule.default.layout import (
    Digit,
    Digits,
    LayoutRewriteOption,
    digit_values,
    index_values,
    layout_text,
)
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, CacheRead, CacheWrite, ComputeAt, Fuse, Rfactor, Step
from retune.compiler.te.reduction import Axis, AxisKind
from retune.compiler.te.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, ScanOp, Tensor, TensorRead

TRANSFORM = "auto_scheduler_layout_transform"
"""Name of the stage that rewrites the layout of an input."""


@dataclass(frozen=True, slots=True)
class Relayout:
    """The layout that suits an operation for one of its inputs."""

    source: int
    """Number of the input."""
    reader: int
    """Number of the operation."""
    axes: tuple[str, ...]
    """The names of its dimensions."""
    digits: Digits
    """The dimensions of its new layout, over these names."""

    @property
    def packing(self) -> Packing:
        """The packing from the old layout to the new."""
        digit_order = [index for axis in self.axes for index, digit in enumerate(self.digits) if digit.axis == axis]
        order = sorted(range(len(digit_order)), key=digit_order.__getitem__)
        return Packing(tuple(self.digits[index].extent for index in digit_order), tuple(order))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(digit.extent for digit in self.digits)


def relayouts(dag: ComputeDAG, steps: Sequence[Step]) -> tuple[Relayout, ...]:
    """The layouts that suit a schedule, for inputs that one operation reads once by plain indices.

    Other inputs keep their layout, and so do inputs that are cached first: steps refer to the dimensions of the cache.
    Raises: ScheduleError, LoweringError when the steps do not fit.
    """
    if not steps or not dag.layout_free:
        return ()
    # The layout comes from the pass that packs constants, so that both agree on the order of the loops. Without
    # padding: an input that the pass would pad keeps its own layout.
    function = pack_constants(simplify_indices(build_loops(replay(dag, steps), "layout")), pads=False)
    names = [param.name for param in function.params]
    cached = _cached_inputs(dag, steps)
    changes = []
    for name, packing in function.packings:
        source = dag.id_of(dag.inputs[names.index(name)])
        readers = dag.readers[source]
        axes = _axis_names(dag, readers[0], source) if len(readers) == 1 and source not in cached else None
        digits = None if axes is None else _axis_digits(packing, dag.ops[source].shape, axes)
        if axes is not None and digits is not None:
            changes.append(Relayout(source, readers[0], axes, digits))
    return tuple(sorted(changes, key=lambda change: change.source))


def _cached_inputs(dag: ComputeDAG, steps: Sequence[Step]) -> set[int]:
    """Numbers of the operations of `dag` that have a read cache after `steps`."""
    cached: set[int] = set()
    numbers = list(range(len(dag.ops)))  # of the operations of `dag`, in the program so far
    for step in steps:
        if isinstance(step, CacheRead):
            cached.update(old for old, number in enumerate(numbers) if number == step.stage)
        if isinstance(step, CacheRead | CacheWrite | Rfactor):
            # A write cache or a factored reduction takes the number of the stage, a read cache the next.
            first = step.stage + isinstance(step, CacheRead)
            numbers = [number + (number >= first) for number in numbers]
    return cached


def _axis_names(dag: ComputeDAG, reader: int, source: int) -> tuple[str, ...] | None:
    """The axes that index each dimension of an input, by name; None when an index is no axis."""
    reads = {indices for producer, indices in dag.reads[reader] if producer == source}
    names: list[str] = []
    for index in reads.pop() if len(reads) == 1 else ():
        if isinstance(index, Axis):
            names.append(index.name)
        elif index == const(0):
            # TVM's name of an index that is the literal 0.
            names.append("IntImm" + "_" * sum(name.startswith("IntImm") for name in names))
        else:
            return None
    return tuple(names) if names and len(set(names)) == len(names) else None


def _axis_digits(packing: Packing, shape: Sequence[int], axes: Sequence[str]) -> Digits | None:
    """The packing as digits of the axes; None when an inner digit is outside an outer digit of the same axis."""
    owner: list[str] = []
    for extent, axis in zip(shape, axes, strict=True):
        product, first = 1, len(owner)
        # The digits of one axis multiply up to its extent, which tells where the next axis begins.
        while product < extent or len(owner) == first:
            product *= packing.dims[len(owner)]
            owner.append(axis)
    for axis in axes:
        positions = [position for position in packing.order if owner[position] == axis]
        if positions != sorted(positions):
            return None
    return tuple(Digit(packing.dims[position], owner[position]) for position in packing.order)


def rewrite_layout(
    dag: ComputeDAG, steps: Sequence[Step], option: LayoutRewriteOption
) -> tuple[ComputeDAG, tuple[Step, ...]]:
    """The graph and steps after the rewrite, or unchanged if there is nothing to rewrite.

    REWRITE_FOR_PRE_TRANSFORMED changes the shape of the inputs. INSERT_TRANSFORM_STAGE adds a stage right after the
    input, and steps that run it in parallel. A `ComputeDAG` of the tensors of the graph has the same stage numbers, so
    the steps fit it too; TVM's stage is right before the reader, which is the same unless another input is read later.
    Raises: ScheduleError, LoweringError when the steps do not fit.
    """
    steps = tuple(steps)
    if option is LayoutRewriteOption.NO_REWRITE:
        return dag, steps
    changes = relayouts(dag, steps)
    if option is LayoutRewriteOption.REWRITE_FOR_PRE_TRANSFORMED:
        for change in changes:
            dag = _with_new_input(dag, change)
        return dag, steps
    # From the last change on, so that an insertion leaves the numbers of earlier inputs; their readers may have moved.
    for index, change in enumerate(reversed(changes)):
        before = sum(earlier.source < change.reader for earlier in changes[len(changes) - index :])
        dag, steps = _with_transform(dag, steps, replace(change, reader=change.reader + before))
    return dag, steps


def _with_new_input(dag: ComputeDAG, change: Relayout) -> ComputeDAG:
    """The graph in which the input itself has the new layout."""
    old = dag.ops[change.source]
    laid = Tensor(PlaceholderOp(old.name, change.shape, old.dtype))
    nodes = list(dag.nodes)
    nodes[change.source] = Node((laid,), laid.op)
    return _rebuilt(dag, nodes, change, laid)


def _with_transform(dag: ComputeDAG, steps: Sequence[Step], change: Relayout) -> tuple[ComputeDAG, tuple[Step, ...]]:
    """The graph with a stage that rewrites the input's layout, and the steps with those that run it in parallel."""
    source = dag.nodes[change.source].tensor
    axes = tuple(
        Axis(f"{digit.axis}_{index}", digit.extent, AxisKind.SPATIAL) for index, digit in enumerate(change.digits)
    )
    names = [op.name for op in dag.ops]
    name = TRANSFORM + "_" * sum(taken.startswith(TRANSFORM) for taken in names)
    rewritten = Tensor(ComputeOp(name, axes, source[index_values(change.digits, axes, change.axes)], {}))
    nodes = list(dag.nodes)
    rebuilt = _rebuilt(dag, nodes, change, rewritten)
    position = change.source + 1
    inserted = (*rebuilt.nodes[:position], Node((rewritten,), rewritten.op), *rebuilt.nodes[position:])
    moved, stage = _renumber(steps, position)
    # As in TVM: of five or more loops three are fused and run in parallel, of three or four two.
    fused_loops = 3 if len(axes) >= 5 else 2 if len(axes) >= 3 else 1
    fuse = (Fuse(stage, tuple(range(fused_loops))),) if fused_loops > 1 else ()
    return rebuilt.with_nodes(inserted), (*moved, *fuse, Annotate(stage, 0, int(Annotation.PARALLEL)))


def _renumber(steps: Sequence[Step], stage: int) -> tuple[tuple[Step, ...], int]:
    """The steps for a program with one more stage at number `stage`, and its final number."""

    def renumber(number: int) -> int:
        return number + (number >= stage)

    renumbered: list[Step] = []
    for step in steps:
        changes: dict[str, Any] = {"stage": renumber(step.stage)}
        if isinstance(step, ComputeAt):
            changes["target_stage"] = renumber(step.target_stage)
        if isinstance(step, CacheRead):
            changes["readers"] = tuple(map(renumber, step.readers))
        renumbered.append(replace(step, **changes))
        # These steps add a stage before the new stage.
        if isinstance(step, CacheRead | CacheWrite | Rfactor) and step.stage < stage:
            stage += 1
    return tuple(renumbered), stage


def _rebuilt(dag: ComputeDAG, nodes: Sequence[Node], change: Relayout, rewritten: Tensor) -> ComputeDAG:
    """The graph over `nodes` in which the reader reads `rewritten`; everything after it is rebuilt."""
    source = dag.nodes[change.source].tensor
    replaced: dict[Tensor, Tensor] = {}
    if nodes[change.source].tensor == rewritten:
        replaced[source] = rewritten
    new_nodes = list(nodes)
    for number, node in enumerate(nodes):
        op = _relink(dag, node.op, change, rewritten, replaced, number == change.reader)
        if op is not node.op:
            new_nodes[number] = Node.of(op)
            replaced.update(zip(node.tensors, new_nodes[number].tensors, strict=True))
    ends = [tuple(replaced.get(tensor, tensor) for tensor in tensors) for tensors in (dag.inputs, dag.outputs)]
    return dag.with_nodes(new_nodes, ends[0], ends[1])


def _relink(
    dag: ComputeDAG,
    op: Operation,
    change: Relayout,
    rewritten: Tensor,
    replaced: Mapping[Tensor, Tensor],
    is_reader: bool,
) -> Operation:
    """An operation that reads rebuilt tensors; the reader of the input reads it in the new layout."""
    if isinstance(op, ExternOp) and any(tensor in replaced for tensor in op.inputs):
        return replace(op, inputs=tuple(replaced.get(tensor, tensor) for tensor in op.inputs))
    if isinstance(op, ScanOp) and any(tensor in replaced for tensor in op.inputs):
        inits, updates = (tuple(replaced.get(tensor, tensor) for tensor in part) for part in (op.inits, op.updates))
        return replace(op, inits=inits, updates=updates)
    if not isinstance(op, ComputeOp):
        return op
    source = dag.nodes[change.source].tensor

    def redirect_read(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        if is_reader and node.tensor == source:
            return rewritten[digit_values(change.digits, dict(zip(change.axes, node.indices, strict=True)))]
        return replaced[node.tensor][node.indices] if node.tensor in replaced else None

    body = transform(op.body, redirect_read)
    if body is op.body:
        return op
    attrs = dict(op.attrs)
    if is_reader:
        free = tuple(tensor for tensor in attrs.pop("layout_free_placeholders", ()) if tensor != source)
        attrs.update({"layout_free_placeholders": free} if free else {})
        shape = dag.ops[change.source].shape
        old = tuple(Digit(extent, axis) for extent, axis in zip(shape, change.axes, strict=True))
        attrs["ori_placeholder_layout"] = layout_text(old)
        attrs["new_placeholder_layout"] = layout_text(change.digits)
    return ComputeOp(op.name, op.axes, body, attrs)
