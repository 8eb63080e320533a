"""Converter of ONNX Einsum: contracts the operands from left to right by batched matrix products.

Each operand is first reduced: a repeated label takes the diagonal, and a label without another use is summed.
"""

from collections.abc import Mapping, Sequence
from math import prod

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, in_float32
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.graph.builder import GraphBuilder


def _labels(node: OnnxNode, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The operands' labels and the result's; digits replace `...`, aligned at its end."""
    equation = node.text("equation", "").replace(" ", "")
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise node.unsupported(f"the equation {equation!r} is not one of {len(ranks)} operands")
    dots = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    most = max(dots)
    if most > 10 or min(dots) < 0:
        raise node.unsupported(f"the equation {equation!r} does not fit the operands")
    # ONNX's labels are letters, so digits cannot clash.
    digits = "0123456789"[:most]
    terms = [term.replace("...", digits[most - count :]) for term, count in zip(terms, dots, strict=True)]
    if any(len(term) != rank for term, rank in zip(terms, ranks, strict=True)):
        raise node.unsupported(f"the equation {equation!r} does not fit the operands")
    if not arrow:
        seen = left.replace(",", "").replace("...", "")
        # ONNX's implicit form, as NumPy's: labels that occur once, in alphabetical order.
        right = ("..." if most else "") + "".join(sorted(label for label in set(seen) if seen.count(label) == 1))
    return terms, right.replace("...", digits)


def _diagonal(builder: GraphBuilder, x: str, term: str) -> tuple[str, str]:
    """The diagonal of `x` over each repeated label of `term`; the result and its labels."""
    for label in dict.fromkeys(term):
        while term.count(label) > 1:
            first, second = term.index(label), term.rindex(label)
            others = [i for i in range(len(term)) if i not in (first, second)]
            shape = builder.value(x).shape
            extent = shape[first]
            x = builder.emit("transpose", [x], {"perm": (*others, first, second)})
            unique = tuple(shape[i] for i in others)
            x = builder.emit("reshape", [x], {"shape": (*unique, extent * extent)})
            # The diagonal of a square matrix is every (n + 1)-th element of its flat form: a slice, no gather.
            x = take(builder, x, len(unique), list(range(0, extent * extent, extent + 1)))
            term = "".join(term[i] for i in others) + label
    return x, term


def _sum(builder: GraphBuilder, x: str, term: str, kept: str) -> tuple[str, str]:
    """Sum `x`, whose axes have the labels `term`, over the labels that are not `kept`; the result and its labels."""
    axes = tuple(i for i, label in enumerate(term) if label not in kept)
    if axes:
        x = builder.emit("reduce_sum", [x], {"axes": axes, "keepdims": False})
    return x, "".join(label for label in term if label in kept)


def _arrange(builder: GraphBuilder, x: str, term: str, groups: Sequence[str], extents: Mapping[str, int]) -> str:
    """Axes in the groups' order, each group one axis; axes of extent 1 are broadcast to their label's extent."""
    labels = "".join(groups)
    perm = tuple(term.index(label) for label in labels)
    if perm != tuple(range(len(perm))):
        x = builder.emit("transpose", [x], {"perm": perm})
    full = tuple(extents[label] for label in labels)
    if builder.value(x).shape != full:
        x = builder.emit("broadcast_to", [x], {"shape": full})
    return builder.emit("reshape", [x], {"shape": tuple(prod(extents[label] for label in group) for group in groups)})


def _join(
    builder: GraphBuilder, a: tuple[str, str], b: tuple[str, str], kept: str, extents: Mapping[str, int]
) -> tuple[str, str]:
    """The product of two operands, with their labels in `kept`."""
    (x, left), (y, right) = a, b
    shared = [label for label in left if label in right]
    batch = "".join(label for label in shared if label in kept)
    inner = "".join(label for label in shared if label not in kept)
    rows = "".join(label for label in left if label not in right)
    columns = "".join(label for label in right if label not in left)
    # Batch labels in front, then labels of one side, then summed labels: one batched product does the pair.
    lhs = _arrange(builder, x, left, (batch, rows, inner), extents)
    rhs = _arrange(builder, y, right, (batch, inner, columns), extents)
    result = builder.emit("batch_matmul", [lhs, rhs])
    term = batch + rows + columns
    return builder.emit("reshape", [result], {"shape": tuple(extents[label] for label in term)}), term


def _contract(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """Multiply the operands from left to right, and sum each label once no later operand has it."""
    values = [node.operand(builder, i) for i in range(len(node.inputs))]
    terms, result = _labels(node, [len(value.shape) for value in values])
    extents: dict[str, int] = {}
    for value, term in zip(values, terms, strict=True):
        for label, extent in zip(term, value.shape, strict=True):
            extents[label] = extents.get(label, 1) if extent == 1 else extent
    pairs = [_diagonal(builder, value.name, term) for value, term in zip(values, terms, strict=True)]
    current = ("", "")
    for index, (x, term) in enumerate(pairs):
        # Labels that no later operand reads are summed now, which keeps intermediate values small.
        later = result + "".join(other for _, other in pairs[index + 1 :])
        x, term = _sum(builder, x, term, later + current[1])
        current = (x, term) if index == 0 else _join(builder, current, (x, term), later, extents)
    x, term = _sum(builder, *current, result)
    perm = tuple(term.index(label) for label in result)
    if perm == tuple(range(len(perm))):
        return [x]
    return [builder.emit("transpose", [x], {"perm": perm}, name=node.name, output=node.outputs[0])]


def _einsum(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    # Two factors whose labels are all in the other or in the result are one product, which sums in float32.
    left, _, right = node.text("equation", "").replace(" ", "").partition("->")
    first, *others = left.split(",")
    plain = len(others) == 1 and set(first) ^ set(others[0]) <= set(right)
    return (_contract if plain else in_float32(_contract))(builder, node)


CONVERTERS: Mapping[str, Converter] = {"Einsum": _einsum}
