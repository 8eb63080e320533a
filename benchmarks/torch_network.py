"""Converts an ONNX model of benchmarks/zoo into a PyTorch module with the same weights.

The module is written as a PyTorch user would write it: `linear` for a product and its bias, `gelu`, `layer_norm` and
`scaled_dot_product_attention` where the model has their expanded forms. PyTorch must be installed.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from math import pi, sqrt
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from torch import fx
from torch.nn import functional

_AFTER_INSTANCES = 3
"""Nodes that follow the normalization of instances in a group normalization."""
_WITH_UPPER_BOUND = 3
_MOST_DIMENSIONS = 5

Array = NDArray[Any]
Attributes = Mapping[str, Any]


class UnknownOperatorError(Exception):
    """The model has an operator, or a form of one, that this conversion does not support."""


def torch_network(model: onnx.ModelProto) -> Any:
    """A `torch.fx.GraphModule` whose arguments are the model's inputs, in order, and which returns a tuple of outputs.

    Raises: UnknownOperatorError.
    """
    write = Writer(model)
    for node in model.graph.node:
        if node.output[0] not in write.values:
            _add(write, node)
    return with_fused_operators(write.finish())


class Writer:
    """A graph of `torch.fx` in the making: `values` are its nodes by the model's names, `constants` what is known."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in model.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self._graph = fx.Graph()
        self._root = torch.nn.Module()
        self.extents: dict[str, list[Any]] = {}
        """Extents that are known only when the module runs: a list of nodes and numbers by the name of a shape."""
        self.values: dict[str, Any] = {
            entry.name: self._graph.placeholder(entry.name.replace(".", "_")) for entry in model.graph.input
        }

    @property
    def spatial_rank(self) -> int:
        """How many dimensions an image or a clip has."""
        return len(self.model.graph.input[0].type.tensor_type.shape.dim) - 2

    def call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """A node that calls `function`."""
        return self._graph.call_function(function, arguments, named)

    def method(self, name: str, receiver: Any, *arguments: Any) -> Any:
        """A node that calls a method of a tensor by its name: methods themselves cannot be saved."""
        return self._graph.call_method(name, (receiver, *arguments))

    def value(self, name: str) -> Any:
        """The node of a value; one that fetches a parameter where it is constant."""
        if name not in self.values:
            self.values[name] = self.parameter(self.constants[name], name)
        return self.values[name]

    def operand(self, name: str) -> Any:
        """The same, but a plain number for a constant without dimensions."""
        constant = self.constants.get(name)
        return float(constant) if constant is not None and constant.ndim == 0 else self.value(name)

    def numbers(self, name: str) -> tuple[Any, ...]:
        """A constant that tells a shape or places, or nodes of extents."""
        if name in self.extents:
            return tuple(self.extents[name])
        return tuple(int(number) for number in self.constants[name].ravel())

    def parameter(self, array: Array, name: str) -> Any:
        """A node that fetches a new parameter."""
        self._root.register_parameter(name, torch.nn.Parameter(torch.from_numpy(np.array(array, order="C")), False))
        return self._graph.get_attr(name)

    def finish(self) -> Any:
        """The module."""
        self._graph.output(tuple(self.values[entry.name] for entry in self.model.graph.output))
        self._graph.eliminate_dead_code()
        return fx.GraphModule(self._root, self._graph).eval()


def _add(write: Writer, node: onnx.NodeProto) -> None:
    """Write one node of the model, or several at once."""
    attributes = {entry.name: onnx.helper.get_attribute_value(entry) for entry in node.attribute}
    if node.op_type in _FOLDED and all(name in write.constants for name in node.input):
        write.constants[node.output[0]] = _FOLDED[node.op_type](*(write.constants[name] for name in node.input))
    elif node.op_type == "Shape" or any(name in write.extents for name in _data(node)):
        write.extents[node.output[0]] = _extents(write, node)
    elif node.op_type == "Split":
        parts = write.call(torch.chunk, write.value(node.input[0]), len(node.output), attributes["axis"])
        for place, name in enumerate(node.output):
            write.values[name] = write.call(operator.getitem, parts, place)
    elif node.op_type == "MatMul" and (bias := _added_bias(write, node)):
        _write_linear(write, node, bias)
    elif node.op_type == "InstanceNormalization":
        _write_group_norm(write, node, attributes)
    elif node.op_type in _ELEMENTWISE:
        operands = [write.operand(name) for name in node.input]
        write.values[node.output[0]] = write.call(_ELEMENTWISE[node.op_type], *operands)
    elif node.op_type in _OPERATORS:
        write.values[node.output[0]] = _OPERATORS[node.op_type](write, node, attributes)
    else:
        raise UnknownOperatorError(f"no PyTorch form of {node.op_type} is known")


def _data(node: onnx.NodeProto) -> Sequence[str]:
    """The operands of which a node's result consists, where these may be extents."""
    return {"Gather": node.input[:1], "Slice": node.input[:1], "Concat": node.input}.get(node.op_type, ())


def _extents(write: Writer, node: onnx.NodeProto) -> list[Any]:
    """The extents of a value, or some of known ones, or several together."""
    if node.op_type == "Shape":
        # Those that nothing reads, of dimensions that are not there too, go with the dead code.
        return [write.method("size", write.value(node.input[0]), axis) for axis in range(_MOST_DIMENSIONS)]
    if node.op_type == "Concat":
        return [extent for name in node.input for extent in write.numbers(name)]
    of = write.extents[node.input[0]]
    places = [write.numbers(name) for name in node.input[1:]]
    return of[places[0][0] : places[1][0]] if node.op_type == "Slice" else [of[place] for place in places[0]]


def _added_bias(write: Writer, node: onnx.NodeProto) -> tuple[onnx.NodeProto, str] | None:
    """The addition behind a product with a matrix of weights, and its bias."""
    weight, readers = write.constants.get(node.input[1]), write.readers.get(node.output[0], [])
    if weight is None or weight.ndim != 2 or len(readers) != 1 or readers[0].op_type != "Add":
        return None
    (bias,) = (name for name in readers[0].input if name != node.output[0])
    return (readers[0], bias) if bias in write.constants and write.constants[bias].ndim == 1 else None


def _write_linear(write: Writer, node: onnx.NodeProto, added: tuple[onnx.NodeProto, str]) -> None:
    add, bias = added
    weight = write.parameter(write.constants[node.input[1]].T, node.input[1])
    write.values[add.output[0]] = write.call(functional.linear, write.value(node.input[0]), weight, write.value(bias))


def _write_group_norm(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> None:
    """The five nodes that exporters write for group normalization; this is the second."""
    (reshape,) = (entry for entry in write.model.graph.node if entry.output[0] == node.input[0])
    chain = [node]
    while len(chain) < _AFTER_INSTANCES + 1:
        (reader,) = write.readers[chain[-1].output[0]]
        chain.append(reader)
    *_, multiply, add = chain
    if [entry.op_type for entry in (reshape, *chain[1:])] != ["Reshape", "Reshape", "Mul", "Add"]:
        raise UnknownOperatorError("InstanceNormalization outside a group normalization")
    scale, bias = (
        write.parameter(write.constants[entry.input[1]].ravel(), entry.input[1]) for entry in (multiply, add)
    )
    groups = write.numbers(reshape.input[1])[1]
    x = write.value(reshape.input[0])
    normal = write.call(functional.group_norm, x, groups, scale, bias, attributes["epsilon"])
    write.values |= {entry.output[0]: normal for entry in chain}


def _convolution(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    x, weight, *bias = map(write.value, node.input)
    rank = write.spatial_rank
    pads = tuple(attributes.get("pads", [0] * rank)[:rank])
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    strides, groups = tuple(attributes["strides"]), attributes.get("group", 1)
    dilations = tuple(attributes.get("dilations", [1] * rank))
    return write.call(function, x, weight, bias[0] if bias else None, strides, pads, dilations, groups)


def _transposed_convolution(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    x, weight, *bias = map(write.value, node.input)
    rank = write.spatial_rank
    function = (functional.conv_transpose1d, functional.conv_transpose2d)[rank - 1]
    strides, pads = tuple(attributes["strides"]), tuple(attributes["pads"][:rank])
    return write.call(function, x, weight, bias[0] if bias else None, strides, pads)


def _batch_norm(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    x, scale, bias, mean, variance = map(write.value, node.input)
    return write.call(functional.batch_norm, x, mean, variance, scale, bias, False, 0.0, attributes["epsilon"])


def _layer_norm(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    shape = write.constants[node.input[1]].shape
    x, scale, bias = map(write.value, node.input)
    return write.call(functional.layer_norm, x, shape, scale, bias, attributes["epsilon"])


def _max_pool(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    kernel, strides = tuple(attributes["kernel_shape"]), tuple(attributes["strides"])
    return write.call(
        functional.max_pool2d, write.value(node.input[0]), kernel, strides, tuple(attributes.get("pads", [0, 0])[:2])
    )


def _global_average(write: Writer, node: onnx.NodeProto, _: Attributes) -> Any:
    function = (functional.adaptive_avg_pool2d, functional.adaptive_avg_pool3d)[write.spatial_rank - 2]
    return write.call(function, write.value(node.input[0]), 1)


def _gemm(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    if not attributes.get("transB"):
        raise UnknownOperatorError("Gemm with its weight as it lies")
    return write.call(functional.linear, *map(write.value, node.input))


def _clip(write: Writer, node: onnx.NodeProto, _: Attributes) -> Any:
    if len(node.input) < _WITH_UPPER_BOUND:
        return write.call(torch.clamp_min, *map(write.operand, node.input))
    return write.call(functional.hardtanh, *map(write.operand, node.input))


def _gather(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    places = write.constants.get(node.input[1])
    x = write.value(node.input[0])
    if places is None:
        return write.call(functional.embedding, write.value(node.input[1]), x)
    if places.ndim == 0:
        return write.call(torch.select, x, attributes["axis"], int(places))
    return write.call(torch.narrow, x, attributes["axis"], int(places.item()), 1)


def _resize(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
    form = attributes["mode"], attributes["coordinate_transformation_mode"], attributes.get("nearest_mode")
    if form == (b"nearest", b"asymmetric", b"floor"):
        factors = tuple(float(factor) for factor in write.constants[node.input[2]][2:])
        return write.call(functional.interpolate, write.value(node.input[0]), None, factors, "nearest")
    modes = {b"linear": "bilinear", b"cubic": "bicubic"}
    if form[0] not in modes or form[1] != b"half_pixel":
        raise UnknownOperatorError("Resize other than nearest by a factor, and linear or cubic between half pixels")
    size = write.numbers(node.input[3])[2:]
    return write.call(functional.interpolate, write.value(node.input[0]), size, None, modes[form[0]], False)


def _slice(write: Writer, node: onnx.NodeProto, _: Attributes) -> Any:
    x = write.value(node.input[0])
    starts, ends, axes, *steps = map(write.numbers, node.input[1:])
    for start, end, axis, step in zip(starts, ends, axes, steps[0] if steps else [1] * len(axes), strict=True):
        before = (slice(None),) * axis if axis >= 0 else (...,)
        x = write.call(operator.getitem, x, (*before, slice(start, end, step)))
    return x


def _reshape(write: Writer, node: onnx.NodeProto, _: Attributes) -> Any:
    """A 0 in the shape keeps the extent."""
    x = write.value(node.input[0])
    shape = (
        write.method("size", x, axis) if isinstance(extent, int) and extent == 0 else extent
        for axis, extent in enumerate(write.numbers(node.input[1]))
    )
    return write.call(torch.reshape, x, tuple(shape))


def _pad(write: Writer, node: onnx.NodeProto, _: Attributes) -> Any:
    pads = write.numbers(node.input[1])
    rank = len(pads) // 2
    pairs = [pads[axis + side] for axis in reversed(range(rank)) for side in (0, rank)]
    return write.call(functional.pad, write.value(node.input[0]), tuple(pairs))


def _expand(write: Writer, node: onnx.NodeProto, _: Attributes) -> Any:
    shape = tuple(-1 if extent == 1 else extent for extent in write.numbers(node.input[1]))
    return write.method("expand", write.value(node.input[0]), shape)


def _reduction(function: Callable[..., Any]) -> Callable[[Writer, onnx.NodeProto, Attributes], Any]:
    def reduce(write: Writer, node: onnx.NodeProto, attributes: Attributes) -> Any:
        axes = write.numbers(node.input[1]) if len(node.input) > 1 else tuple(attributes["axes"])
        return write.call(function, write.value(node.input[0]), axes, bool(attributes["keepdims"]))

    return reduce


def _length(x: Any, axes: tuple[int, ...], keep: bool) -> Any:
    return torch.linalg.vector_norm(x, 2, axes, keep)


def _unsqueeze(write: Writer, node: onnx.NodeProto, _: Attributes) -> Any:
    x = write.value(node.input[0])
    for axis in write.numbers(node.input[1]):
        x = write.call(torch.unsqueeze, x, axis)
    return x


_FOLDED: Mapping[str, Callable[..., Array]] = {
    "Gather": lambda table, places: np.take(table, places, axis=0),
    "Expand": lambda x, shape: np.broadcast_to(x, tuple(shape)),
}
_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "Add": torch.add,
    "Cos": torch.cos,
    "Div": torch.div,
    "Erf": torch.erf,
    "MatMul": torch.matmul,
    "Mul": torch.mul,
    "Neg": torch.neg,
    "Pow": torch.pow,
    "Relu": functional.relu,
    "Sigmoid": torch.sigmoid,
    "Sin": torch.sin,
    "Sqrt": torch.sqrt,
    "Sub": operator.sub,
    "Tanh": torch.tanh,
}
_OPERATORS: Mapping[str, Callable[[Writer, onnx.NodeProto, Attributes], Any]] = {
    "BatchNormalization": _batch_norm,
    "Cast": lambda write, node, _: write.method("float", write.value(node.input[0])),
    "Clip": _clip,
    "Concat": lambda write, node, attrs: write.call(torch.cat, [write.value(x) for x in node.input], attrs["axis"]),
    "Conv": _convolution,
    "ConvTranspose": _transposed_convolution,
    "Expand": _expand,
    "Flatten": lambda write, node, attrs: write.call(torch.flatten, write.value(node.input[0]), attrs["axis"]),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": _global_average,
    "Identity": lambda write, node, _: write.value(node.input[0]),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda write, node, attrs: write.call(
        functional.leaky_relu, write.value(node.input[0]), attrs["alpha"]
    ),
    "MaxPool": _max_pool,
    "Pad": _pad,
    "ReduceL2": _reduction(_length),
    "ReduceMean": _reduction(torch.mean),
    "ReduceSum": _reduction(torch.sum),
    "Reshape": _reshape,
    "Resize": _resize,
    "Slice": _slice,
    "Softmax": lambda write, node, attrs: write.call(torch.softmax, write.value(node.input[0]), attrs["axis"]),
    "Tile": lambda write, node, _: write.call(torch.tile, write.value(node.input[0]), write.numbers(node.input[1])),
    "Transpose": lambda write, node, attrs: write.call(torch.permute, write.value(node.input[0]), tuple(attrs["perm"])),
    "Unsqueeze": _unsqueeze,
}


def with_fused_operators(module: Any) -> Any:
    """The module with PyTorch's own functions in place of the formulas that exporters write for them."""
    root, slope, one_third = (float(np.float32(number)) for number in (sqrt(2), sqrt(2 / pi), 0.044715))

    def gelu(x: Any) -> Any:
        return torch.mul(torch.mul(x, torch.add(torch.erf(torch.div(x, root)), 1.0)), 0.5)

    def gelu_by_tanh(x: Any) -> Any:
        cubic = torch.mul(torch.pow(x, 3.0), one_third)
        inner = torch.mul(torch.add(x, cubic), slope)
        return torch.mul(torch.mul(x, 0.5), torch.add(torch.tanh(inner), 1.0))

    fx.replace_pattern(module, gelu, lambda x: functional.gelu(x))
    fx.replace_pattern(module, gelu_by_tanh, lambda x: functional.gelu(x, approximate="tanh"))
    divisors = {node.args[1] for node in module.graph.nodes if node.target is torch.div}
    for scale in divisors:
        if isinstance(scale, float):
            _fuse_attention(module, scale)
    return module


def _fuse_attention(module: Any, scale: float) -> None:
    """Attention whose scores are divided by `scale`, with and without a mask that is added to them."""
    attention = functional.scaled_dot_product_attention

    def plain(query: Any, key: Any, value: Any) -> Any:
        scores = torch.div(torch.matmul(query, torch.permute(key, (0, 1, 3, 2))), scale)
        return torch.matmul(torch.softmax(scores, -1), value)

    def masked(query: Any, key: Any, value: Any, mask: Any) -> Any:
        scores = torch.div(torch.matmul(query, torch.permute(key, (0, 1, 3, 2))), scale)
        return torch.matmul(torch.softmax(torch.add(scores, mask), -1), value)

    fx.replace_pattern(module, plain, lambda query, key, value: attention(query, key, value, scale=1 / scale))
    fx.replace_pattern(
        module, masked, lambda query, key, value, mask: attention(query, key, value, attn_mask=mask, scale=1 / scale)
    )
