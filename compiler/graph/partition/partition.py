"""Partition of an optimized graph into kernels: search tasks and how often each kernel is called.

Equal computations become one task. Names inside a task are canonical (`p0`, `p1`, operator names), so its workload key
depends on the computation only, not on its position in a network.

A task may have alternatives: other tasks whose kernels compute the same result. The calls are the direct kernels' until
`with_alternatives` replaces some.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.attention import PRODUCTS, is_attention, join_attention, with_wide_weights
from retune.compiler.graph.partition.express import express, group_signature
from retune.compiler.graph.partition.fuse import FusedOp, Fusion, fuse
from retune.compiler.graph.partition.join_producers import join_producers
from retune.compiler.graph.partition.winograd import Winograd
from retune.compiler.ir.dims import Dim, estimate
from retune.compiler.ops import FusionKind
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import inlined_by_default
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.default.row_blocks import find_row_blocks
from retune.compiler.schedule.default.shares import SMALL_SHARE, shares_of
from retune.compiler.schedule.state import Inlined
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.prim_func import unique_name
from retune.compiler.te.symbols import instantiate, symbols_of
from retune.compiler.te.tensor import ComputeOp

_CONVOLUTIONS = ("conv2d", "conv3d", "conv_transpose2d", "conv_phases2d", "qconv2d", "qconv3d", "qconv_phases2d")
_STRIDED = (*_CONVOLUTIONS, "max_pool2d", "avg_pool2d")
# Names become file names in archives and symbols of libraries, with prefixes and suffixes: 255 bytes are the limit.
_LONGEST = 96
"""Maximal length of a kernel's name."""
_ROWS = 32
"""Most rows of a block of attention's scores."""


@dataclass(frozen=True, slots=True)
class FusedCall:
    """One call of a kernel.

    `name` is the kernel's name and `task` its search task. `inputs` and `outputs` are graph values in the order of the
    kernel's arguments; `nodes` are the labels of the graph nodes it computes.
    """

    name: str
    task: SearchTask
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]


CLEARLY_FASTER = 1.25
"""The predicted speedup from which on an unmeasured alternative is used; predictions err by a fifth."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """`task` computes the same result as the task with workload key `of`, by the rewrite `rewrite`; it is predicted to
    be `speedup` times as fast, both in their default schedules.
    """

    task: SearchTask
    of: str
    rewrite: Winograd
    speedup: float


@dataclass(frozen=True, slots=True)
class Partition:
    """A network as a sequence of kernel calls.

    `kernels` are the calls in execution order. `tasks` are the distinct kernels in order of first use, `weights` their
    numbers of calls. `tunable` flags the tasks with loops worth searching: convolutions and products (data reuse),
    reductions (loop order), and other tasks with a share of the network's time; the rest keep the default schedule.
    `aliases` maps a value to the value whose buffer it shares. `alternatives` are further tasks, each equivalent to one
    of `tasks`.
    """

    kernels: tuple[FusedCall, ...]
    tasks: tuple[SearchTask, ...]
    weights: tuple[int, ...]
    tunable: tuple[bool, ...]
    aliases: Mapping[str, str]
    alternatives: tuple[Alternative, ...] = ()

    def worth_tuning(self) -> tuple[tuple[SearchTask, ...], tuple[int, ...]]:
        """The tunable tasks and their weights, without alternatives."""
        chosen = [index for index, tunable in enumerate(self.tunable) if tunable]
        return tuple(self.tasks[index] for index in chosen), tuple(self.weights[index] for index in chosen)

    def of_reductions(self) -> "Partition":
        """The partition with only data reuse and reductions tunable."""
        tunable = tuple(
            is_tunable and _reduces(task.dag) for task, is_tunable in zip(self.tasks, self.tunable, strict=True)
        )
        return replace(self, tunable=tunable)

    def layers(self) -> tuple["Layer", ...]:
        """The tunable tasks, each with its alternatives."""
        layers = []
        for task, weight in zip(*self.worth_tuning(), strict=True):
            ways = (task, *(other.task for other in self.alternatives_of(task)))
            first = self.predicted_alternative(task)
            layers.append(
                Layer(ways if first is None else (first.task, *(w for w in ways if w is not first.task)), weight)
            )
        return tuple(layers)

    def predicted_alternative(self, task: SearchTask) -> Alternative | None:
        """The fastest alternative to `task` by prediction, if it is clearly faster."""
        best = max(self.alternatives_of(task), key=lambda other: other.speedup, default=None)
        return best if best is not None and best.speedup >= CLEARLY_FASTER else None

    def alternatives_of(self, task: SearchTask) -> tuple[Alternative, ...]:
        return tuple(other for other in self.alternatives if other.of == task.workload_key)

    def __str__(self) -> str:
        lines = []
        for task, weight, tunable in zip(self.tasks, self.weights, self.tunable, strict=True):
            lines.append(f"{weight:3d} x {task.name}{'' if tunable else ' (default schedule)'}")
            lines += [f"   or {other.task.name}" for other in self.alternatives_of(task)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Layer:
    """A tunable computation of a network: `tasks` are the equivalent ways to compute it, first the default while none
    is measured; `weight` is its number of calls.
    """

    tasks: tuple[SearchTask, ...]
    weight: int


def partition(
    graph: Graph,
    target: Target,
    hardware: HardwareParams,
    rewrites: Sequence[Winograd] = (),
    names: set[str] | None = None,
) -> Partition:
    """Cut `graph` into kernels for `target`; `rewrites` are the kinds of alternatives for its tasks. `names` are the
    names of other kernels to avoid; the new names are added.

    Raises: DefinitionError when an operator is lowered in another layout only.
    """
    expressions = _ExpressionCache(graph)
    fusion = _fusion(graph, target, expressions)
    layout = LayoutRewriteOption.get_target_default(target, in_relay_integration=True)
    tasks: dict[str, SearchTask] = {}
    weights: dict[str, int] = {}
    kinds: dict[str, FusionKind] = {}
    names = set() if names is None else names
    kernels = []
    alternatives: list[Alternative] = []
    for group in fusion.groups:
        inputs, dag = expressions.of(group)
        key = dag.workload_key
        # Hash consing by workload key: equal layers are tuned once, and their weights add up.
        if key not in tasks:
            name = unique_name(_kernel_name(graph, group), names)
            tasks[key] = SearchTask(name, dag, target, hardware, layout=layout)
            kinds[key] = group.kind
            alternatives += _alternatives(graph, group, tasks[key], rewrites, names)
        # An alternative serves every call of its task, so its error must be small with the constants of each call.
        alternatives = [other for other in alternatives if other.of != key or other.rewrite.is_accurate(graph, group)]
        weights[key] = weights.get(key, 0) + 1
        labels = tuple(node.name or node.output for node in group.nodes)
        kernels.append(FusedCall(tasks[key].name, tasks[key], inputs, (group.output,), labels))
    shares = shares_of([with_numbers(task.dag) for task in tasks.values()], [*weights.values()])
    return Partition(
        kernels=tuple(kernels),
        tasks=tuple(tasks.values()),
        weights=tuple(weights.values()),
        tunable=tuple(
            kind is FusionKind.COMPLEX or _reduces(task.dag) or (kind is not FusionKind.OPAQUE and share >= SMALL_SHARE)
            for task, kind, share in zip(tasks.values(), kinds.values(), shares, strict=True)
        ),
        aliases=fusion.aliases,
        alternatives=tuple(alternatives),
    )


class _ExpressionCache:
    """The tensor expressions of groups of one graph, cached: a signature takes a hundredth of their time."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._known: dict[str, ComputeDAG] = {}

    def of(self, group: FusedOp) -> tuple[tuple[str, ...], ComputeDAG]:
        """The values that the group reads, in the order of its arguments, and its expressions."""
        inputs, signature = group_signature(self._graph, group)
        if signature not in self._known:
            self._known[signature] = express(self._graph, group)
        return inputs, self._known[signature]


def _fusion(graph: Graph, target: Target, expressions: _ExpressionCache) -> Fusion:
    """The groups of nodes that form kernels on a target."""
    fusion = fuse(graph)
    if target.traits.uses_threads:
        fusion = join_attention(
            graph,
            with_wide_weights(graph, fusion),
            lambda group: find_row_blocks(with_numbers(expressions.of(group)[1])) is not None,
        )
    return join_producers(graph, fusion, lambda group: _nests(with_numbers(expressions.of(group)[1])))


def with_numbers(dag: ComputeDAG) -> ComputeDAG:
    """The computation with likely numbers for symbolic extents, for choices that are right either way: multiples of the
    rows of a block, since symbolic kernels take any number of rows.
    """
    symbols = symbols_of((*dag.inputs, *dag.outputs))
    if not symbols:
        return dag
    numbers = {name: -(-estimate(Dim.symbol(name)) // _ROWS) * _ROWS for name in symbols}
    return ComputeDAG(instantiate((*dag.inputs, *dag.outputs), numbers))


def _nests(dag: ComputeDAG) -> int:
    """Number of loop nests of the default schedule."""
    stages = inlined_by_default(dag).stages
    return sum(stage.is_compute and not isinstance(stage.location, Inlined) for stage in stages)


def _alternatives(
    graph: Graph, group: FusedOp, task: SearchTask, rewrites: Sequence[Winograd], names: set[str]
) -> list[Alternative]:
    """The alternatives to a group, whose own task is `task`."""
    alternatives = []
    for rewrite in rewrites:
        variant = rewrite.variant(graph, group)
        if variant is not None:
            dag = express(variant.declare(graph), variant.group)
            name = unique_name(f"{rewrite.name}_{task.name}"[:_LONGEST], names)
            speedup = rewrite.speedup(graph, group, task.hardware)
            alternatives.append(Alternative(replace(task, name=name, dag=dag), task.workload_key, rewrite, speedup))
    return alternatives


def with_alternatives(graph: Graph, cut: Partition, chosen: Sequence[Alternative]) -> tuple[Graph, Partition]:
    """The graph and its kernels with `chosen` alternatives, at most one per task, in place of the direct kernels."""
    alternative_of = {other.of: other for other in chosen}
    kernels = []
    groups = _fusion(graph, cut.tasks[0].target, _ExpressionCache(graph)).groups if cut.tasks else ()
    for group, call in zip(groups, cut.kernels, strict=True):
        other = alternative_of.get(call.task.workload_key)
        variant = None if other is None else other.rewrite.variant(graph, group)
        if other is None or variant is None:
            kernels.append(call)
            continue
        graph = variant.compute(graph)
        inputs, _ = group_signature(graph, variant.group)
        kernels.append(replace(call, name=other.task.name, task=other.task, inputs=inputs))
    tasks = tuple(
        alternative_of[task.workload_key].task if task.workload_key in alternative_of else task for task in cut.tasks
    )
    return graph, replace(cut, kernels=tuple(kernels), tasks=tasks, alternatives=())


def _reduces(dag: ComputeDAG) -> bool:
    return any(isinstance(op, ComputeOp) and op.reduce_axes for op in dag.ops)


def _kernel_name(graph: Graph, group: FusedOp) -> str:
    """A readable kernel name that is a C identifier, such as `conv2d_3x3_c64_s2_1x28x28x128_add_relu`."""
    first, others = group.core, [node for node in group.nodes if node is not group.core]
    words = [first.op]
    if is_attention(group):
        words, others = ["attention"], [node for node in others if node.op not in (*PRODUCTS, "softmax")]
    if first.op in _CONVOLUTIONS:
        data, weight = graph.values[first.inputs[0]].shape, graph.values[first.inputs[1]].shape
        last, rank = not first.text("layout").startswith("NC"), len(data) - 2
        if first.op in ("conv2d", "qconv2d") and first.integer("groups") > 1:
            depthwise = math.prod(weight) == weight[0] * weight[1] * weight[-1]
            words[0] = f"{'depthwise' if depthwise else 'group'}_{first.op}"
        window = first.ints("window") if first.op == "qconv2d" else ()
        words.append("x".join(map(str, window or (weight[:rank] if last else weight[2:]))))
        words.append(f"c{data[-1 if last else 1]}")
    if first.op in ("dense", "batch_matmul", "qdense", "qbatch_matmul"):
        words.append(f"k{graph.values[first.inputs[0]].shape[-1]}")
    if first.op == "contract":
        word, shape = first.text("left"), graph.values[first.inputs[0]].shape
        inner = (extent for letter, extent in zip(word, shape, strict=True) if letter not in first.text("result"))
        words.append(f"k{math.prod(inner)}")
    if first.op in _STRIDED and max(first.ints("strides")) > 1:
        words.append(f"s{max(first.ints('strides'))}")
    words.append("x".join(map(str, graph.values[first.output].shape)) or "scalar")
    # Symbolic extents are written as sums of products.
    return re.sub(r"\W+", "_", "_".join([*words, *(node.op for node in others)]))[:_LONGEST]
