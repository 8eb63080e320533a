"""In: an optimised graph and a target. Out: the kernels it needs, as search tasks, and how often each is called.

Always: equal computations become one task; names inside a task are canonical (`p0`, `p1`, operator names), so its
workload key depends on what is computed and not on where in which network it stands.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from compiler import te
from compiler.graph.fuse import FusedOp, fuse
from compiler.graph.ir import Graph, Node
from compiler.graph.ops import OPS, FusionKind
from compiler.ir.expr import Const
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.layout import LayoutRewriteOption
from compiler.schedule.task import SearchTask
from compiler.target import HardwareParams, Target
from compiler.te.ops import OpCall, lower_op
from compiler.te.ops.call import Operand
from compiler.te.tensor import ComputeOp, Tensor

_STRIDED = ("conv2d", "qconv2d", "conv3d", "conv_transpose2d", "max_pool2d", "avg_pool2d")
_COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum"})


@dataclass(frozen=True, slots=True)
class FusedCall:
    """One call of kernel `name`: `inputs` and `outputs` are graph values in the order of its arguments."""

    name: str
    task: SearchTask
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Partition:
    """A network as calls of kernels.

    `kernels` are the calls in running order. `tasks` are the distinct kernels in order of first use, `weights` how
    often each is called, `tunable` which of them have loops worth searching: convolutions and products, whose data is
    reused, and reductions, whose order matters; the others run with the default schedule. `aliases` maps a value to
    the one whose memory it shares.
    """

    kernels: tuple[FusedCall, ...]
    tasks: tuple[SearchTask, ...]
    weights: tuple[int, ...]
    tunable: tuple[bool, ...]
    aliases: Mapping[str, str]

    def worth_tuning(self) -> tuple[tuple[SearchTask, ...], tuple[int, ...]]:
        """The tunable tasks and their weights."""
        chosen = [index for index, tunable in enumerate(self.tunable) if tunable]
        return tuple(self.tasks[index] for index in chosen), tuple(self.weights[index] for index in chosen)

    def __str__(self) -> str:
        lines = [
            f"{weight:3d} x {task.name}{'' if tunable else ' (default schedule)'}"
            for task, weight, tunable in zip(self.tasks, self.weights, self.tunable, strict=True)
        ]
        return "\n".join(lines)


def partition(graph: Graph, target: Target, hardware: HardwareParams) -> Partition:
    """Cut `graph` into kernels for `target`.

    Raises: DefinitionError when an operator has no tensor expression.
    """
    fusion = fuse(graph)
    layout = LayoutRewriteOption.get_target_default(target, in_relay_integration=True)
    tasks: dict[str, SearchTask] = {}
    weights: dict[str, int] = {}
    tunable: dict[str, bool] = {}
    names: set[str] = set()
    kernels = []
    for group in fusion.groups:
        inputs, dag = express(graph, group)
        key = dag.workload_key
        if key not in tasks:
            name = _unique(_describe(graph, group), names)
            tasks[key] = SearchTask(name, dag, target, hardware, layout=layout)
            tunable[key] = group.kind is FusionKind.COMPLEX or _reduces(dag)
        weights[key] = weights.get(key, 0) + 1
        labels = tuple(node.name or node.output for node in group.nodes)
        kernels.append(FusedCall(tasks[key].name, tasks[key], inputs, (group.output,), labels))
    return Partition(
        kernels=tuple(kernels),
        tasks=tuple(tasks.values()),
        weights=tuple(weights.values()),
        tunable=tuple(tunable.values()),
        aliases=fusion.aliases,
    )


def _reduces(dag: ComputeDAG) -> bool:
    return any(isinstance(op, ComputeOp) and op.reduce_axes for op in dag.ops)


def express(graph: Graph, group: FusedOp) -> tuple[tuple[str, ...], ComputeDAG]:
    """The group as tensor expressions: the graph values that it reads, in argument order, and the compute graph.

    Raises: DefinitionError when an operator has no tensor expression.
    """
    inside = {node.output for node in group.nodes}
    uses = [name for node in group.nodes for name in node.inputs]
    operands: dict[str, Operand] = {}
    placeholders: dict[str, Tensor] = {}
    known: set[Tensor] = set()
    names: set[str] = set()
    for node in group.nodes:
        for name in node.inputs:
            if name in operands or _literal(graph, node, name) is not None:
                continue
            value = graph.values[name]
            tensor = te.placeholder(value.shape, value.dtype, f"p{len(placeholders)}")
            placeholders[name] = operands[name] = tensor
            if name in graph.constants and uses.count(name) == 1:
                known.add(tensor)
        result = graph.values[node.output]
        chosen = tuple(_operand(graph, node, name, operands) for name in _ordered(node, inside))
        call = OpCall(
            node.op, chosen, node.attrs, result.shape, result.dtype, _unique(node.op, names), frozenset(known)
        )
        operands[node.output] = lower_op(call)
    output = operands[group.output]
    assert isinstance(output, Tensor)
    return tuple(placeholders), ComputeDAG([*placeholders.values(), output])


def _ordered(node: Node, inside: set[str]) -> tuple[str, ...]:
    """Operands; of a commutative operator the one computed in the group comes first."""
    if node.op in _COMMUTATIVE and node.inputs[1] in inside and node.inputs[0] not in inside:
        return node.inputs[::-1]
    return node.inputs


def _operand(graph: Graph, node: Node, name: str, operands: Mapping[str, Operand]) -> Operand:
    literal = _literal(graph, node, name)
    return operands[name] if literal is None else literal


def _literal(graph: Graph, node: Node, name: str) -> Const | None:
    """The constant `name` as a literal, when it is a single number that a binary operator combines with a tensor."""
    array = graph.constants.get(name)
    if OPS[node.op].kind is not FusionKind.BROADCAST or array is None or array.size != 1:
        return None
    if all(other in graph.constants and graph.constants[other].size == 1 for other in node.inputs):
        return None
    return te.const(array.reshape(()).item(), array.dtype.name)


def _unique(wish: str, taken: set[str]) -> str:
    name, count = wish, 0
    while name in taken:
        count += 1
        name = f"{wish}_{count}"
    taken.add(name)
    return name


def _describe(graph: Graph, group: FusedOp) -> str:
    """A readable name of a kernel that is a C identifier too, such as `conv2d_3x3_c64_s2_1x28x28x128_add_relu`."""
    first, *others = group.nodes
    words = [first.op]
    if first.op in ("conv2d", "conv3d", "conv_transpose2d", "qconv2d"):
        data, weight = graph.values[first.inputs[0]].shape, graph.values[first.inputs[1]].shape
        last, rank = not first.text("layout").startswith("NC"), len(data) - 2
        if first.op in ("conv2d", "qconv2d") and first.integer("groups") > 1:
            depthwise = math.prod(weight) == weight[0] * weight[1] * weight[-1]
            words[0] = f"{'depthwise' if depthwise else 'group'}_{first.op}"
        words.append("x".join(map(str, weight[:rank] if last else weight[2:])))
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
    return "_".join([*words, *(node.op for node in others)])[:96]
