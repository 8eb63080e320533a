"""Partition of an ONNX graph with control flow into a function of statements and static regions.

Input: a canonicalized ONNX graph and the types of its inputs. Output: a `Function`, and one for each branch and loop
body.

The partition uses as few regions as the statements allow. Every node has a level. The region of a level computes all
nodes that need no statement of the same or a later level; then the statements of that level run.

If the shape of a node depends on the value of an operand, an earlier region computes the operand. The operand stays in
the same region if it is computed from shapes, or from small integers that are inputs of the region.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from retune.compiler.core.errors import ModelError, UnsupportedOperatorError
from retune.compiler.frontend.dependence import (
    CONTROL_FLOW,
    NOTHING,
    ON_THE_HOST,
    Names,
    bodies,
    body,
    examine,
    free_names,
    needed_operands,
    read_names,
)
from retune.compiler.frontend.importer import CONVERTERS
from retune.compiler.frontend.model_edits import all_nodes
from retune.compiler.frontend.model_file import name_of
from retune.compiler.frontend.ops import sequences
from retune.compiler.frontend.ops.conversion import Conversion
from retune.compiler.frontend.ops.loops.loop_steps import emit_as_scan
from retune.compiler.frontend.region import OnnxRegion
from retune.compiler.frontend.scan_to_loop import scan_to_loop
from retune.compiler.frontend.types import form_of, param_of
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Value
from retune.compiler.graph.program import Arm, Branch, Call, Function, HostCall, Loop, Statement, defines, reads
from retune.compiler.graph.region import OPTIONAL, OPTIONAL_SEQUENCE, SEQUENCE, TENSOR, Param
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.guards import Assumptions

_FEW = 8
"""Most elements of an integer input whose values may decide a region: a size, some extents, not data."""
_MOST_UNROLLED = 512
"""Most nodes of an unrolled loop with a known number of iterations; larger loops stay."""
_LIKELY = 256
"""A number of iterations that is not known."""


@dataclass(slots=True)
class BuilderContext:
    """Shared by the functions of one program: constants, functions to add one (array, wish) and to make a name."""

    opset: int
    constants: Mapping[str, Array]
    constant: Callable[[Array, str], str]
    fresh: Callable[[str], str]
    functions: dict[str, Function] = field(default_factory=dict)

    def define(self, wish: str, graph: onnx.GraphProto, params: Sequence[Param]) -> str:
        """Make a function of a graph and return its name; functions that it calls follow."""
        name = wish
        while name in self.functions:
            name = f"{name}_"
        self.functions[name] = Function(name, (), (), ())  # reserves the name
        before, passed = dict(self.functions), Names()
        # Ends: every further round passes more of the graph's sequences.
        while True:
            try:
                self.functions[name] = Partition(self, name, graph, params, passed).function()
                return name
            except _LeavesRegionError as error:
                passed |= error.names
                self.functions.clear()
                self.functions.update(before)


class _LeavesRegionError(Exception):
    """Sequences or optional values are read outside of the regions that the partition made for them."""

    def __init__(self, names: Names) -> None:
        super().__init__(", ".join(sorted(names)))
        self.names = names


class Partition:
    def __init__(
        self, context: BuilderContext, name: str, graph: onnx.GraphProto, params: Sequence[Param], passed: Names
    ) -> None:
        """`params` are the function's: the graph's inputs, then its names from enclosing graphs. `passed` are the
        sequences and optional values that statements pass to each other: NumPy computes these.
        """
        self._context = context
        self._name = name
        self._graph = graph
        self._params = tuple(params)
        self._types = {param.name: param for param in params}
        self._types |= {entry.name: param_of(entry) for entry in (*graph.value_info, *graph.input, *graph.output)}
        self._types |= {param.name: param for param in params if param.dims is not None}
        self._levels: dict[str, int] = {param.name: -1 for param in params}
        self._given = {param.name for param in params}
        self._roots: dict[str, Names] = {}
        self._placed: list[tuple[int, onnx.NodeProto]] = []
        self._producers: dict[str, onnx.NodeProto] = {}
        self._statements: dict[int, list[Statement]] = {}
        self._passed = passed | {param.name for param in params if not param.is_tensor}

    def function(self) -> Function:
        """The function; the functions that it calls are in the context by then."""
        names = [entry.name for entry in self._graph.output]
        for node in alive_nodes(self._graph.node, names):
            self._assign_level(node)
        results = tuple(map(self._result, self._graph.output))
        return Function(self._name, self._params, self._body(names), results)

    def _result(self, entry: onnx.ValueInfoProto) -> Param:
        """The type of a result, with the extents that its graph declares where no number is known.

        A result may be a parameter, which has the type of the enclosing graph.
        """
        known, declared = self._type(entry.name), param_of(entry).dims
        if known.dims is None or declared is None or len(known.dims) != len(declared):
            return known
        pairs = zip(known.dims, declared, strict=True)
        dims = (extent if isinstance(extent, int) and not isinstance(dim, int) else dim for dim, extent in pairs)
        return replace(known, dims=tuple(dims))

    def _type(self, name: str) -> Param:
        array = self._context.constants.get(name)
        if array is not None and name not in self._levels:
            return Param(name, array.dtype.name, array.shape)
        return self._types.get(name, Param(name, None))

    # Levels of nodes

    def _assign_level(self, node: onnx.NodeProto) -> None:
        level = self._ready(read_names(node))
        needed = needed_operands(node)
        self._types |= {name: Param(name, None, form=form) for name, form in self._made_forms(node)}
        if node.op_type in CONTROL_FLOW:
            if self._passed.intersection(read_names(node)) or not self._is_imported(node, level):
                self._control(node)
                return
        elif self._passed.intersection((*node.input, *node.output)) or (
            node.op_type in ON_THE_HOST and any(self._depends(name, level) for name in needed)
        ):
            self._on_the_host(node)
            return
        elif not all(self._is_known(name, level) for name in needed):
            # An earlier region computes the operand, whose value then decides the graph of this region.
            level += 1
        results = examine(node, lambda name: self._depends(name, level)).results
        self._placed.append((level, node))
        for name, roots in zip(node.output, results, strict=False):
            self._levels[name], self._roots[name], self._producers[name] = level, roots, node

    # Sequences and optional values

    def _made_forms(self, node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
        """The results of a node that are no tensors, with their forms, where nothing else says so."""
        if node.op_type not in sequences.RESULTS or not node.output or not self._type(node.output[0]).is_tensor:
            return
        of_sequence = [*node.input] and self._type(node.input[0]).form == SEQUENCE
        optional = OPTIONAL_SEQUENCE if of_sequence else OPTIONAL
        yield node.output[0], optional if node.op_type == "Optional" else SEQUENCE

    def _require_passed(self, names: Iterable[str]) -> None:
        """Check that those of `names` that are no tensors are passed between statements.

        Raises: _LeavesRegionError with these and all that are computed from them or into them.
        """
        formed = {name for name in names if name and not self._type(name).is_tensor}
        if formed <= self._passed:
            return
        groups = [
            {name for name in (*node.input, *node.output) if name and not self._type(name).is_tensor}
            for node in self._graph.node
            if node.op_type not in CONTROL_FLOW
        ]
        while more := {name for group in groups if group & formed for name in group} - formed:
            formed |= more
        raise _LeavesRegionError(frozenset(formed))

    def _ready(self, names: Sequence[str]) -> int:
        """The first level whose region can read these."""
        # A statement's value is available in the next region, a region's value already within it.
        levels = [self._levels[name] + (name in self._given) for name in names if name in self._levels]
        return max(levels, default=0)

    def _depends(self, name: str, level: int) -> Names:
        """The inputs of the region of `level` that a value depends on there."""
        if name not in self._levels:
            return NOTHING
        # A value of an earlier region without roots follows from shapes: it is recomputed, not passed.
        if name in self._given or (self._levels[name] < level and self._roots[name]):
            return frozenset((name,))
        return self._roots[name]

    def _is_known(self, name: str, level: int) -> bool:
        roots = self._depends(name, level)
        return roots <= {name} or all(map(self._is_small, roots))

    def _is_small(self, name: str) -> bool:
        """Whether a value is a few integers."""
        known = self._type(name)
        if known.dtype is None or not known.dtype.startswith(("int", "uint", "bool")) or known.dims is None:
            return False
        return known.shape is not None and math.prod(known.shape) <= _FEW

    def _is_imported(self, node: onnx.NodeProto, level: int) -> bool:
        """Whether the importer can choose the branch, or unroll the loop, once shapes are known."""
        seen = examine(node, lambda name: self._depends(name, level))
        if seen.decides or not all(map(self._is_small, seen.needs)):
            return False
        if node.op_type == "If":
            # Both arms are compiled into the region: the limit applies to the growth of their loops.
            return all(self._size(arm) - len(list(all_nodes(arm))) <= _MOST_UNROLLED for arm in bodies(node))
        iterations = self._iterations(node)
        if iterations is None and node.op_type == "Scan":
            return self._fits_kernel(node, node.input[-_scan_inputs(node) :])
        if iterations is None or iterations <= 0:
            return False
        return iterations * self._size(body(node, "body")) <= _MOST_UNROLLED or self._fits_kernel(node)

    def _fits_kernel(self, node: onnx.NodeProto, sequences: Collection[str] = ()) -> bool:
        """Whether a loop whose operands have known shapes is one kernel, however often it runs. Those in `sequences`
        may have one symbolic dimension, the number of steps.
        """
        builder, names = GraphBuilder(name_of(node)), {"": ""}
        likely: dict[str, int] = {}
        for name in read_names(node):
            known = self._type(name)
            if not known.is_tensor or known.dtype is None or known.dims is None or None in known.dims:
                return False
            if sum(isinstance(dim, str) for dim in known.dims) > (name in sequences):
                return False
            likely |= {dim: _LIKELY for dim in known.dims if isinstance(dim, str)}
            shape = tuple(Dim.symbol(dim) if isinstance(dim, str) else dim for dim in known.dims if dim is not None)
            array = None if name in self._levels else self._context.constants.get(name)
            names[name] = (
                builder.input(Value(name, shape, known.dtype)) if array is None else builder.constant(array, name)
            )
        try:
            with Assumptions(likely):
                onnx_node = Conversion(builder, CONVERTERS, self._context.opset).node(node, names)
                return emit_as_scan(builder, onnx_node) is not None
        except ModelError:
            return False

    def _size(self, graph: onnx.GraphProto) -> int:
        """Number of nodes of a graph with loops of known length unrolled."""
        count = len(graph.node)
        for node in graph.node:
            iterations = None if node.op_type not in ("Loop", "Scan") else self._iterations(node)
            count += max(iterations or 1, 1) * sum(map(self._size, bodies(node)))
        return count

    def _iterations(self, node: onnx.NodeProto) -> int | None:
        """An upper bound of the number of iterations, if known."""
        if node.op_type == "Loop":
            count = self._context.constants.get(node.input[0])
            return None if count is None or count.size != 1 else int(count.item())
        attributes = {attribute.name: attribute for attribute in node.attribute}
        dims = self._type(node.input[-_scan_inputs(node)]).dims
        axis = attributes["scan_input_axes"].ints[0] if "scan_input_axes" in attributes else 0
        extent = dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
        return extent if isinstance(extent, int) else None

    # Statements

    def _state(self, statement: Statement, names: Sequence[str]) -> None:
        """Let a statement run as early as possible; `names` are its operands."""
        level = max((self._levels[name] for name in names if name in self._levels), default=0)
        level = max(level, 0)
        self._statements.setdefault(level, []).append(statement)
        for name in defines(statement):
            self._levels[name] = level
            self._given.add(name)

    def _names(self, names: Sequence[str], wish: str) -> tuple[str, ...]:
        """Names of results, with fresh names for omitted results."""
        return tuple(name or self._context.fresh(wish) for name in names)

    def _on_the_host(self, node: onnx.NodeProto) -> None:
        label = name_of(node)
        self._require_passed((*node.input, *node.output))
        region = self._region(label, [node], [name for name in node.output if name], on_the_host=True)
        self._state(HostCall(region, region.inputs, region.outputs), region.inputs)

    def _control(self, node: onnx.NodeProto) -> None:
        if node.op_type == "Scan":
            nodes, known = scan_to_loop(node, self._types, self._context.constant, self._context.fresh)
            self._types |= {param.name: param for param in known}
            for made in nodes:
                self._assign_level(made)
            return
        self._require_passed((*read_names(node), *node.output))
        statement = self._branch(node) if node.op_type == "If" else self._loop(node)
        self._state(statement, reads(statement))

    def _captures(self, graph: onnx.GraphProto) -> tuple[str, ...]:
        return tuple(name for name in free_names(graph) if name in self._levels)

    def _branch(self, node: onnx.NodeProto) -> Branch:
        then, otherwise = (self._arm(node, word) for word in ("then", "else"))
        return Branch(node.input[0], then, otherwise, self._names(node.output, f"{name_of(node)}_unused"))

    def _arm(self, node: onnx.NodeProto, word: str) -> Arm:
        graph = body(node, f"{word}_branch")
        captured = self._captures(graph)
        return Arm(self._context.define(f"{name_of(node)}_{word}", graph, [*map(self._type, captured)]), captured)

    def _loop(self, node: onnx.NodeProto) -> Loop:
        label, graph, carried = name_of(node), body(node, "body"), tuple(node.input[2:])
        captured = self._captures(graph)
        iteration, on, *own = (entry.name for entry in graph.input)
        dtypes = [self._type(name).dtype for name in carried]
        params = [Param(iteration, "int64", ()), Param(on, "bool", ())]
        forms = [form_of(entry) or TENSOR for entry in graph.input][2:]
        params += [Param(*row) for row in zip(own, dtypes, (None,) * len(own), forms, strict=True)]
        function = self._context.define(f"{label}_body", graph, [*params, *map(self._type, captured)])
        outputs = [*node.output, *("",) * (len(graph.output) - 1 - len(node.output))]
        names = self._names(outputs, f"{label}_unused")
        count, condition, *_ = (name or None for name in [*node.input[:2], "", ""])
        return Loop(count, condition, function, carried, captured, names[: len(carried)], names[len(carried) :])

    # Regions

    def _body(self, results: Sequence[str]) -> tuple[Statement, ...]:
        """All statements in order; a region's results are the values that later statements read."""
        wanted = dict.fromkeys(results)
        ordered: list[Statement] = []
        levels = [*self._statements, *(level for level, _ in self._placed)]
        # From the last level to the first: liveness flows backward, and each region returns only values that are read
        # later.
        for level in sorted(set(levels), reverse=True):
            for statement in reversed(self._statements.get(level, [])):
                wanted.update(dict.fromkeys(reads(statement)))
                ordered.append(statement)
            nodes = self._nodes_of(level, wanted)
            if nodes:
                own = [name for node in nodes for name in node.output if self._levels[name] == level and name in wanted]
                region = self._region(f"{self._name}_{level}", nodes, own)
                ordered.append(Call(region, region.inputs, region.outputs))
                wanted.update(dict.fromkeys(region.inputs))
        return tuple(reversed(ordered))

    def _nodes_of(self, level: int, wanted: Mapping[str, None]) -> list[onnx.NodeProto]:
        """The nodes of a level that compute its wanted values, and those recomputed there from shapes alone."""
        needed = {name for name in wanted if self._levels.get(name) == level and name not in self._given}
        chosen = []
        # Backward, so that the operands of a chosen node are wanted when their producer is visited.
        for node_level, node in reversed(self._placed):
            if node_level > level or not needed.intersection(node.output):
                continue
            chosen.append(node)
            for name in read_names(node):
                computed = name in self._producers
                if computed and (self._levels[name] == level or self._is_portable(name)):
                    needed.add(name)
        return chosen[::-1]

    def _is_portable(self, name: str) -> bool:
        """Whether a value is computed from shapes that every later region can get."""
        if name not in self._producers:
            return name not in self._levels
        node = self._producers[name]
        if self._roots[name]:
            return False
        if node.op_type in ("Shape", "Size"):
            return node.input[0] in self._given or self._is_portable(node.input[0])
        return not any(True for _ in bodies(node)) and all(map(self._is_portable, read_names(node)))

    def _region(
        self, name: str, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], *, on_the_host: bool = False
    ) -> OnnxRegion:
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in read_names(node) if name not in made)
        inputs = tuple(name for name in read if name in self._levels)
        unknown = [name for name in read if name not in self._levels and name not in self._context.constants]
        if unknown:
            raise UnsupportedOperatorError(f"{name}: nothing computes {unknown[0]!r}")
        self._require_passed((*inputs, *outputs))
        graph = onnx.GraphProto(name="region")
        graph.node.extend(nodes)
        return OnnxRegion(
            name=name,
            graph=graph,
            opset=self._context.opset,
            inputs=inputs,
            dtypes=tuple(self._type(name).dtype or "" for name in inputs),
            constants=tuple(name for name in read if name not in self._levels),
            determining=inputs if on_the_host else _determining(nodes, inputs),
            results=tuple(map(self._type, outputs)),
        )


def _determining(nodes: Sequence[onnx.NodeProto], inputs: Sequence[str]) -> tuple[str, ...]:
    """The inputs whose values must be known to import the nodes."""
    roots: dict[str, Names] = {name: frozenset((name,)) for name in inputs}
    needs = NOTHING
    for node in nodes:
        seen = examine(node, lambda name: roots.get(name, NOTHING))
        needs |= seen.needs | seen.decides
        roots.update(zip(node.output, seen.results, strict=False))
    return tuple(name for name in inputs if name in needs)


def alive_nodes(nodes: Sequence[onnx.NodeProto], results: Sequence[str]) -> list[onnx.NodeProto]:
    needed, kept = set(results), []
    for node in reversed(nodes):
        if needed.intersection(name for name in node.output if name):
            kept.append(node)
            needed.update(read_names(node))
    return kept[::-1]


def _scan_inputs(node: onnx.NodeProto) -> int:
    return sum(attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs")
