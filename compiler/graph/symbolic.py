"""Graphs with symbolic dimensions, and their static graphs for concrete numbers.

A front end converts its network once with `SymbolicBuilder`, instead of once for each set of shapes. Decisions on the
way, such as whether two extents broadcast, hold for some numbers only: they are the `guards` of the `SymbolicGraph`.
For all numbers that satisfy the guards, substitution gives the front end's graph for these numbers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from retune.compiler import ops
from retune.compiler.core.dtype import finite_limit
from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.builder import KEPT, WEIGHTS, GraphBuilder
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ir import Array, Attribute, Graph, Node, Value
from retune.compiler.graph.verify import call_of
from retune.compiler.ir.dims import Dim, integers, is_certain, same, substitute, symbols_in
from retune.compiler.ir.guards import Guard

_SCALES = (7, 37, 211, 4001)
"""Extents that most networks accept: small ones first, since pooling needs larger ones, and windows of sounds more."""
# With the first scale these are the primes from 7 to 31. At no scale does one number divide another, so a relation
# between the numbers is a relation of the network and no accident.
_APART = (0, 4, 6, 10, 12, 16, 22, 24)
"""Added to a scale for each symbol, so that symbols differ."""
_MOST_TRIES = 16
"""A conversion takes about as long as for known shapes; a network with few symbols needs three to six."""
_LAST = 3
"""Decisions about zero that show whether two extents fit each other: both may also be 1."""
_MOST_ELEMENTS = 8
"""Most elements of an input with symbolic elements: a size, some extents, not data."""

_MOVING = ("reshape", "transpose", "concat", "slice", "broadcast_to", "gather", "identity")
_COMPUTING = ("add", "sub", "mul", "div", "mod", "neg", "abs", "maximum", "minimum", "reduce_sum", "reduce_prod")
_COMPARING = ("equal", "less", "less_equal", "where")
_EVALUATED = frozenset((*_MOVING, *_COMPUTING, *_COMPARING))
"""Operators whose NumPy evaluation works on arrays of `Dim`."""


class SymbolicBuilder(GraphBuilder):
    """Collects nodes over symbolic dimensions. Nothing is folded: elements of constants are computed on demand, and
    substitution folds them.
    """

    def __init__(self, name: str, inputs: Iterable[Value], known: Mapping[str, Array]) -> None:
        """`known` has the elements, possibly `Dim`s, of the inputs that are constants."""
        super().__init__(name, inputs)
        self._known: dict[str, Array | None] = {name: known[name] for name in known}

    def constant(self, array: Array, name: str = "constant") -> str:
        """Add a constant, whose elements may be `Dim`s, and return its name."""
        if array.dtype != object:
            return super().constant(array, name)
        vector = self.emit("extents", [], {"values": tuple(array.flat)}, output=name)
        return vector if array.ndim == 1 else self.emit("reshape", [vector], {"shape": array.shape}, output=name)

    def _fold(self, node: Node, value: Value, described: Sequence[Value]) -> None:
        """Register a constant without computing it."""
        is_known = node.op not in KEPT and all(map(self._is_known, node.inputs))
        if is_known or same(value.size, 0) or all(same(operand.size, 0) for operand in described):
            self._known[node.output] = None

    def array(self, name: str) -> Array | None:
        """Like `GraphBuilder.array`; some elements may be `Dim`s. Raises: DefinitionError for a constant whose elements
        depend on unknown dimensions.
        """
        node = self._producers.get(name)
        if node is not None and node.op in WEIGHTS and all(map(self._is_known, node.inputs)):
            return self._evaluate(node)
        if name in self._constants:
            return self._constants[name]
        if name in self._known and self._known[name] is None:
            assert node is not None, "the elements of an input are given"
            self._known[name] = self._evaluate(node)
        return self._known.get(name)

    def is_constant(self, name: str) -> bool:
        """Like `GraphBuilder.is_constant`, also if `array` raises."""
        node = self._producers.get(name)
        is_weight = node is not None and node.op in WEIGHTS and all(map(self._is_known, node.inputs))
        return is_weight or self._is_known(name)

    def _is_known(self, name: str) -> bool:
        return name in self._known or name in self._constants

    def _evaluate(self, node: Node) -> Array:
        """The elements of a node of constants. Raises: DefinitionError."""
        described = [self._values[name] for name in node.inputs]
        arrays = [self.array(name) for name in node.inputs]
        operands = [array for array in arrays if array is not None]
        if len(operands) < len(arrays):
            raise call_of(node, described).misfit("it has no elements")
        if node.op == "extents":
            return integers(node.ints("values"))
        if not any(map(_is_symbolic, [*operands, *node.attrs.values()])):
            return evaluate_node(node, operands)
        dtype = self._values[node.output].dtype
        is_whole = node.op == "cast" and dtype.startswith("int") and described[0].dtype.startswith("int")
        if not is_whole and (node.op not in _EVALUATED or any(map(_is_symbolic, node.attrs.values()))):
            raise call_of(node, described).misfit("its elements are not known before the dimensions")
        elements = (
            operands[0] if is_whole else np.asarray(ops.OPS[node.op].evaluate(call_of(node, described), operands))
        )
        return _within(integers(elements), dtype) if elements.dtype == object else elements.astype(dtype)


def _is_symbolic(value: object) -> bool:
    if isinstance(value, np.ndarray):
        return bool(value.dtype == object)
    return any(isinstance(item, Dim) for item in (value if isinstance(value, tuple) else (value,)))


def _within(array: Array, dtype: str) -> Array:
    """The integers, which must fit into the dtype: a kernel of that dtype would wrap around."""
    if array.dtype != object:
        return array.astype(dtype)
    least, most = (finite_limit(dtype, is_least=is_least) for is_least in (True, False))
    if not all(least <= item <= most for item in array.flat):
        raise DefinitionError(f"the dimensions {list(array.flat)} do not fit into {dtype}")
    return array


@dataclass(frozen=True, slots=True, eq=False)
class SymbolicGraph:
    """A graph whose shapes and attributes may have `Dim`s, valid for the numbers that satisfy the guards. Inputs in
    `constants` are constants of every static graph.
    """

    graph: Graph
    guards: tuple[Guard, ...]
    constants: frozenset[str]

    def numbers(self, shapes: Mapping[str, tuple[int, ...]], values: Mapping[str, Array]) -> dict[str, int] | None:
        """The symbols' values for these input shapes and constant elements; None if the graph is invalid for them."""
        bound: dict[str, int] = {}
        for value in self.graph.inputs:
            shape = values[value.name].shape if value.name in values else shapes.get(value.name)
            if shape is None or len(shape) != len(value.shape):
                return None
            for dim, extent in zip(value.shape, shape, strict=True):
                symbol = str(dim) if isinstance(dim, Dim) else None
                if (dim if symbol is None else bound.setdefault(symbol, extent)) != extent:
                    return None
            symbols = element_symbols(value) if value.name in self.constants else None
            if symbols is not None:
                pairs = zip(map(str, symbols.flat), map(int, values[value.name].flat), strict=True)
                if any(bound.setdefault(symbol, number) != number for symbol, number in pairs):
                    return None
        return bound if all(guard.fits(bound) for guard in self.guards) else None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the inputs' shapes that are no constants, in order."""
        fed = [value for value in self.graph.inputs if value.name not in self.constants]
        return tuple(dict.fromkeys(str(dim) for value in fed for dim in value.shape if isinstance(dim, Dim)))

    def static(self, numbers: Mapping[str, int], constants: Mapping[str, Array]) -> Graph:
        """The graph for valid numbers. Raises: DefinitionError when a constant violates its symbols."""
        fed = [value for value in self.graph.inputs if value.name not in constants]
        shapes = [tuple(substitute(dim, numbers) for dim in value.shape) for value in fed]
        inputs = [Value(value.name, shape, value.dtype) for value, shape in zip(fed, shapes, strict=True)]
        builder = GraphBuilder(self.graph.name, inputs)
        names = {value.name: value.name for value in fed}
        fixed = {value.name: constants[value.name] for value in self.graph.inputs if value.name in constants}
        names |= {name: builder.constant(array, name) for name, array in (fixed | dict(self.graph.constants)).items()}
        for node in self.graph.nodes:
            attrs = {key: substitute_attr(attr, numbers) for key, attr in node.attrs.items()}
            operands = [names[name] for name in node.inputs]
            names[node.output] = builder.emit(node.op, operands, attrs, name=node.name, output=node.output)
        return builder.finish({name: names[name] for name in self.graph.outputs})


def substitute_attr(attr: Attribute, numbers: Mapping[str, int]) -> Attribute:
    if isinstance(attr, tuple):
        return tuple(substitute(item, numbers) for item in attr)
    return substitute(attr, numbers) if isinstance(attr, Dim) else attr


def element_symbols(value: Value) -> Array | None:
    """Symbols for the elements of an input that decides on shapes; None for too many elements, or no integers."""
    if not value.dtype.startswith(("int", "uint", "bool")) or not all(isinstance(dim, int) for dim in value.shape):
        return None
    if value.size > _MOST_ELEMENTS:
        return None
    elements = np.empty(value.shape, object)
    for index in np.ndindex(value.shape):
        elements[index] = Dim.symbol(f"{value.name}{list(index)}")
    return elements


def variants(
    convert: Callable[[Mapping[str, int]], SymbolicGraph | tuple[Guard, ...]], symbols: Sequence[str]
) -> tuple[SymbolicGraph, ...]:
    """The symbolic graphs of `convert`, which gets numbers to resolve decisions, and returns the decisions if it cannot
    convert for them. The most general comes first. The others are for numbers just beyond earlier guards, such as an
    extent of 1, or two equal extents; without a graph beyond the last decisions, as for extents that must be equal.
    """
    graphs: list[SymbolicGraph] = []
    # Breadth first: variants close to the general shape are the likeliest to occur.
    waiting, tried = deque(_general(symbols)), set[tuple[int, ...]]()
    while waiting and len(tried) < _MOST_TRIES:
        numbers = waiting.popleft()
        key = tuple(numbers.values())
        if key in tried or any(all(guard.fits(numbers) for guard in known.guards) for known in graphs):
            continue
        tried.add(key)
        graph = convert(numbers)
        if isinstance(graph, SymbolicGraph):
            graphs.append(graph)
            guards = graph.guards
        else:
            guards = tuple(guard for guard in graph if guard.is_zero)[-_LAST:]
        beside = (pair for guard in guards for pair in _beside(guard, numbers))
        waiting.extend({**numbers, symbol: number} for symbol, number in beside)
    return tuple(graphs)


def likely_graph(graphs: Sequence[SymbolicGraph]) -> tuple[SymbolicGraph, dict[str, int]] | None:
    """The graph for large numbers, and such numbers for its symbols; None if no graph is known to hold for any. A graph
    in which fewer extents have to be a number, or equal, is preferred.
    """
    likely: list[tuple[SymbolicGraph, dict[str, int]]] = []
    for index in (2, 1, 0, 3, 4):  # the largest usual scale first
        for graph in graphs:
            numbers = list(_general(graph.symbols))[index]
            numbers |= {name: substitute(formula, numbers) for name, formula in solve(graph.guards).items()}
            if all(guard.dim.symbols <= numbers.keys() and guard.fits(numbers) for guard in graph.guards):
                likely.append((graph, numbers))
    return min(likely, key=lambda pair: _restrictions(pair[0].guards), default=None)


def _restrictions(guards: Sequence[Guard]) -> tuple[int, int]:
    """How many extents have to be a number, and how many are equal to something."""
    equal = [guard for guard in guards if guard.is_zero and guard.holds]
    return sum(len(guard.dim.symbols) == 1 for guard in equal), len(equal)


def solve(guards: Iterable[Guard]) -> dict[str, int]:
    """The symbols that guards say to be equal to something, and what that is, a formula of other symbols."""
    solved: dict[str, int] = {}
    for guard in guards:
        names = {name: Dim.symbol(name) for name in guard.dim.symbols}
        dim = substitute(guard.dim, names | solved) if guard.is_zero and guard.holds else 0
        linear = [(terms[0], factor) for terms, factor in (dim.terms.items() if isinstance(dim, Dim) else ()) if terms]
        formulas = {
            symbol: Dim.symbol(symbol) - factor * dim
            for symbol, factor in linear
            if isinstance(symbol, str) and factor in (1, -1)
        }
        formulas = {symbol: formula for symbol, formula in formulas.items() if symbol not in symbols_in(formula)}
        # Rather n = m + 1 than m = n - 1, which does not show that it is never negative.
        symbol = min(formulas, key=lambda name: not is_certain(formulas[name] + 1), default=None)
        if symbol is not None:
            own = {symbol: formulas[symbol]}
            solved = {name: _replace(formula, own) for name, formula in solved.items()} | own
    return solved


def _replace(formula: int, formulas: Mapping[str, int]) -> int:
    return substitute(formula, {name: Dim.symbol(name) for name in symbols_in(formula)} | dict(formulas))


def _general(symbols: Sequence[str]) -> Iterator[dict[str, int]]:
    """Numbers for the symbols: all different, at several scales; then equal for equal axes."""
    for scale in _SCALES:
        yield {symbol: scale + _APART[number % len(_APART)] for number, symbol in enumerate(symbols)}
    axes = [symbol.rpartition(".")[2] for symbol in symbols]
    positions = {axis: number for number, axis in enumerate(dict.fromkeys(axes))}
    yield {
        symbol: _SCALES[0] + _APART[positions[axis] % len(_APART)] for symbol, axis in zip(symbols, axes, strict=True)
    }


_MOST = 1 << 16
"""The largest tried dimension: exporters write 2^31 - 1 for "to the end", and no array has such a dimension."""


def _beside(guard: Guard, numbers: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """A number for one symbol of a guard that violates it, and as few other guards as possible."""
    if guard.is_zero and guard.holds:
        return
    beyond = 1 if not guard.is_zero and not guard.holds else 0
    for (symbol, *others), factor in ((monomial, factor) for monomial, factor in guard.dim.terms.items() if monomial):
        constant = substitute(guard.dim, numbers) - (factor * numbers[symbol] if isinstance(symbol, str) else 0)
        if isinstance(symbol, str) and not others and factor in (1, -1):
            number = (beyond - constant) * factor
            if 0 <= number <= _MOST and guard.fits(numbers) and not guard.fits({**numbers, symbol: number}):
                yield symbol, number
