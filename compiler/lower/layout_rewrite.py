"""Rewrites the layout of constant inputs so that a schedule reads them sequentially.

The computation stays the same. The layout is the one that the code generator packs constants in: the index digits in
the order of the loops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retune.compiler.ir.expr import Expr, const
from retune.compiler.ir.visit import transform
from retune.compiler.lower.build_loops import build_loops
from retune.compiler.lower.passes import PackConstants, SimplifyIndices
from retune.compiler.packing import Packing
from retune.compiler.schedule.dag import ComputeDAG, Node
from retune.compiler.schedule.layout import Digit, Digits, LayoutRewriteOption, digit_values, index_values, layout_text
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, CacheRead, CacheWrite, ComputeAt, Fuse, Rfactor, Step
from retune.compiler.te.tensor import Axis, AxisKind, ComputeOp, ExternOp, Operation, PlaceholderOp, Tensor, TensorRead

TRANSFORM = "auto_scheduler_layout_transform"
"""Name of the stage that lays an input out again."""


@dataclass(frozen=True, slots=True)
class Relayout:
    """How an operation wants one of its inputs laid out."""

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
        """How an array of the old layout becomes one of the new."""
        places = [place for axis in self.axes for place, digit in enumerate(self.digits) if digit.axis == axis]
        order = sorted(range(len(places)), key=places.__getitem__)
        return Packing(tuple(self.digits[place].extent for place in places), tuple(order))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the new layout."""
        return tuple(digit.extent for digit in self.digits)


def relayouts(dag: ComputeDAG, steps: Sequence[Step]) -> tuple[Relayout, ...]:
    """The layouts that suit a schedule, for inputs that one operation reads in one place by plain indices.

    Others keep their layout, and so does one that is cached first: steps speak of the dimensions of the cache.
    Raises: ScheduleError, LoweringError when the steps do not fit.
    """
    if not steps or not dag.layout_free:
        return ()
    # The layout comes from the pass that packs constants, so that both agree on the order of the loops. It has the same
    # elements here: an input that the pass would pad keeps its own layout.
    function = PackConstants(pads=False).apply(SimplifyIndices().apply(build_loops(replay(dag, steps), "layout")))
    names = [param.name for param in function.params]
    cached = _cached_inputs(dag, steps)
    found = []
    for name, packing in function.packings:
        source = dag.id_of(dag.inputs[names.index(name)])
        readers = dag.readers[source]
        axes = _axis_names(dag, readers[0], source) if len(readers) == 1 and source not in cached else None
        digits = None if axes is None else _named(packing, dag.ops[source].shape, axes)
        if axes is not None and digits is not None:
            found.append(Relayout(source, readers[0], axes, digits))
    return tuple(sorted(found, key=lambda each: each.source))


def _cached_inputs(dag: ComputeDAG, steps: Sequence[Step]) -> set[int]:
    """Numbers of the operations of `dag` that have a read cache after `steps`."""
    cached: set[int] = set()
    numbers = list(range(len(dag.ops)))  # of the operations of `dag`, in the program so far
    for step in steps:
        if isinstance(step, CacheRead):
            cached.update(old for old, number in enumerate(numbers) if number == step.stage)
        if isinstance(step, CacheRead | CacheWrite | Rfactor):
            # A write cache or a factored reduction takes the number of the stage, a read cache the next one.
            first = step.stage + isinstance(step, CacheRead)
            numbers = [number + (number >= first) for number in numbers]
    return cached


def _axis_names(dag: ComputeDAG, reader: int, source: int) -> tuple[str, ...] | None:
    """Names for the dimensions of an input: those of the axes that index it; None when an index is anything else."""
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


def _named(packing: Packing, shape: Sequence[int], axes: Sequence[str]) -> Digits | None:
    """The packing as digits of the axes; None when an inner digit lies outside an outer one of the same axis."""
    owner: list[str] = []
    for extent, axis in zip(shape, axes, strict=True):
        product, first = 1, len(owner)
        # The digits of one axis multiply up to its extent, which tells where the next axis begins.
        while product < extent or len(owner) == first:
            product *= packing.dims[len(owner)]
            owner.append(axis)
    for axis in axes:
        places = [place for place in packing.order if owner[place] == axis]
        if places != sorted(places):
            return None
    return tuple(Digit(packing.dims[place], owner[place]) for place in packing.order)


def rewrite_layout(
    dag: ComputeDAG, steps: Sequence[Step], option: LayoutRewriteOption
) -> tuple[ComputeDAG, tuple[Step, ...]]:
    """The graph and steps after the rewrite; those given when nothing is to be rewritten.

    REWRITE_FOR_PRE_TRANSFORMED changes the shape of the inputs. INSERT_TRANSFORM_STAGE adds a stage right after the
    input, and steps that run it in parallel. A `ComputeDAG` of the tensors of the graph numbers its stages alike, so
    the steps fit that too; TVM's stage stands right before the reader, which is the same unless another input is read
    later.
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
    # From behind, so that an insertion leaves the numbers of the inputs that follow; their readers may have moved.
    for place, change in enumerate(reversed(changes)):
        before = sum(other.source < change.reader for other in changes[len(changes) - place :])
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
    """The graph with a stage that lays the input out again, and the steps with what runs that stage in parallel."""
    source = dag.nodes[change.source].tensor
    axes = tuple(
        Axis(f"{digit.axis}_{place}", digit.extent, AxisKind.SPATIAL) for place, digit in enumerate(change.digits)
    )
    taken = [op.name for op in dag.ops]
    name = TRANSFORM + "_" * sum(other.startswith(TRANSFORM) for other in taken)
    laid = Tensor(ComputeOp(name, axes, source[index_values(change.digits, axes, change.axes)], {}))
    nodes = list(dag.nodes)
    rebuilt = _rebuilt(dag, nodes, change, laid)
    behind = change.source + 1
    inserted = (*rebuilt.nodes[:behind], Node((laid,), laid.op), *rebuilt.nodes[behind:])
    moved, place = _renumbered(steps, behind)
    # As in TVM: of five or more loops three run in parallel as one, of three or four two.
    together = 3 if len(axes) >= 5 else 2 if len(axes) >= 3 else 1
    fuse = (Fuse(place, tuple(range(together))),) if together > 1 else ()
    return rebuilt.with_nodes(inserted), (*moved, *fuse, Annotate(place, 0, int(Annotation.PARALLEL)))


def _renumbered(steps: Sequence[Step], place: int) -> tuple[tuple[Step, ...], int]:
    """The steps for a program with one more stage at number `place`, and the number which that has in the end."""

    def moved(number: int) -> int:
        return number + (number >= place)

    found: list[Step] = []
    for step in steps:
        changes: dict[str, Any] = {"stage": moved(step.stage)}
        if isinstance(step, ComputeAt):
            changes["target_stage"] = moved(step.target_stage)
        if isinstance(step, CacheRead):
            changes["readers"] = tuple(map(moved, step.readers))
        found.append(replace(step, **changes))
        # These steps add a stage, before the place that is looked for.
        if isinstance(step, CacheRead | CacheWrite | Rfactor) and step.stage < place:
            place += 1
    return tuple(found), place


def _rebuilt(dag: ComputeDAG, nodes: Sequence[Node], change: Relayout, laid: Tensor) -> ComputeDAG:
    """The graph over `nodes` in which the reader reads `laid`; everything after it is made again."""
    source = dag.nodes[change.source].tensor
    known: dict[Tensor, Tensor] = {}
    if nodes[change.source].tensor == laid:
        known[source] = laid
    found = list(nodes)
    for number, node in enumerate(nodes):
        op = _relinked(dag, node.op, change, laid, known, number == change.reader)
        if op is not node.op:
            found[number] = Node.of(op)
            known.update(zip(node.tensors, found[number].tensors, strict=True))
    ends = [tuple(known.get(tensor, tensor) for tensor in tensors) for tensors in (dag.inputs, dag.outputs)]
    return dag.with_nodes(found, ends[0], ends[1])


def _relinked(
    dag: ComputeDAG, op: Operation, change: Relayout, laid: Tensor, known: Mapping[Tensor, Tensor], is_reader: bool
) -> Operation:
    """An operation that reads what was made again; the reader of the input reads it in the new layout."""
    if isinstance(op, ExternOp) and any(tensor in known for tensor in op.inputs):
        return replace(op, inputs=tuple(known.get(tensor, tensor) for tensor in op.inputs))
    if not isinstance(op, ComputeOp):
        return op
    source = dag.nodes[change.source].tensor

    def redirected(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        if is_reader and node.tensor == source:
            return laid[digit_values(change.digits, dict(zip(change.axes, node.indices, strict=True)))]
        return known[node.tensor][node.indices] if node.tensor in known else None

    body = transform(op.body, redirected)
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
