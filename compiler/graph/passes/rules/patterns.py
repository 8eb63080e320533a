"""Pattern matching on expressions of a graph: patterns with named parts, and a matcher that binds the names.

The order and nesting of factors and terms do not matter, nor whether a constant multiplies or divides. A value inside a
match has no reader outside of it and is no output of the graph.

    Product(ANY x, 0.5, Sum(1, erf(Product(x, sqrt(1/2)))))      matches      0.5 * x * (erf(x / 1.41421356) + 1)

Products and sums are followed through values with a single reader, so a value that a pattern names twice is a factor.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Attribute, Graph, Node

_PRODUCTS, _SUMS = ("mul", "div", "neg"), ("add", "sub")
# One to two units in the last place: 2^-10 for float16, 2^-7 for bfloat16.
_DIGITS = {"float16": 2e-3, "bfloat16": 1e-2}
_DEEPEST = 8
"""Most nested products, or sums, that are followed: no pattern has as many, but a chain may have thousands."""
# Five digits, as in 1.4142 for sqrt(2), which is off by 1e-5.
_USUAL_DIGITS = 2e-5
"""Largest relative difference between a constant and the pattern's: rounding to the usual number of written digits."""


@dataclass(frozen=True, slots=True)
class Capture:
    """Any value, the same at every use of `name`; with a `pattern`, a value that matches it."""

    name: str
    pattern: "Pattern | None" = None


@dataclass(frozen=True, slots=True)
class Op:
    """A node of the operator `op`. Its attributes must equal `attrs`, except where a `CaptureAttr` takes any value."""

    op: str
    operands: tuple["Pattern", ...]
    attrs: Mapping[str, "Attribute | CaptureAttr"] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CaptureAttr:
    """Any attribute or number, the same at every use of `name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Product:
    """A product of `factors`, in any order, over `denominators`; `scale` is the product of its constants.

    Further factors are bound to the name `others`; without the name there may be none.
    """

    factors: tuple["Pattern", ...]
    scale: float = 1.0
    denominators: tuple["Pattern", ...] = ()
    others: str = ""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of `terms`, in any order; `constant` is the sum of its constants."""

    terms: tuple["Pattern", ...]
    constant: "float | CaptureAttr" = 0.0


@dataclass(frozen=True, slots=True)
class Either:
    """A value that matches any of `patterns`."""

    patterns: tuple["Pattern", ...]


Pattern = Capture | Op | Product | Sum | Either


@dataclass(frozen=True, slots=True)
class Match:
    """What the names of a pattern are bound to: values, attributes and numbers, and further factors.

    `inner` are the values that the match covers.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    inner: frozenset[str] = frozenset()

    def with_attr(self, expected: "Attribute | CaptureAttr", value: Attribute) -> "Match | None":
        """The match if `value` equals `expected`, or was or can be bound to its name; else None."""
        if not isinstance(expected, CaptureAttr):
            return self if expected == value else None
        if expected.name in self.attrs:
            return self if self.attrs[expected.name] == value else None
        return replace(self, attrs={**self.attrs, expected.name: value})

    def with_inner(self, names: Sequence[str]) -> "Match":
        """The match that covers the values `names` too."""
        return replace(self, inner=self.inner.union(names)) if names else self


@dataclass(frozen=True, slots=True)
class _Flat:
    """A value as the product of `scale` and factors, or the sum of `scale` and terms.

    `parts` are these values, each with whether it is a denominator, or is subtracted. `inner` are the values inside.
    """

    scale: float
    parts: tuple[tuple[str, bool], ...]
    inner: tuple[str, ...]


def _can_be(pattern: Pattern, op: str) -> bool:
    """Whether a node of operator `op` may match; a quick test before the search."""
    match pattern:
        case Op():
            return pattern.op == op
        case Product():
            return op in _PRODUCTS
        case Sum():
            return op in _SUMS
        case Either():
            return any(_can_be(choice, op) for choice in pattern.patterns)
        case Capture():
            return pattern.pattern is None or _can_be(pattern.pattern, op)


class Matcher:
    """Finds patterns in one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._outputs = frozenset(graph.outputs)
        self._producers = graph.producers()
        self._consumers = graph.consumers()
        self._sums: dict[str, _Flat] = {}

    def find(self, pattern: Pattern, node: Node) -> Match | None:
        """The first match of `pattern` with the result of `node`, if any."""
        if not _can_be(pattern, node.op):
            return None
        # Backtracking search: the generators enumerate all ways to match commutative operands; the first match without
        # outside readers is taken.
        for match in self._match(pattern, node.output, Match()):
            if self._is_closed(match.inner - {node.output}, match.inner | {node.output}):
                return match
        return None

    def _is_closed(self, inner: frozenset[str], readers: frozenset[str]) -> bool:
        return all(
            name not in self._outputs and all(node.output in readers for node in self._consumers[name])
            for name in inner
        )

    def _match(self, pattern: Pattern, name: str, match: Match) -> Iterator[Match]:
        match pattern:
            case Capture():
                yield from self._match_capture(pattern, name, match)
            case Op():
                yield from self._match_op(pattern, name, match)
            case Product():
                yield from self._match_product(pattern, name, match, 1.0)
            case Sum():
                yield from self._match_sum(pattern, name, match)
            case Either():
                for choice in pattern.patterns:
                    yield from self._match(choice, name, match)

    def _match_capture(self, pattern: Capture, name: str, match: Match) -> Iterator[Match]:
        if pattern.name in match.values:
            if match.values[pattern.name] == name:
                yield match
            return
        known = replace(match, values={**match.values, pattern.name: name})
        if pattern.pattern is None:
            yield known
        else:
            yield from self._match(pattern.pattern, name, known)

    def _match_op(self, pattern: Op, name: str, match: Match) -> Iterator[Match]:
        node = self._producers.get(name)
        if node is None or node.op != pattern.op or len(node.inputs) != len(pattern.operands):
            return
        result: Match | None = match
        for key, expected in pattern.attrs.items():
            result = None if result is None else result.with_attr(expected, node.attrs[key])
        if result is not None:
            yield from self._match_operands(
                tuple(zip(pattern.operands, node.inputs, strict=True)), result.with_inner((name,))
            )

    def _match_operands(self, pairs: tuple[tuple[Pattern, str], ...], match: Match) -> Iterator[Match]:
        if not pairs:
            yield match
            return
        (pattern, name), *others = pairs
        for result in self._match(pattern, name, match):
            yield from self._match_operands(tuple(others), result)

    def _match_product(self, pattern: Product, name: str, match: Match, sign: float) -> Iterator[Match]:
        flat = self._factors(name)
        if not self._is_close(flat.scale * sign, pattern.scale, name):
            return
        patterns = (*((part, False) for part in pattern.factors), *((part, True) for part in pattern.denominators))
        yield from self._match_factors(patterns, flat.parts, match.with_inner(flat.inner), pattern.others)

    def _match_sum(self, pattern: Sum, name: str, match: Match) -> Iterator[Match]:
        # Sums are flattened once per value: backtracking visits the same sum for many assignments of its terms.
        flat = self._sums[name] = self._sums.get(name) or self._terms(name)
        result: Match | None = match
        if isinstance(pattern.constant, CaptureAttr):
            result = match.with_attr(pattern.constant, flat.scale)
        elif not self._is_close(flat.scale, pattern.constant, name):
            return
        if result is not None:
            yield from self._match_terms(pattern.terms, flat.parts, result.with_inner(flat.inner))

    def _match_factors(
        self, patterns: Sequence[tuple[Pattern, bool]], parts: Sequence[tuple[str, bool]], match: Match, others: str
    ) -> Iterator[Match]:
        """Match each pattern with another element of `parts`; the remaining parts are bound to the name `others`.

        Patterns and parts come with whether they are denominators.
        """
        if not patterns:
            if others and parts and not any(is_denominator for _, is_denominator in parts):
                yield replace(match, others={**match.others, others: tuple(name for name, _ in parts)})
            elif not parts:
                yield match
            return
        pattern, below = patterns[0]
        # Exponential in the number of factors, which is small in patterns.
        for index, (name, is_denominator) in enumerate(parts):
            if is_denominator is below:
                for result in self._match(pattern, name, match):
                    yield from self._match_factors(patterns[1:], (*parts[:index], *parts[index + 1 :]), result, others)

    def _match_terms(
        self, patterns: Sequence[Pattern], parts: Sequence[tuple[str, bool]], match: Match
    ) -> Iterator[Match]:
        if len(patterns) != len(parts):
            return
        if not patterns:
            yield match
            return
        pattern = patterns[0]
        for index, (name, negative) in enumerate(parts):
            others = (*parts[:index], *parts[index + 1 :])
            if isinstance(pattern, Product):
                results = self._match_product(pattern, name, match, -1.0 if negative else 1.0)
            else:
                results = iter(()) if negative else self._match(pattern, name, match)
            for result in results:
                yield from self._match_terms(patterns[1:], others, result)

    def _factors(self, name: str, depth: int = 0) -> _Flat:
        number = self._number(name)
        if number is not None:
            return _Flat(number, (), ())
        node = self._producers.get(name)
        if node is None or node.op not in _PRODUCTS or not self._is_followed(name, depth):
            return _Flat(1.0, ((name, False),), ())
        first = self._factors(node.inputs[0], depth + 1)
        if node.op == "neg":
            return _Flat(-first.scale, first.parts, (name, *first.inner))
        if node.op == "mul":
            second = self._factors(node.inputs[1], depth + 1)
            return _Flat(first.scale * second.scale, (*first.parts, *second.parts), (name, *first.inner, *second.inner))
        number = self._number(node.inputs[1])
        if number is not None:
            return _Flat(first.scale / number if number else float("nan"), first.parts, (name, *first.inner))
        return _Flat(first.scale, (*first.parts, (node.inputs[1], True)), (name, *first.inner))

    def _terms(self, name: str, depth: int = 0) -> _Flat:
        number = self._number(name)
        if number is not None:
            return _Flat(number, (), ())
        node = self._producers.get(name)
        if node is None or node.op not in _SUMS or not self._is_followed(name, depth):
            return _Flat(0.0, ((name, False),), ())
        first, second = (self._terms(operand, depth + 1) for operand in node.inputs)
        minus = node.op == "sub"
        signed = tuple((part, negative != minus) for part, negative in second.parts)
        scale = first.scale + (-second.scale if minus else second.scale)
        return _Flat(scale, (*first.parts, *signed), (name, *first.inner, *second.inner))

    def _is_followed(self, name: str, depth: int) -> bool:
        if not depth or depth == _DEEPEST:
            return not depth
        readers = self._consumers[name]
        # A value with another reader must be computed anyway, so it is a leaf of the flattened expression.
        return len(readers) == 1 and readers[0].inputs.count(name) == 1 and name not in self._outputs

    def _number(self, name: str) -> float | None:
        array = self._graph.constants.get(name)
        if array is None or array.size != 1 or "float" not in array.dtype.name:
            return None
        return float(array.astype("float64").item())

    def _is_close(self, number: float, expected: float, name: str) -> bool:
        """Whether a constant of the value `name` is `expected`, up to its rounding."""
        digits = _DIGITS.get(self._graph.values[name].dtype, _USUAL_DIGITS)
        # Exporters round constants such as sqrt(2 / pi) to the network's type.
        return abs(number - expected) <= digits * abs(expected)


Write = Callable[[GraphBuilder, Match, Node], str]

X = Capture("x")
ANY_AXES: Mapping[str, Attribute | CaptureAttr] = {"axes": CaptureAttr("axes"), "keepdims": True}
"""Attributes of a reduction along any axes, which it keeps with extent 1."""
"""The operator's argument, in every pattern."""


def _always(match: Match) -> bool:
    del match
    return True


@dataclass(frozen=True, slots=True)
class RewriteRule:
    """`pattern` is the expression to match, and `write` emits the value that replaces its result.

    `fits` rejects matches that no operator can express.
    """

    pattern: Pattern
    write: Write
    fits: Callable[[Match], bool] = _always


def unary(op: str) -> Write:
    """A `Write` of the operator `op` with the argument `X`."""

    def write(builder: GraphBuilder, match: Match, node: Node) -> str:
        return builder.emit(op, [match.values["x"]], name=node.name, output=node.output)

    return write
