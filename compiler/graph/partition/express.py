"""Tensor expressions of a fused group.

Kernels keep sums of products of halves, and results of elementwise operators, in float32 until the last, which they
round once.
"""

from dataclasses import dataclass, field, replace

from retune.compiler import te
from retune.compiler.core.dtype import HALVES
from retune.compiler.graph.ir import Graph, Node
from retune.compiler.graph.partition.attention import PRODUCTS, rounded_weights
from retune.compiler.graph.partition.fuse import FusedOp
from retune.compiler.ir.expr import Const
from retune.compiler.ops import OPS, FusionKind
from retune.compiler.ops.op import Operand
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.prim_func import unique_name
from retune.compiler.te.tensor import Tensor

_CONVOLUTIONS = ("conv2d", "conv3d", "conv_transpose2d", "conv_phases2d", "winograd_conv2d", "winograd_conv3d")
_SUMMED = (*_CONVOLUTIONS, *PRODUCTS)
"""Operators that sum products and have a sum of another dtype than the operands'."""
_ROUNDED = frozenset(
    (
        *("add", "sub", "mul", "div", "exp", "sqrt", "erf", "tanh", "sigmoid", "softplus"),
        *("leaky_relu", "hard_swish", "silu", "gelu", "gelu_tanh"),
    )
)
"""Continuous operators: results move little with operands that are not rounded. Comparisons and floors would jump."""
_EXACT = frozenset(("reshape", "slice", "transpose", "where", "maximum", "minimum", "neg", "abs", "relu", "clip"))
"""The same where halves need no conversion."""


def group_signature(graph: Graph, group: FusedOp) -> tuple[tuple[str, ...], str]:
    """The group's operand values, in argument order, and a key: equal keys have the same tensor expressions."""
    uses = [name for node in group.nodes for name in node.inputs]
    numbers: dict[str, int] = {}
    inputs, lines = [], []
    for node in group.nodes:
        words = []
        for name in node.inputs:
            value, literal = graph.values[name], literal_of(graph, node, name)
            if literal is not None:
                words.append(f"{literal.value!r}: {value.dtype}{value.shape}")
                continue
            if name not in numbers:
                numbers[name] = len(numbers)
                inputs.append(name)
            # The condition of `express` for a constant.
            packs = name in graph.constants and uses.count(name) == 1
            words.append(f"%{numbers[name]}: {value.dtype}{value.shape}{' constant' * packs}")
        numbers[node.output] = len(numbers)
        lines.append(f"{node.op}({', '.join(words)}) {sorted(node.attrs.items())}")
    return tuple(inputs), "\n".join(lines)


def express(graph: Graph, group: FusedOp) -> ComputeDAG:
    """The group as tensor expressions. The arguments are those of `group_signature`.

    Raises: DefinitionError when an operator is lowered in another layout only.
    """
    writer = _Writer(graph, group)
    for node in group.nodes:
        writer.add(node)
    output = writer.operands[group.output]
    assert isinstance(output, Tensor)
    return ComputeDAG([*writer.placeholders.values(), output])


@dataclass(slots=True)
class _Writer:
    """Writes the expressions of the nodes of `group`, in order."""

    graph: Graph
    group: FusedOp
    operands: dict[str, Operand] = field(default_factory=dict)
    placeholders: dict[str, Tensor] = field(default_factory=dict)
    known: set[Tensor] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    wide: frozenset[str] = field(init=False)
    kept: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.wide = _float32_results(self.graph, self.group)
        self.kept = _kept_in_float32(self.group, self.wide)

    def add(self, node: Node) -> None:
        """Define the result of a node."""
        inside, value = {other.output for other in self.group.nodes}, self.graph.values[node.output]
        # The arguments are numbered as `group_signature` does, whatever the order of the operands.
        by_name = {name: self._operand(node, name) for name in node.inputs}
        order = order_operands(node, inside)
        operands = [by_name[name] for name in order]
        types = [self.graph.values[name] for name in order]
        is_wide = node.output in self.wide and node.op not in _SUMMED
        if node is rounded_weights(self.group) or (is_wide and node.op == "cast" and order[0] in self.kept):
            self.operands[node.output] = operands[0]
            return
        if is_wide:
            operands = [self._widen(operand) for operand in operands]
            types = [replace(given, dtype="float32") if given.dtype in HALVES else given for given in types]
        result = OPS[node.op].tensor(
            operands,
            node.attrs,
            name=unique_name(node.op, self.names),
            constants=frozenset(self.known),
            types=types,
            out_dtype="float32" if node.op in _SUMMED and node.output in self.kept else "",
        )
        if is_wide and value.dtype in HALVES and node.output not in self.kept:
            result = self._cast(result, value.dtype, f"{node.op}_rounded")
        self.operands[node.output] = result

    def _operand(self, node: Node, name: str) -> Operand:
        literal = literal_of(self.graph, node, name)
        if literal is not None:
            return literal
        if name not in self.operands:
            value = self.graph.values[name]
            tensor = te.placeholder(value.shape, value.dtype, f"p{len(self.placeholders)}")
            self.placeholders[name] = self.operands[name] = tensor
            # Only a constant with a single use in the group may be repacked: its layout then suits one access.
            if name in self.graph.constants and sum(other.inputs.count(name) for other in self.group.nodes) == 1:
                self.known.add(tensor)
        return self.operands[name]

    def _widen(self, operand: Operand) -> Operand:
        if operand.dtype not in HALVES:
            return operand
        if isinstance(operand, Const):
            return te.const(operand.value, "float32")
        return self._cast(operand, "float32", f"{operand.name}_float32")

    def _cast(self, tensor: Tensor, dtype: str, name: str) -> Tensor:
        return te.compute(tensor.shape, lambda *i: te.cast(dtype, tensor[i]), unique_name(name, self.names))


def _float32_results(graph: Graph, group: FusedOp) -> frozenset[str]:
    """What a group computes in float32 although it is of halves, and casts of that to float32."""
    wide = set[str]()
    for node in group.nodes:
        dtype = graph.values[node.output].dtype
        follows = not wide.isdisjoint(node.inputs)
        if dtype in HALVES:
            is_wide = node.op in (*_SUMMED, *_ROUNDED) or (follows and node.op in _EXACT)
        else:
            is_wide = follows and node.op == "cast" and dtype == "float32"
        if is_wide:
            wide.add(node.output)
    return frozenset(wide)


def _kept_in_float32(group: FusedOp, wide: frozenset[str]) -> frozenset[str]:
    """Those of `wide` that are never halves: only others of `wide` read them."""
    readers: dict[str, list[Node]] = {name: [] for name in wide}
    for node in group.nodes:
        for name in wide.intersection(node.inputs):
            readers[name].append(node)
    return frozenset(
        name
        for name, nodes in readers.items()
        if nodes and all(node.output in wide and node.op not in _SUMMED for node in nodes)
    )


def order_operands(node: Node, inside: set[str]) -> tuple[str, ...]:
    """Operands; for a commutative operator, the operand computed in the group comes first."""
    if OPS[node.op].commutative and node.inputs[1] in inside and node.inputs[0] not in inside:
        # One order for `a + b` and `b + a` gives them one workload key.
        return node.inputs[::-1]
    return node.inputs


def literal_of(graph: Graph, node: Node, name: str) -> Const | None:
    """The constant `name` as a literal if it is a single number that a binary operator combines with a tensor."""
    array = graph.constants.get(name)
    if OPS[node.op].kind is not FusionKind.BROADCAST or array is None or array.size != 1:
        return None
    if all(other in graph.constants and graph.constants[other].size == 1 for other in node.inputs):
        return None
    return te.const(array.reshape(()).item(), array.dtype.name)
