"""Dependence analysis of ONNX nodes: the values that must be known to import a node statically.

A value's shape is known if the value is known, so a result computed from shapes alone depends on no value.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import onnx

from retune.compiler.core.errors import ModelFormatError
from retune.compiler.frontend.model_file import name_of, operator_of

Names = frozenset[str]
Roots = Callable[[str], Names]
"""The values that a value depends on: inputs of a region, or none if it is known from shapes."""

NOTHING: Names = frozenset()

_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

NEEDED: Mapping[str, tuple[int, ...]] = {
    **{f"Reduce{name}": (1,) for name in _REDUCTIONS},
    "BlackmanWindow": (0,),
    "Col2Im": (1, 2),
    "Compress": (1,),
    "ConstantOfShape": (0,),
    "CumProd": (1,),
    "CumSum": (1,),
    "DFT": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonMaxSuppression": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "OneHot": (1,),
    "Pad": (1, 3),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "SequenceAt": (1,),
    "SequenceErase": (1,),
    "SequenceInsert": (2,),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "SplitToSequence": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unique": (0,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
    "com.microsoft.ConvTransposeWithDynamicPads": (2,),
    "com.microsoft.ExpandDims": (1,),
    "com.microsoft.GroupQueryAttention": (6,),
    "com.microsoft.Pad": (1, 2),
    "com.microsoft.Range": (0, 1, 2),
    "com.microsoft.Trilu": (1,),
}
"""The operands that converters must know, by operator; a missing entry costs a second import."""

ON_THE_HOST = ("Compress", "NonMaxSuppression", "NonZero", "Unique")
"""Operators whose data, not some small operand, decides the number of elements."""

CONTROL_FLOW = ("If", "Loop", "Scan")


@dataclass(frozen=True, slots=True)
class Dependence:
    """The dependences of importing a node, as sets of value names.

    `decides` are the values that control flow depends on, `needs` the values that shapes depend on, and `results` the
    sources of each result, one set per output.
    """

    decides: Names
    needs: Names
    results: tuple[Names, ...]


def bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def body(node: onnx.NodeProto, key: str) -> onnx.GraphProto:
    graphs: list[onnx.GraphProto] = [attribute.g for attribute in node.attribute if attribute.name == key]
    return graphs[0]


def free_names(graph: onnx.GraphProto) -> tuple[str, ...]:
    """The names that a graph reads from enclosing graphs, in the order of their first use."""
    own = {entry.name for entry in graph.input} | {tensor.name for tensor in graph.initializer}
    names: dict[str, None] = {}
    for node in graph.node:
        names.update((name, None) for name in read_names(node) if name not in own)
        own.update(node.output)
    names.update((entry.name, None) for entry in graph.output if entry.name not in own)
    return tuple(names)


def read_names(node: onnx.NodeProto) -> tuple[str, ...]:
    """The distinct names that a node reads, including its sub-graphs, without omitted operands."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in bodies(node):
        names.update(dict.fromkeys(free_names(graph)))
    return tuple(names)


def needed_operands(node: onnx.NodeProto) -> tuple[str, ...]:
    """The operands that must be known to import an ordinary node."""
    indices = NEEDED.get(operator_of(node), ())
    return tuple(node.input[index] for index in indices if index < len(node.input) and node.input[index])


def examine(node: onnx.NodeProto, roots: Roots) -> Dependence:
    """The dependences of importing the node, with loops unrolled."""
    match node.op_type:
        case "If":
            return _of_condition(node, roots)
        case "Loop":
            return _of_loop(node, roots)
        case "Scan":
            return _of_scan(node, roots)
        case "Shape" | "Size":
            return Dependence(NOTHING, NOTHING, (NOTHING,))
    needs = _union(roots(name) for name in needed_operands(node))
    values = _union(roots(name) for name in node.input if name)
    decides = needs if node.op_type in ON_THE_HOST else NOTHING
    return Dependence(decides, needs, (values,) * len(node.output))


def _union(parts: Iterator[Names]) -> Names:
    return NOTHING.union(*parts)


def _of_graph(graph: onnx.GraphProto, roots: Roots, known: Mapping[str, Names]) -> Dependence:
    inner = dict(known)

    def sources(name: str) -> Names:
        return inner[name] if name in inner else roots(name)

    decides, needs = NOTHING, NOTHING
    for node in graph.node:
        seen = examine(node, sources)
        decides, needs = decides | seen.decides, needs | seen.needs
        inner.update(zip(node.output, seen.results, strict=False))
    return Dependence(decides, needs, tuple(sources(entry.name) for entry in graph.output))


def _of_condition(node: onnx.NodeProto, roots: Roots) -> Dependence:
    then, otherwise = (_of_graph(body(node, key), roots, {}) for key in ("then_branch", "else_branch"))
    condition = roots(node.input[0])
    results = tuple(a | b | condition for a, b in zip(then.results, otherwise.results, strict=True))
    return Dependence(condition | then.decides | otherwise.decides, then.needs | otherwise.needs, results)


def _of_loop(node: onnx.NodeProto, roots: Roots) -> Dependence:
    ends = _union(roots(name) for name in node.input[:2] if name)
    iteration, condition, *names = (entry.name for entry in body(node, "body").input)
    # The counter is known while a loop is unrolled.
    fixed = {iteration: NOTHING, condition: NOTHING}
    seen = _iterate(body(node, "body"), roots, fixed, names, [roots(name) for name in node.input[2:]], skip=1)
    return Dependence(ends | seen.decides | seen.results[0], seen.needs, seen.results[1:])


def _of_scan(node: onnx.NodeProto, roots: Roots) -> Dependence:
    count = _number_of_sequences(node)
    operands, names = list(node.input), [entry.name for entry in body(node, "body").input]
    fixed = {name: roots(operand) for name, operand in zip(names[-count:], operands[-count:], strict=False)}
    return _iterate(body(node, "body"), roots, fixed, names[:-count], [roots(name) for name in operands[:-count]], 0)


def _iterate(
    graph: onnx.GraphProto, roots: Roots, fixed: Mapping[str, Names], names: list[str], start: list[Names], skip: int
) -> Dependence:
    """The dependences of a body whose results after the first `skip` are the next iteration's operands `names`."""
    carried = start
    # A fixed point by iteration: the sets only grow, and there are finitely many names.
    while True:
        seen = _of_graph(graph, roots, {**fixed, **dict(zip(names, carried, strict=False))})
        more = [a | b for a, b in zip(carried, seen.results[skip:], strict=False)]
        if more == carried:
            return seen
        carried = more


def check_bodies(graph: onnx.GraphProto) -> None:
    """Check that every condition, loop and scan fits its bodies, which ONNX's checker skips.

    Raises: ModelFormatError that names the node.
    """
    for node in graph.node:
        for inner in bodies(node):
            check_bodies(inner)
        if node.op_type in CONTROL_FLOW and not _fits(node):
            raise ModelFormatError(f"{name_of(node)!r} ({node.op_type}): its operands or results do not fit its body")


def _fits(node: onnx.NodeProto) -> bool:
    graphs, operands, results = tuple(bodies(node)), len(node.input), len(node.output)
    if node.op_type == "If":
        branches = all(len(graph.output) == results and not graph.input for graph in graphs)
        return operands == 1 and len(graphs) == 2 and branches
    if len(graphs) != 1 or len(graphs[0].input) != operands:
        return False
    made = len(graphs[0].output)
    if node.op_type == "Loop":
        return operands >= 2 and made >= operands - 1 and results <= made - 1
    count = _number_of_sequences(node)
    return 0 < count <= operands and operands - count <= made and results == made


def _number_of_sequences(node: onnx.NodeProto) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == "num_scan_inputs"), 0)
