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
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils.flop_counter import FlopCounterMode

from retune.api import EFFORTS, compile, models_folder, tune
from retune.compiler.core.errors import ModelError, OptionError, ShapeMismatchError
from retune.models import Model, export_onnx, store_onnx
from retune.network import Network
from retune.torch_fast_paths import DECOMPOSITIONS
from retune.torch_trial import DECLINED, Trial
from retune.torch_views import Argument, Returned, Views, as_sequence

_log = logging.getLogger(__name__)

# As many as Dynamo compiles a frame for before it gives up, `torch._dynamo.config.recompile_limit`.
MOST_SHAPES = 8
"""For how many different shapes of its inputs a graph is compiled; calls with further shapes run as PyTorch would."""

OPTIONS = ("tune", "minutes", "trials", "effort", "threads", "store")


Call = Callable[[Sequence[Argument]], Returned]
_Number = Callable[[Sequence[torch.Tensor]], int]


@dataclass(frozen=True, slots=True)
class Fallback:
    """What of a graph PyTorch runs: operators, and how many FLOPs they do. It is the `fallback` of the log record that
    warns of it.
    """

    operators: tuple[str, ...]
    flops: int


def retune_backend(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Argument],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Returned]:
    """Compile a captured graph for inference.

    `options` are `minutes`, `trials` or `effort` of the search, which is "quick" unless given; `{"tune": False}` takes
    the best known programs and measures nothing; `threads` and `store` are as for `retune.tune`.
    Raises: OptionError for other options, and where gradients are recorded.
    """
    if mode not in (None, "default"):
        raise OptionError(f"the backend retune has no mode {mode!r}: say options={{'effort': 'thorough'}} instead")
    chosen = _check_options(options or {})
    # AOTAutograd would split the graph into a forward and a backward graph; there is no backward kernel to run.
    if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs):
        raise OptionError(
            "Retune compiles inference, and gradients are recorded here: call the model under torch.inference_mode() "
            "or torch.no_grad()"
        )

    def compile_forward(forward: torch.fx.GraphModule, _inputs: Sequence[Argument]) -> Callable[..., Returned]:
        views = Views(forward)
        compiled = _Forward(forward, _weights(graph, forward), chosen)
        # AOTAutograd's calling convention: one list of arguments, which the callee may empty to free them early.
        boxed: Callable[..., Returned] = make_boxed_func(lambda *given: views.restore(compiled(*given)))
        return boxed

    made: Callable[..., Returned] = aot_autograd(
        fw_compiler=compile_forward, inference_compiler=compile_forward, decompositions=DECOMPOSITIONS
    )(graph, example_inputs)
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
    # It lifts or drops inputs for aliases; a weight taken for an input costs time, the reverse would compile
    # in what changes.
    if len(before) != len(after):
        return frozenset()
    return frozenset(
        index for index, node in enumerate(before) if "_dynamo_static_input_type" in node.meta.get("tensor_dict", {})
    )


class _Frozen(torch.nn.Module):
    """A functional graph with some of its inputs fixed; its outputs without those that are no tensors. `numbers` are
    the inputs that follow from extents of the others, each a formula of the free inputs.
    """

    def __init__(
        self,
        forward: torch.fx.GraphModule,
        arguments: Sequence[Argument],
        fixed: Sequence[int],
        numbers: Mapping[int, _Number] | None = None,
    ) -> None:
        super().__init__()
        self._numbers = dict(numbers or {})
        self._forward = forward
        self._count = len(arguments)
        self._fixed = {index: arguments[index] for index in fixed}
        for index, value in self._fixed.items():
            if isinstance(value, torch.Tensor):
                # Buffers become initializers of the exported model, which Retune packs and folds as constants.
                self.register_buffer(f"weight_{index}", value.detach())

    def forward(self, *free: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rest = iter(free)
        arguments: list[Argument] = [
            (getattr(self, f"weight_{index}", self._fixed[index]) if index in self._fixed else next(rest))
            for index in range(self._count)
        ]
        # Read from the tensors, so that the exporter sees them as the same symbol and not as a number.
        for index, number in self._numbers.items():
            arguments[index] = number(free)
        return tuple(result for result in as_sequence(self._forward(*arguments)) if isinstance(result, torch.Tensor))


class _OfWeights:
    """A network of a graph for its weights as they are now."""

    _network: Network

    def __init__(self, arguments: Sequence[Argument], fixed: Sequence[int]) -> None:
        self._free = [index for index in range(len(arguments)) if index not in fixed]
        self._weights = [arguments[index] for index in fixed if isinstance(arguments[index], torch.Tensor)]
        self._versions = list(map(_version, self._weights))

    def is_current(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether the weights are those that were compiled in, and nothing has written to them."""
        pairs = zip(weights, self._weights, self._versions, strict=True)
        # Identity first: a weight that was replaced may lie at the address of the old weight.
        return all(weight is known and _version(weight) == version for weight, known, version in pairs)

    def __call__(self, arguments: Sequence[Argument]) -> list[torch.Tensor]:
        outputs = self._network(*(arguments[index] for index in self._free))
        return list(outputs) if isinstance(outputs, tuple) else [outputs]


class _Compiled(_OfWeights):
    """The network for inputs of known shapes."""

    def __init__(
        self,
        forward: torch.fx.GraphModule,
        arguments: Sequence[Argument],
        fixed: Sequence[int],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(arguments, fixed)
        tensors = tuple(arguments[index] for index in self._free)
        module = _Frozen(forward, arguments, fixed).eval()
        # what the graph returns beside tensors: numbers that follow from the shapes, and None
        returned = forward(*arguments)
        self._returns = [None if isinstance(result, torch.Tensor) else (result,) for result in as_sequence(returned)]
        proto, _ = export_onnx(module, tensors, {})
        if len(proto.graph.input) != len(tensors) or len(proto.graph.output) != self._returns.count(None):
            raise ModelError("the exported graph has other inputs or outputs than the captured one")
        store = options.get("store")
        model = Model(store_onnx(proto, "torch", models_folder(store)))
        threads = options.get("threads")
        if options.get("tune", True):
            limits = {name: options[name] for name in ("minutes", "trials", "effort") if options.get(name) is not None}
            more = {} if threads is None else {"threads": threads}
            self._network = tune(model, store=store, options=more, **(limits or {"effort": "quick"}))
        else:
            self._network = compile(model, store=store, threads=threads)

    def __call__(self, arguments: Sequence[Argument]) -> list[torch.Tensor]:
        tensors = iter(super().__call__(arguments))
        return [next(tensors) if known is None else known[0] for known in self._returns]


class _Dynamic(_OfWeights):
    """The network of a graph with symbolic extents: the virtual machine runs it.

    Raises: ModelError where an extent follows from no shape, or what the graph returns is no tensor, or where PyTorch
    exports it for fixed extents.
    """

    def __init__(
        self,
        forward: torch.fx.GraphModule,
        arguments: Sequence[Argument],
        fixed: Sequence[int],
        options: Mapping[str, Any],
    ) -> None:
        inputs = [node.meta.get("val") for node in forward.graph.nodes if node.op == "placeholder"]
        super().__init__(arguments, fixed)
        symbolic = [
            {dim for dim, extent in enumerate(inputs[index].shape) if isinstance(extent, torch.SymInt)}
            for index in self._free
        ]
        # By the symbol's text: equal symbols are equal extents, whichever input has them first.
        known = {
            str(inputs[index].shape[dim]): (number, dim)
            for number, (index, dims) in enumerate(zip(self._free, symbolic, strict=True))
            for dim in dims
        }
        numbers = {index: _number(inputs[index], known) for index in fixed if isinstance(inputs[index], torch.SymInt)}
        if not all(isinstance(result, torch.Tensor) for result in as_sequence(forward(*arguments))):
            raise ModelError("the graph returns numbers that follow from symbolic extents")
        # AUTO lets PyTorch find equal or fixed extents by itself, where a named dimension would be an error.
        auto = torch.export.Dim.AUTO
        dims = tuple(
            {dim: auto if dim in dims_of_input else None for dim in range(arguments[index].dim())}
            for index, dims_of_input in zip(self._free, symbolic, strict=True)
        )
        module = _Frozen(forward, arguments, fixed, numbers).eval()
        proto, _ = export_onnx(module, tuple(arguments[index] for index in self._free), {}, shapes={"free": dims})
        for entry, dims_of_input in zip(proto.graph.input, symbolic, strict=True):
            if any(not entry.type.tensor_type.shape.dim[dim].dim_param for dim in dims_of_input):
                raise ModelError(f"PyTorch exports the graph for one shape of {entry.name} only")
        model = Model(store_onnx(proto, "torch", models_folder(options.get("store"))))
        self._network = compile(model, dynamic=True, store=options.get("store"), threads=options.get("threads"))


def _number(value: torch.SymInt, known: Mapping[str, tuple[int, int]]) -> _Number:
    """The formula of a number from the `known` extents: which of the free inputs, and which dimension of it.

    Raises: ModelError where it does not follow from them.
    """
    expr = value.node.expr
    atoms = [expr] if str(expr) in known else sorted(expr.free_symbols, key=str)
    if any(str(atom) not in known for atom in atoms):
        raise ModelError(f"the number {value} follows from no extent of an input of the graph")

    def evaluate(free: Sequence[torch.Tensor]) -> int:
        extents = {atom: free[known[str(atom)][0]].shape[known[str(atom)][1]] for atom in atoms}
        result: int = extents[expr] if expr in extents else sympy_interp(PythonReferenceAnalysis, extents, expr)
        return result

    return evaluate


class _Forward:
    """A captured graph: compiled for the shapes that it is called with, or once where its extents are symbolic.

    Where Retune declines operators of it, the parts between them are compiled, and PyTorch runs the others.
    """

    def __init__(
        self, forward: torch.fx.GraphModule, weights: Collection[int], options: Mapping[str, Any], *, whole: bool = True
    ) -> None:
        self._forward = _normalize(forward) if whole else forward
        self._weights = sorted(weights)
        self._options = options
        self._is_whole = whole
        self._known: dict[tuple[object, ...], Call] = {}
        places = [node.meta.get("val") for node in forward.graph.nodes if node.op == "placeholder"]
        self._is_dynamic = any(isinstance(value, torch.SymInt) for value in places)
        """Whether it has symbolic extents that the virtual machine takes, as far as is known."""
        self._has_symbols = self._is_dynamic
        self._in_parts: Call | None = None
        """The parts of a graph with symbolic extents, each of which takes any shape by itself."""
        self._dynamic: _Dynamic | None = None
        self._has_warned = False

    def __call__(self, *arguments: Argument) -> Returned:
        """What the graph returns."""
        if self._is_dynamic and (outputs := self._for_any_shape(arguments)) is not None:
            return outputs
        if self._in_parts is not None:
            return self._in_parts(arguments)
        # Without the weights, which are many and the same at every call; their identity is checked by `is_current`.
        key = tuple(
            (tuple(arg.shape), arg.dtype, arg.device.type) if isinstance(arg, torch.Tensor) else arg
            for index, arg in enumerate(arguments)
            if index not in self._weights
        )
        known = self._known.get(key)
        # Weights are constants of the network: a write to one makes it stale.
        if isinstance(known, _Compiled) and not known.is_current([arguments[index] for index in self._weights]):
            known = None
        # A bound on compilations: a model with ever new shapes would compile at each call.
        if known is None and (key in self._known or len(self._known) < MOST_SHAPES):
            with torch.no_grad(), _disable_current_modes():  # AOTAutograd watches first calls by its own mode
                known = self._known[key] = self._compile(arguments)
        return self._in_torch(arguments) if known is None else known(arguments)

    def _for_any_shape(self, arguments: Sequence[Argument]) -> list[torch.Tensor] | None:
        """What the graph returns, from the virtual machine; None, and one warning, where it cannot take the graph."""
        weights = [arguments[index] for index in self._weights]
        try:
            if self._dynamic is None or not self._dynamic.is_current(weights):
                fixed = self._fixed_arguments(arguments)
                if not self._runs_here(arguments, fixed):
                    self._is_dynamic = False
                    return None
                with torch.no_grad(), _disable_current_modes():
                    self._dynamic = _Dynamic(self._forward, arguments, fixed, self._options)
            return self._dynamic(arguments)
        except (*DECLINED, OptionError, ShapeMismatchError) as error:
            self._warn("a graph with dynamic shapes is compiled for each shape, up to %d: %s", MOST_SHAPES, error)
            self._is_dynamic, self._dynamic = False, None
            return None

    def _warn(self, text: str, *values: object, fallback: Fallback | None = None) -> None:
        """Say once what this graph does not get; further shapes of it differ little."""
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        _log.log(level, text, *values, extra={"fallback": fallback})

    def _fixed_arguments(self, arguments: Sequence[Argument]) -> list[int]:
        return [*self._weights, *(index for index, arg in enumerate(arguments) if not isinstance(arg, torch.Tensor))]

    @staticmethod
    def _runs_here(arguments: Sequence[Argument], fixed: Sequence[int]) -> bool:
        """Whether something depends on an input, and all is on the CPU."""
        tensors = [arg for arg in arguments if isinstance(arg, torch.Tensor)]
        return len(fixed) < len(arguments) and all(arg.device.type == "cpu" for arg in tensors)

    def _in_torch(self, arguments: Sequence[Argument]) -> Returned:
        return self._forward(*arguments)

    def _compile(self, arguments: Sequence[Argument]) -> Call:
        fixed = self._fixed_arguments(arguments)
        if not self._runs_here(arguments, fixed):
            return self._in_torch
        try:
            return _Compiled(self._forward, arguments, fixed, self._options)
        except DECLINED as error:
            if self._is_whole:
                return self._compile_parts(arguments, error)
            with FlopCounterMode(display=False) as counter:
                self._forward(*arguments)
            names = _operators(node for node in self._forward.graph.nodes if node.op == "call_function")
            self._warn(
                "a part of a graph runs in PyTorch, because Retune cannot compile it: %s",
                error,
                fallback=Fallback(names, counter.get_total_flops()),
            )
            return self._in_torch

    def _compile_parts(self, arguments: Sequence[Argument], error: Exception) -> Call:
        """The graph in parts, and one warning that names the operators which stay with PyTorch."""
        trial = Trial(self._forward)
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
            ", ".join(fallback.operators),
            share,
            fallback=fallback,
        )
        split = CapabilityBasedPartitioner(
            # The partitioner changes the graph, which is still needed where a part is declined.
            copy.deepcopy(self._forward),
            _Taken(trial.taken),
            # One operator alone would cost a call of a network, and has nothing to be fused with.
            allows_single_node_partition=False,
        ).partition_and_fuse()
        inputs = [node for node in split.graph.nodes if node.op == "placeholder"]
        constant = {inputs[index] for index in self._weights}
        for node in split.graph.nodes:
            if node.op == "call_module":
                weights = [index for index, arg in enumerate(node.args) if arg in constant]
                part: torch.fx.GraphModule = split.get_submodule(str(node.target))
                is_single = isinstance(part.graph.output_node().args[0], torch.fx.Node)
                compiled = _Forward(part, weights, self._options, whole=False)
                split.set_submodule(str(node.target), _Part(compiled, is_single=is_single))
        if self._has_symbols:
            self._in_parts = lambda given: split(*given)
        return lambda given: split(*given)


class _Part(torch.nn.Module):
    """A compiled part of a graph as a module of it."""

    def __init__(self, compiled: _Forward, *, is_single: bool) -> None:
        super().__init__()
        self._compiled = compiled
        self._is_single = is_single

    def forward(self, *arguments: Argument) -> Returned:
        """What the part returns: one value, or several."""
        outputs = self._compiled(*arguments)
        return outputs[0] if isinstance(outputs, list) and self._is_single else outputs


class _Taken(OperatorSupportBase):
    """Which nodes Retune takes, by name."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: torch.fx.Node) -> bool:  # noqa: ARG002
        """Whether the node may be part of a compiled graph."""
        return node.name in self._names


def _normalize(forward: torch.fx.GraphModule) -> torch.fx.GraphModule:
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


def _version(tensor: torch.Tensor) -> tuple[int, int]:
    """What changes when a tensor is written to or gets other memory; inference tensors do not count writes."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version
