"""The backend "retune" of `torch.compile`, which tunes the graphs that PyTorch captures.

    fast = torch.compile(model.eval(), backend="retune", options={"minutes": 2})
    with torch.inference_mode():
        y = fast(x)

AOTAutograd makes each captured graph functional, so that operators in place and outputs that alias inputs are PyTorch's
to handle. At the first call with inputs of new shapes the graph is exported to ONNX, with the weights as constants, and
compiled. A graph with symbolic extents (`dynamic=True`, or a second shape) is exported once with these extents
dynamic, and the virtual machine runs it untuned. Operators that Retune does not take run as PyTorch would run them,
between compiled parts of the graph.
"""

import copy
import logging
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.flop_counter import FlopCounterMode

from retune.api import EFFORTS, compile, models_folder, tune
from retune.compiler.errors import LoweringError, ModelError, NotYetError, OptionError, ShapeMismatchError
from retune.compiler.frontend.onnx.importer import load_model
from retune.models import Model, export_onnx, store_onnx
from retune.network import Network

_log = logging.getLogger(__name__)

# As many as Dynamo compiles a frame for before it gives up, `torch._dynamo.config.recompile_limit`.
MOST_SHAPES = 8
"""For how many different shapes of its inputs a graph is compiled; calls with further ones run as PyTorch would."""

OPTIONS = ("tune", "minutes", "trials", "effort", "threads", "store")

_DECLINED = (ModelError, LoweringError, NotYetError)
"""What a graph raises that Retune does not take."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """What of a graph PyTorch runs: operators, and how many FLOPs they do. It is the `fallback` of the log record that
    warns of it.
    """

    operators: tuple[str, ...]
    flops: int


def retune_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a captured graph for inference.

    `options` are `minutes`, `trials` or `effort` of the search, which is "quick" unless given; `{"tune": False}` takes
    the best known programs and measures nothing; `threads` and `store` are as for `retune.tune`.
    Raises: OptionError for other options, and where gradients are recorded.
    """
    if mode not in (None, "default"):
        raise OptionError(f"the backend retune has no mode {mode!r}: say options={{'effort': 'thorough'}} instead")
    chosen = _check_options(options or {})
    # AOTAutograd would split the graph into a forward and a backward one; there is no backward kernel to run.
    if torch.is_grad_enabled() and any(isinstance(one, torch.Tensor) and one.requires_grad for one in example_inputs):
        raise OptionError(
            "Retune compiles inference, and gradients are recorded here: call the model under torch.inference_mode() "
            "or torch.no_grad()"
        )

    def compile_forward(forward: torch.fx.GraphModule, _inputs: Sequence[Any]) -> Callable[..., Any]:
        views = _Views(forward)
        compiled = _Forward(forward, _weights(graph, forward), chosen)
        # AOTAutograd's calling convention: one list of arguments, which the callee may empty to free them early.
        boxed: Callable[..., Any] = make_boxed_func(lambda *given: views.of(compiled(*given)))
        return boxed

    made: Callable[..., Any] = aot_autograd(fw_compiler=compile_forward, inference_compiler=compile_forward)(
        graph, example_inputs
    )
    return made


def _check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise OptionError(f"the backend retune has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
    chosen = dict(options)
    if not isinstance(chosen.get("tune", True), bool):
        raise OptionError(f"the option tune must be true or false, not {chosen['tune']!r}")
    if chosen.get("effort", "quick") not in EFFORTS:
        raise OptionError(f"effort must be one of {', '.join(EFFORTS)}, not {chosen['effort']!r}")
    return chosen


def _weights(graph: torch.fx.GraphModule, forward: torch.fx.GraphModule) -> frozenset[int]:
    """Which inputs of the functional graph are parameters and buffers of the model: those that Dynamo marks as static,
    where AOTAutograd has kept the inputs as they were.
    """
    before = [node for node in graph.graph.nodes if node.op == "placeholder"]
    after = [node for node in forward.graph.nodes if node.op == "placeholder"]
    # It lifts or drops inputs for aliases, for one; a weight taken for an input costs time, the reverse would compile
    # in what changes.
    if len(before) != len(after):
        return frozenset()
    return frozenset(
        place for place, node in enumerate(before) if "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
    )


@dataclass(frozen=True, slots=True)
class _View:
    """A view of a tensor: the operator, and its arguments after the tensor."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def of(self, tensor: Any) -> Any:
        """The view."""
        return self.target(tensor, *self.args, **self.kwargs)


class _Views:
    """Outputs of a graph that share memory. A compiled graph returns each of its outputs in memory of its own, so the
    views among them are taken out of the graph, which returns what they are views of, and PyTorch makes them.
    """

    def __init__(self, forward: torch.fx.GraphModule) -> None:
        (output,) = forward.graph.find_nodes(op="output")
        chains = [_view_chain(one) for one in output.args[0]]
        roots = [root for root, _ in chains]
        returned: list[Any] = []
        self._made: list[tuple[int, list[_View]]] = []
        """For each output which of the returned values it is made of, and by which views of that."""
        self._is_plain = True
        for value, (root, nodes) in zip(output.args[0], chains, strict=True):
            is_shared = roots.count(root) > 1 and _is_returnable(root)
            base = root if is_shared else value
            if is_shared and base in returned:
                place = returned.index(base)
            else:
                place = len(returned)
                returned.append(base)
            self._made.append((place, [_view(node) for node in nodes] if is_shared else []))
            self._is_plain = self._is_plain and not is_shared
        if not self._is_plain:
            output.args = (tuple(returned),)
            for node in reversed([node for _, nodes in chains for node in nodes]):
                if not node.users and node in forward.graph.nodes:
                    forward.graph.erase_node(node)
            forward.recompile()

    def of(self, returned: Any) -> Any:
        """The outputs of the graph as it was."""
        if self._is_plain:
            return returned
        values, made = _listed(returned), []
        for place, views in self._made:
            value = values[place]
            for view in views:
                value = view.of(value)
            made.append(value)
        return made


def _view(node: torch.fx.Node) -> _View:
    # `reshape`, as what is compiled is dense whatever the graph's own strides are.
    target = torch.ops.aten.reshape.default if node.target is torch.ops.aten.view.default else node.target
    return _View(target, node.args[1:], dict(node.kwargs))


def _view_chain(value: Any) -> tuple[Any, list[torch.fx.Node]]:
    """What a value that a graph returns is a view of, and the views from that to the value."""
    nodes: list[torch.fx.Node] = []
    while _is_view(value) or (_calls(value, operator.getitem) and _is_view(value.args[0])):
        nodes.insert(0, value)
        value = value.args[0]
    return value, nodes


def _calls(value: Any, function: Any) -> bool:
    return isinstance(value, torch.fx.Node) and value.op == "call_function" and value.target is function


def _is_returnable(root: Any) -> bool:
    """Whether a compiled graph may return what others are views of: a value of its own, in a type that ONNX has."""
    if not isinstance(root, torch.fx.Node) or root.op == "placeholder":
        return False
    return not (isinstance(found := root.meta.get("val"), torch.Tensor) and found.is_complex())


def _is_view(value: Any) -> bool:
    """Whether a value is a view of a tensor, or a list of views, as `split` returns it, with arguments that are known
    before the graph runs.
    """
    return (
        isinstance(value, torch.fx.Node)
        and value.op == "call_function"
        and isinstance(value.target, torch._ops.OpOverload)
        and value.target.is_view
        and value.target is not torch.ops.aten.as_strided.default
        and all(isinstance(one, torch.Tensor) for one in pytree.tree_leaves(value.meta.get("val")))
        and not any(isinstance(one, torch.fx.Node) for one in pytree.tree_leaves((value.args[1:], value.kwargs)))
    )


class _Frozen(torch.nn.Module):
    """A functional graph with some of its inputs fixed; its outputs without those that are no tensors. `extents` are
    the inputs that are extents of others: which of the free inputs, and which dimension of it.
    """

    def __init__(
        self,
        forward: torch.fx.GraphModule,
        arguments: Sequence[Any],
        fixed: Sequence[int],
        extents: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        super().__init__()
        self._extents = dict(extents or {})
        self._forward = forward
        self._count = len(arguments)
        self._fixed = {place: arguments[place] for place in fixed}
        for place, value in self._fixed.items():
            if isinstance(value, torch.Tensor):
                # Buffers become initializers of the exported model, which Retune packs and folds as constants.
                self.register_buffer(f"weight_{place}", value.detach())

    def forward(self, *free: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The tensors that the graph returns."""
        rest = iter(free)
        arguments: list[Any] = [
            (getattr(self, f"weight_{place}", self._fixed[place]) if place in self._fixed else next(rest))
            for place in range(self._count)
        ]
        # Read from the tensors, so that the exporter sees them as the same symbol and not as a number.
        for place, (tensor, dim) in self._extents.items():
            arguments[place] = free[tensor].shape[dim]
        return tuple(one for one in _listed(self._forward(*arguments)) if isinstance(one, torch.Tensor))


class _Compiled:
    """The network of a graph for inputs of known shapes and for its weights as they are now."""

    def __init__(self, forward: torch.fx.GraphModule, arguments: Sequence[Any], fixed: Sequence[int],
                 options: Mapping[str, Any]) -> None:  # fmt: skip
        self._free = [place for place in range(len(arguments)) if place not in fixed]
        self._weights = [arguments[place] for place in fixed if isinstance(arguments[place], torch.Tensor)]
        self._versions = list(map(_version, self._weights))
        tensors = tuple(arguments[place] for place in self._free)
        module = _Frozen(forward, arguments, fixed).eval()
        # what the graph returns beside tensors: numbers that follow from the shapes, and None
        returned = forward(*arguments)
        self._returns = [None if isinstance(one, torch.Tensor) else (one,) for one in _listed(returned)]
        proto, _ = export_onnx(module, tensors, {})
        if len(proto.graph.input) != len(tensors) or len(proto.graph.output) != self._returns.count(None):
            raise ModelError("the exported graph has other inputs or outputs than the captured one")
        store = options.get("store")
        model = Model(store_onnx(proto, "torch", models_folder(store)))
        threads = options.get("threads")
        if options.get("tune", True):
            limits = {name: options[name] for name in ("minutes", "trials", "effort") if options.get(name) is not None}
            more = {} if threads is None else {"threads": threads}
            self._network: Network = tune(model, store=store, options=more, **(limits or {"effort": "quick"}))
        else:
            self._network = compile(model, store=store, threads=threads)

    def is_current(self, weights: Sequence[Any]) -> bool:
        """Whether the weights are those that were compiled in, and nothing has written to them."""
        return _are_current(weights, self._weights, self._versions)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        found = self._network(*(arguments[place] for place in self._free))
        tensors = iter(found if isinstance(found, tuple) else (found,))
        return [next(tensors) if known is None else known[0] for known in self._returns]


class _Dynamic:
    """The network of a graph with symbolic extents, for its weights as they are now: the virtual machine runs it.

    Raises: ModelError where an extent follows from no shape, or what the graph returns is no tensor, or where PyTorch
    exports it for fixed extents.
    """

    def __init__(
        self, forward: torch.fx.GraphModule, arguments: Sequence[Any], fixed: Sequence[int], options: Mapping[str, Any]
    ) -> None:
        inputs = [node.meta.get("val") for node in forward.graph.nodes if node.op == "placeholder"]
        self._free = [place for place in range(len(arguments)) if place not in fixed]
        self._weights = [arguments[place] for place in fixed if isinstance(arguments[place], torch.Tensor)]
        self._versions = list(map(_version, self._weights))
        symbolic = [
            {dim for dim, extent in enumerate(inputs[place].shape) if isinstance(extent, torch.SymInt)}
            for place in self._free
        ]
        # By the symbol's text: equal symbols are equal extents, whichever input has them first.
        known = {
            str(inputs[place].shape[dim]): (number, dim)
            for number, (place, dims) in enumerate(zip(self._free, symbolic, strict=True))
            for dim in dims
        }
        extents: dict[int, tuple[int, int]] = {}
        for place in fixed:
            if isinstance(inputs[place], torch.SymInt):
                if str(inputs[place]) not in known:
                    raise ModelError(f"the number {inputs[place]} is no extent of an input of the graph")
                extents[place] = known[str(inputs[place])]
        if not all(isinstance(one, torch.Tensor) for one in _listed(forward(*arguments))):
            raise ModelError("the graph returns numbers that follow from symbolic extents")
        # AUTO lets PyTorch find equal or fixed extents by itself, where a named dimension would be an error.
        auto = torch.export.Dim.AUTO
        dims = tuple({dim: auto if dim in one else None for dim in range(arguments[place].dim())}
                     for place, one in zip(self._free, symbolic, strict=True))  # fmt: skip
        module = _Frozen(forward, arguments, fixed, extents).eval()
        proto, _ = export_onnx(module, tuple(arguments[place] for place in self._free), {}, shapes={"free": dims})
        for entry, one in zip(proto.graph.input, symbolic, strict=True):
            if any(not entry.type.tensor_type.shape.dim[dim].dim_param for dim in one):
                raise ModelError(f"PyTorch exports the graph for one shape of {entry.name} only")
        model = Model(store_onnx(proto, "torch", models_folder(options.get("store"))))
        self._network = compile(model, dynamic=True, store=options.get("store"), threads=options.get("threads"))

    def is_current(self, weights: Sequence[Any]) -> bool:
        """Whether the weights are those that were compiled in, and nothing has written to them."""
        return _are_current(weights, self._weights, self._versions)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        found = self._network(*(arguments[place] for place in self._free))
        return list(found) if isinstance(found, tuple) else [found]


class _Forward:
    """A captured graph: compiled for the shapes that it is called with, or once where its extents are symbolic.

    Where Retune declines operators of it, the parts between them are compiled, and PyTorch runs the others.
    """

    def __init__(
        self, forward: torch.fx.GraphModule, weights: Collection[int], options: Mapping[str, Any], *, whole: bool = True
    ) -> None:
        self._forward = _normalized(forward) if whole else forward
        self._weights = sorted(weights)
        self._options = options
        self._is_whole = whole
        self._known: dict[tuple[Any, ...], Callable[[Sequence[Any]], Any]] = {}
        places = [node.meta.get("val") for node in forward.graph.nodes if node.op == "placeholder"]
        self._is_dynamic = any(isinstance(one, torch.SymInt) for one in places)
        """Whether it has symbolic extents that the virtual machine takes, as far as is known."""
        self._dynamic: _Dynamic | None = None
        self._has_warned = False

    def __call__(self, *arguments: Any) -> Any:
        """What the graph returns."""
        if self._is_dynamic and (found := self._for_any_shape(arguments)) is not None:
            return found
        # Without the weights, which are many and the same at every call; their identity is checked by `is_current`.
        key = tuple(
            (tuple(one.shape), one.dtype, one.device.type) if isinstance(one, torch.Tensor) else one
            for place, one in enumerate(arguments)
            if place not in self._weights
        )
        known = self._known.get(key)
        # Weights are constants of the network: a write to one makes it stale.
        if isinstance(known, _Compiled) and not known.is_current([arguments[place] for place in self._weights]):
            known = None
        # A bound on compilations: a model with ever new shapes would compile at each call.
        if known is None and (key in self._known or len(self._known) < MOST_SHAPES):
            with torch.no_grad(), _disable_current_modes():  # AOTAutograd watches first calls by its own mode
                known = self._known[key] = self._compile(arguments)
        return self._in_torch(arguments) if known is None else known(arguments)

    def _for_any_shape(self, arguments: Sequence[Any]) -> list[Any] | None:
        """What the graph returns, from the virtual machine; None, and one warning, where it cannot take the graph."""
        weights = [arguments[place] for place in self._weights]
        try:
            if self._dynamic is None or not self._dynamic.is_current(weights):
                fixed = self._fixed(arguments)
                if not self._runs_here(arguments, fixed):
                    self._is_dynamic = False
                    return None
                with torch.no_grad(), _disable_current_modes():
                    self._dynamic = _Dynamic(self._forward, arguments, fixed, self._options)
            return self._dynamic(arguments)
        except (*_DECLINED, OptionError, ShapeMismatchError) as error:
            self._warn("a graph with dynamic shapes is compiled for each shape, up to %d: %s", MOST_SHAPES, error)
            self._is_dynamic, self._dynamic = False, None
            return None

    def _warn(self, text: str, *values: Any, fallback: Fallback | None = None) -> None:
        """Say once what this graph does not get; further shapes of it differ little."""
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        _log.log(level, text, *values, extra={"fallback": fallback})

    def _fixed(self, arguments: Sequence[Any]) -> list[int]:
        return [*self._weights, *(place for place, one in enumerate(arguments) if not isinstance(one, torch.Tensor))]

    @staticmethod
    def _runs_here(arguments: Sequence[Any], fixed: Sequence[int]) -> bool:
        """Whether something depends on an input, and all is on the CPU."""
        tensors = [one for one in arguments if isinstance(one, torch.Tensor)]
        return len(fixed) < len(arguments) and all(one.device.type == "cpu" for one in tensors)

    def _in_torch(self, arguments: Sequence[Any]) -> Any:
        return self._forward(*arguments)

    def _compile(self, arguments: Sequence[Any]) -> Callable[[Sequence[Any]], Any]:
        fixed = self._fixed(arguments)
        if not self._runs_here(arguments, fixed):
            return self._in_torch
        try:
            return _Compiled(self._forward, arguments, fixed, self._options)
        except _DECLINED as error:
            if self._is_whole:
                return self._compile_parts(arguments, error)
            with FlopCounterMode(display=False) as counter:
                self._forward(*arguments)
            names = _operators(node for node in self._forward.graph.nodes if node.op == "call_function")
            self._warn("a part of a graph runs in PyTorch, because Retune cannot compile it: %s", error,
                       fallback=Fallback(names, counter.get_total_flops()))  # fmt: skip
            return self._in_torch

    def _compile_parts(self, arguments: Sequence[Any], error: Exception) -> Callable[[Sequence[Any]], Any]:
        """The graph in parts, and one warning that names the operators which stay with PyTorch."""
        trial = _Trial(self._forward)
        trial.judge(*arguments)
        if not trial.declined:
            nodes = (node for node in self._forward.graph.nodes if node.op == "call_function")
            fallback = Fallback(_operators(nodes), trial.flops)
            self._warn("a graph runs in PyTorch, because Retune cannot compile it: %s", error, fallback=fallback)
            return self._in_torch
        fallback = Fallback(_operators(trial.declined), trial.declined_flops)
        share = 100 * fallback.flops / trial.flops if trial.flops else 0.0
        self._warn(
            "PyTorch runs %s, %.1f%% of the FLOPs of a graph: Retune does not take them",
            ", ".join(fallback.operators), share, fallback=fallback,
        )  # fmt: skip
        split = CapabilityBasedPartitioner(
            # The partitioner changes the graph, which is still needed where a part is declined.
            copy.deepcopy(self._forward),
            _Taken(trial.taken),
            # One operator alone would cost a call of a network, and has nothing to be fused with.
            allows_single_node_partition=False,
        ).partition_and_fuse()
        inputs = [node for node in split.graph.nodes if node.op == "placeholder"]
        constant = {inputs[place] for place in self._weights}
        for node in split.graph.nodes:
            if node.op == "call_module":
                weights = [place for place, one in enumerate(node.args) if one in constant]
                part: Any = split.get_submodule(str(node.target))
                is_single = isinstance(part.graph.output_node().args[0], torch.fx.Node)
                compiled = _Forward(part, weights, self._options, whole=False)
                split.set_submodule(str(node.target), _Part(compiled, is_single=is_single))
        return lambda given: split(*given)


class _Part(torch.nn.Module):
    """A compiled part of a graph as a module of it."""

    def __init__(self, compiled: _Forward, *, is_single: bool) -> None:
        super().__init__()
        self._compiled = compiled
        self._is_single = is_single

    def forward(self, *arguments: Any) -> Any:
        """What the part returns: one value, or several."""
        found = self._compiled(*arguments)
        return found[0] if isinstance(found, list) and self._is_single else found


class _Taken(OperatorSupportBase):
    """Which nodes Retune takes, by name."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:  # noqa: ARG002
        """Whether the node may be part of a compiled graph."""
        return node.name in self._names


class _Trial(torch.fx.Interpreter):
    """Runs a graph operator by operator, then finds out which Retune can compile: `taken` are the names of these nodes,
    `declined` the others. Operators alike are one case.

    An export costs more than a second, whatever it exports: all cases are exported as one model, and bisection finds
    the ones that make it fail.
    """

    def __init__(self, forward: torch.fx.GraphModule) -> None:
        super().__init__(forward)
        self.taken: set[str] = set()
        self.declined: list[torch.fx.Node] = []
        self._cases: dict[str, _Operator | None] = {}
        self._keys: dict[torch.fx.Node, str] = {}
        self._flops: dict[str, int] = {}

    @property
    def flops(self) -> int:
        """FLOPs of all operators."""
        return sum(self._flops.values())

    @property
    def declined_flops(self) -> int:
        """FLOPs of the operators declined."""
        return sum(self._flops[node.name] for node in self.declined)

    def judge(self, *arguments: Any) -> None:
        """Run the graph and fill `taken` and `declined`."""
        self.run(*arguments)
        # Alike names side by side: what is declined of an operator is found in few exports.
        cases = sorted((key, case) for key, case in self._cases.items() if case is not None and case.tensors)
        failing = {key for key, case in self._cases.items() if case is None}
        failing.update(key for key, _ in _declined_of(cases))
        for node, key in self._keys.items():
            if key in failing:
                self.declined.append(node)
            else:
                self.taken.add(node.name)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run a node and note it as a case."""
        if n.op != "call_function":
            return super().run_node(n)
        with FlopCounterMode(display=False) as counter:
            result = super().run_node(n)
        self._flops[n.name] = counter.get_total_flops()
        leaves, structure = pytree.tree_flatten(self.fetch_args_kwargs_from_env(n))
        read = None if isinstance(result, torch.Tensor) else _read_items(n)
        kinds = [(tuple(one.shape), one.dtype) if isinstance(one, torch.Tensor) else one for one in leaves]
        key = self._keys[n] = f"{n.target} {kinds} {read}"
        if key not in self._cases:
            is_tensors = all(isinstance(one, torch.Tensor) for one in pytree.tree_leaves(result))
            # others are numbers that follow from shapes
            self._cases[key] = _Operator(n.target, leaves, structure, read) if is_tensors else None
        return result


class _Operator:
    """An operator with all arguments that are no tensors fixed, and with `tensors` like the others, whose values are
    undefined. `read` are the items that the graph reads of a sequence, None where it reads all that is returned.
    """

    def __init__(self, target: Any, leaves: Sequence[Any], structure: Any, read: Sequence[int] | None) -> None:
        self._target = target
        self._read = read
        self._structure = structure
        self._fixed = [None if isinstance(one, torch.Tensor) else (one,) for one in leaves]
        # No copies: memory that is never written is never taken from the machine.
        self.tensors = tuple(
            torch.empty_strided(one.shape, one.stride(), dtype=one.dtype)
            for one in leaves
            if isinstance(one, torch.Tensor)
        )

    def __call__(self, tensors: Iterator[torch.Tensor]) -> Any:
        """What the graph reads of the result."""
        leaves = [next(tensors) if fixed is None else fixed[0] for fixed in self._fixed]
        args, kwargs = pytree.tree_unflatten(leaves, self._structure)
        result = self._target(*args, **kwargs)
        return result if self._read is None else [result[item] for item in self._read]


class _Operators(torch.nn.Module):
    """Operators side by side, none of which reads what another returns."""

    def __init__(self, cases: Sequence[_Operator]) -> None:
        super().__init__()
        self._cases = cases

    def forward(self, *tensors: torch.Tensor) -> Any:
        """What the operators return."""
        rest = iter(tensors)
        return [case(rest) for case in self._cases]


def _declined_of(cases: Sequence[tuple[str, _Operator]], *, is_known: bool = False) -> list[tuple[str, _Operator]]:
    """The cases that cannot be exported and imported, by bisection; `is_known` says that one of them cannot."""
    if not cases:
        return []
    if (len(cases) == 1 or not is_known) and _are_taken([case for _, case in cases]):
        return []
    if len(cases) == 1:
        return list(cases)
    # Group testing by halves: d failing ones of n take about d log2(n) exports instead of n. If none fails in the first
    # half, one must in the second, whose test is saved.
    half = len(cases) // 2
    before = _declined_of(cases[:half])
    return before + _declined_of(cases[half:], is_known=not before)


def _are_taken(cases: Sequence[_Operator]) -> bool:
    """Whether a model of these operators can be exported and imported."""
    try:
        proto, _ = export_onnx(_Operators(cases).eval(), tuple(one for case in cases for one in case.tensors), {})
        load_model(proto)
    except _DECLINED:
        return False
    return True


def _read_items(node: torch.fx.Node) -> list[int] | None:
    """Which items the graph reads of what a node returns, a sequence; None where something reads all of it."""
    if not node.users or any(user.target is not operator.getitem for user in node.users):
        return None
    return sorted({int(user.args[1]) for user in node.users})


def _normalized(forward: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with `reshape` in place of `view`: what a compiled part returns is dense, whatever strides the
    operators behind it were captured with. And with a cast before `rsub` where it promotes its operand, as in 1.0 - n
    for an integer n, which PyTorch's exporter does not do.
    """
    aten = torch.ops.aten
    for node in forward.graph.nodes:
        if node.op != "call_function":
            continue
        if node.target in (aten.view.default, aten._unsafe_view.default):
            node.target = aten.reshape.default
        elif node.target is aten.rsub.Scalar and (operand := node.args[0]).meta["val"].dtype != node.meta["val"].dtype:
            with forward.graph.inserting_before(node):
                promoted = forward.graph.call_function(
                    aten._to_copy.default, (operand,), {"dtype": node.meta["val"].dtype}
                )
            promoted.meta["val"] = aten._to_copy.default(operand.meta["val"], dtype=node.meta["val"].dtype)
            node.replace_input_with(operand, promoted)
    forward.recompile()
    return forward


def _operators(nodes: Iterable[torch.fx.Node]) -> tuple[str, ...]:
    """The operators that nodes call, by name, each once."""
    return tuple(sorted({str(node.target) for node in nodes}))


def _listed(returned: Any) -> Sequence[Any]:
    """What a graph returns as a sequence: a part of a graph may return one tensor."""
    return (returned,) if isinstance(returned, torch.Tensor) else returned


def _are_current(weights: Sequence[Any], known: Sequence[Any], versions: Sequence[Any]) -> bool:
    pairs = zip(weights, known, versions, strict=True)
    # Identity first: a weight that was replaced may lie at the address of the old one.
    return all(one is other and _version(one) == version for one, other, version in pairs)


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    """What changes when a tensor is written to or gets other memory; inference tensors do not count writes."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
