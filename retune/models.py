"""Converts a model of any accepted form to what the importer reads: a name of the zoo or an ONNX file."""

import hashlib
import inspect
import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from retune.compiler.core.errors import (
    ModelError,
    ModelFormatError,
    OptionError,
    UnsupportedOperatorError,
    install_hint,
)
from retune.compiler.frontend.model_file import read_model, with_external_weights
from retune.compiler.runtime.atomic_write import atomic_write
from retune.network import Signature

if TYPE_CHECKING:
    import onnx_ir
    import torch
    from torch.utils import _pytree as pytree

_COLORS = re.compile(r"\x1b\[[\d;]*m")


@dataclass(frozen=True, slots=True)
class Model:
    """A model that can be imported: `source` is a name of the zoo or the path of an ONNX file; the signature is that of
    a PyTorch module, None for others.
    """

    source: str
    signature: Signature | None = None


def model_of(
    model: object, args: tuple[object, ...], kwargs: Mapping[str, object], folder: Path, *, dynamic: bool
) -> Model:
    """The model as a name or a file, which is written into `folder` where there is none yet.

    `model` is a name of the zoo, a path, an ONNX model or its bytes, or a `torch.nn.Module` with example inputs.
    Raises: ModelError, OptionError.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, str | Path):
        return Model(str(model))
    if isinstance(model, bytes | onnx.ModelProto):
        proto = read_model(model)
        return Model(store_onnx(proto, proto.graph.name or "model", folder))
    if is_torch_module(model):
        return _export(model, args, kwargs, folder, dynamic=dynamic)
    raise ModelFormatError(
        f"a model is a torch.nn.Module, an ONNX model, its bytes or its path, or a name listed by `retune networks`, "
        f"not {type(model).__module__}.{type(model).__qualname__}"
    )


def is_torch_module(model: object) -> bool:
    """Whether `model` is a `torch.nn.Module`; PyTorch is not imported, which takes seconds."""
    return any(
        kind.__module__ == "torch.nn.modules.module" and kind.__name__ == "Module" for kind in type(model).__mro__
    )


def store_onnx(model: onnx.ModelProto, name: str, folder: Path) -> str:
    """The path of an ONNX file with this model, large weights in a second file beside it; the checksum of the content
    is part of both names.
    """
    light, large = with_external_weights(model)
    try:
        # Without it protobuf writes maps in an order that changes, and equal models would be different files.
        checksum = hashlib.sha256(light.SerializeToString(deterministic=True))
    except ValueError as error:  # of protobuf, beyond 2 GiB
        raise ModelFormatError(
            f"the model {name} is larger than one ONNX file can be; save it with external data and give the path"
        ) from error
    for tensor in large:
        checksum.update(tensor.raw_data)
    label = "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:60]
    # 12 hexadecimal digits are 48 bits: a collision is not to be feared among the models of one state folder.
    path = folder / f"{label}-{checksum.hexdigest()[:12]}.onnx"
    weights = path.with_suffix(".weights")
    # Processes that store the same model at once write the same bytes: whichever is last wins, and readers see it
    # complete.
    if large and not weights.exists():
        with atomic_write(weights) as temporary, temporary.open("wb") as file:
            for tensor in large:
                file.write(tensor.raw_data)
    if not path.exists():
        for tensor in light.graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensor.external_data.add(key="location", value=weights.name)
        with atomic_write(path) as temporary:
            temporary.write_bytes(light.SerializeToString(deterministic=True))
    return str(path)


@dataclass(frozen=True, slots=True)
class TorchSignature:
    """How a PyTorch module is called. The structures are PyTorch's tree specifications of `(args, kwargs)` and of the
    result; `input_places` says which leaves of the arguments are inputs of the network.
    """

    arguments: "pytree.TreeSpec"
    returns: "pytree.TreeSpec | None"
    input_places: tuple[int, ...]
    constants: tuple[object, ...]
    """The leaves of the example's arguments that are no tensors; None for those that are."""

    def inputs(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> list[object]:
        """The tensors among the arguments. Raises: OptionError when the structure differs from the example's."""
        from torch.utils import _pytree as pytree

        leaves, structure = pytree.tree_flatten((args, dict(kwargs)))
        if structure != self.arguments:
            raise OptionError(f"the network was compiled for {_describe(self.arguments)}, not {_describe(structure)}")
        for leaf, known in zip(leaves, self.constants, strict=True):
            if known is not None and leaf != known:
                raise OptionError(f"the network was compiled for the argument {known!r}, not {leaf!r}")
        return [leaves[index] for index in self.input_places]

    def result(self, outputs: list[object]) -> object:
        from torch.utils import _pytree as pytree

        # The exporter leaves out results that are None: the structure does not fit then.
        if self.returns is None or self.returns.num_leaves != len(outputs):
            return outputs[0] if len(outputs) == 1 else tuple(outputs)
        return pytree.tree_unflatten(outputs, self.returns)


def _describe(structure: "pytree.TreeSpec") -> str:
    """Arguments as they stand in a call: `(..., mask=...)`. Each tensor or number is an ellipsis."""
    from torch.utils import _pytree as pytree

    args, kwargs = pytree.tree_unflatten([...] * structure.num_leaves, structure)
    items = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"the arguments ({', '.join(items)})".replace("Ellipsis", "...")[:300]


def _export(
    module: "torch.nn.Module", args: tuple[object, ...], kwargs: Mapping[str, object], folder: Path, *, dynamic: bool
) -> Model:
    import torch
    from torch.utils import _pytree as pytree

    name = type(module).__name__
    if module.training:
        raise ModelError(f"{name} is in training mode: call {name}.eval() first; Retune compiles inference")
    if not args and not kwargs:
        raise OptionError(f"example inputs are needed to export {name}: pass them behind the model")
    leaves, arguments = pytree.tree_flatten((args, dict(kwargs)))
    elsewhere = {
        str(tensor.device) for tensor in (*module.parameters(), *module.buffers()) if tensor.device.type != "cpu"
    }
    elsewhere |= {str(leaf.device) for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu"}
    if elsewhere:
        raise ModelError(f"{name} or its inputs are on {', '.join(sorted(elsewhere))}: move them to the CPU first")
    proto, returns = export_onnx(module, args, kwargs, dynamic=dynamic)
    tensors = tuple(index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
    # PyTorch leaves out inputs that nothing reads, by which the places of the others would shift.
    if len(proto.graph.input) != len(tensors):
        unused = len(tensors) - len(proto.graph.input)
        raise ModelError(f"{name} does not read {unused} of its {len(tensors)} input tensors: leave them out")
    constants = tuple(None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves)
    return Model(store_onnx(proto, name, folder), TorchSignature(arguments, returns, tensors, constants))


def export_onnx(
    module: "torch.nn.Module",
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    *,
    dynamic: bool = False,
    shapes: Mapping[str, object] | None = None,
) -> tuple[onnx.ModelProto, "pytree.TreeSpec"]:
    """A PyTorch module as an ONNX model, and the structure of what it returns. With `dynamic` every dimension of the
    inputs that the module lets vary is dynamic; `shapes` says instead which are, as `torch.export` takes it.

    Raises: ModelError when PyTorch cannot export it, or its exporter is not complete.
    """
    import torch

    try:
        from onnx_ir.passes import common
        from onnxscript import optimizer  # torch.onnx imports it too
    except ImportError as error:
        raise ModelError(
            f"PyTorch exports models with onnxscript, which is missing: {install_hint('torch')}"
        ) from error
    if dynamic:
        shapes = _dynamic_shapes(module, args, kwargs)
    try:
        # Without gradients, so that no operator of autograd is captured.
        with torch.no_grad(), _silence():
            program = torch.export.export(module, args, dict(kwargs), dynamic_shapes=shapes, strict=False)
            program._guards_code = []  # checks of the inputs, which fail in PyTorch's own retracing of some graphs
            exported = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False)
            if exported is not None:
                # `optimize=True` without its rewrites: these take quadratic time, and the graph passes do the same.
                optimizer.inline(exported.model)
                optimizer.fold_constants(exported.model, onnx_shape_inference=True)
                optimizer.remove_unused_nodes(exported.model)
                common.OutputFixPass()(exported.model)  # an output that is an input, too
                _repair(exported.model.graph, program.graph.output_node().args[0])
    except Exception as error:  # of PyTorch, which may raise anything
        raise UnsupportedOperatorError(
            f"PyTorch cannot export {type(module).__name__} to ONNX: {_reason(error)}"
        ) from error
    if exported is None:  # what PyTorch returns when it writes a file itself
        raise UnsupportedOperatorError(f"PyTorch did not export {type(module).__name__} to ONNX")
    proto: onnx.ModelProto = exported.model_proto
    for node in proto.graph.node:  # stack traces, which differ from script to script
        del node.metadata_props[:]
    for entry in proto.graph.input:
        for dim in entry.type.tensor_type.shape.dim:
            if dim.dim_param.isdecimal():  # PyTorch writes some fixed extents as names
                dim.dim_value = int(dim.dim_param)
    returns = program.call_spec.out_spec
    return proto, returns


def _repair(graph: "onnx_ir.Graph", returned: "Sequence[torch.fx.Node]") -> None:
    """Correct what PyTorch's exporter gets wrong: `any` of no elements, and reductions of halves that are `returned`,
    which it widens and does not cast back.
    """
    import onnx_ir as ir

    for node in graph:
        bools = node.op_type == "ReduceMax" and node.inputs[0].producer()
        if bools and bools.op_type == "Cast" and bools.inputs[0].dtype == ir.DataType.BOOL:
            readers = [reader for reader, _ in node.outputs[0].uses()]
            if not node.outputs[0].is_graph_output() and all(
                reader.op_type == "Cast" and reader.attributes["to"].value == ir.DataType.BOOL for reader in readers
            ):
                # The sum of nothing is 0, its maximum the least integer, which is true.
                node.op_type = "ReduceSum"
    kinds = {"torch.bfloat16": ir.DataType.BFLOAT16, "torch.float16": ir.DataType.FLOAT16}
    if len(graph.outputs) != len(returned):
        return
    for index, (value, node) in enumerate(zip(graph.outputs, returned, strict=True)):
        kind = kinds.get(str(getattr(getattr(node, "meta", {}).get("val"), "dtype", "")))
        if kind is not None and value.dtype == ir.DataType.FLOAT:
            cast = ir.node("Cast", [value], {"to": kind})
            cast.outputs[0].name, value.name = value.name, f"{value.name}_wide"
            cast.outputs[0].type, cast.outputs[0].shape = ir.TensorType(kind), value.shape
            graph.append(cast)
            graph.outputs[index] = cast.outputs[0]


def _reason(error: BaseException) -> str:
    """The first line of the error that the others follow from; PyTorch's own text is advice for its developers."""
    while error.__cause__ is not None:
        error = error.__cause__
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {_COLORS.sub('', line).strip()}"[:300]


def _dynamic_shapes(
    module: "torch.nn.Module", args: tuple[object, ...], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """Every dimension of every tensor may vary, by the names of the module's parameters."""
    import torch
    from torch.utils import _pytree as pytree

    def shape(leaf: object) -> object:
        return dict.fromkeys(range(leaf.dim()), torch.export.Dim.AUTO) if isinstance(leaf, torch.Tensor) else None

    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return {name: pytree.tree_map(shape, value) for name, value in given.items()}


@contextmanager
def _silence() -> Iterator[None]:
    """Keep what PyTorch's exporter prints and warns from the terminal; its errors say what is wrong."""
    before = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(before)
