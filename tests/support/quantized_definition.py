"""The definition of a quantized ONNX network, one stored tensor at a time, computed from the network's own tensors.

`exposed` makes every result of QuantizeLinear an output. `disagreements` computes each of them again by NumPy, from the
stored tensors that it depends on, so that a difference belongs to one segment and does not spread to the next.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.frontend.importer import load_model
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.graph_executor import GraphExecutor

Array = NDArray[Any]
_NEEDS = {"x86-64-v2": "sse4.2", "haswell": "avx2", "skylake-avx512": "avx512bw"}
TARGETS = [("llvm", 1), ("llvm", 2)] + [
    (f"llvm -mcpu={cpu}", threads)
    for (cpu, need), threads in zip(_NEEDS.items(), (2, 1, 2), strict=True)
    if llvm.get_host_cpu_features().get(need)
]
"""Instruction sets that this CPU has, with a number of threads: this CPU's own, and older ones."""
_PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_EXACT = frozenset(
    ("Add", "Clip", "Concat", "DequantizeLinear", "Flatten", "Gather", "Identity", "LeakyRelu", "Max", "MaxPool", "Min",
     "Mul", "Pad", "QuantizeLinear", "Relu", "Reshape", "Slice", "Split", "Squeeze", "Sub", "Transpose", "Unsqueeze")
)  # fmt: skip
"""Operators whose float32 results the definition rounds once: every way to compute one gives the same bits."""


def network_results(
    model: onnx.ModelProto, target: str, threads: int, inputs: dict[str, Any]
) -> dict[str, NDArray[Any]]:
    """The outputs of an untuned network, by name."""
    executor = GraphExecutor(compile_graph(optimize(load_model(model)), Target(target), threads=threads), threads)
    for name, array in inputs.items():
        if executor.get_input_index(name) >= 0:
            executor.set_input(name, array)
    executor.run()
    names = [entry.name for entry in model.graph.output]
    return {name: executor.get_output(index).copy() for index, name in enumerate(names)}


def exposed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the results of QuantizeLinear among its outputs."""
    copied = onnx.ModelProto()
    copied.CopyFrom(model)
    shown = {entry.name for entry in copied.graph.output}
    known = {tensor.name for tensor in copied.graph.initializer}
    for node in copied.graph.node:
        if known.issuperset(filter(None, node.input)):
            known.update(node.output)
        elif node.op_type == "QuantizeLinear" and node.output[0] not in shown:
            copied.graph.output.append(helper.make_empty_tensor_value_info(node.output[0]))
    return onnx.shape_inference.infer_shapes(copied)


def disagreements(model: onnx.ModelProto, values: Mapping[str, Array]) -> list[str]:
    """The outputs of an exposed model that are not as defined, `values` being its inputs and outputs by name.

    A product between quantizations has the bits of `_product`, other segments of `_EXACT` those of NumPy. The results
    of all other segments, which round sums or functions in float32, may be one quantum off.
    """
    segments = _Segments(model, values)
    return [text for entry in model.graph.output if (text := segments.fault(entry.name))]


class _Segments:
    """The nodes between stored tensors."""

    def __init__(self, model: onnx.ModelProto, values: Mapping[str, Array]) -> None:
        self._model = model
        weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        self._stored = {**weights, **values}
        self._producers = {name: node for node in model.graph.node for name in node.output}

    def fault(self, name: str) -> str:
        """What is wrong with a stored tensor; "" if nothing is."""
        result, last = self._stored[name], self._producers.get(name)
        if last is None or last.op_type != "QuantizeLinear":
            return ""  # floats have no exact definition, and follow from the stored tensors
        nodes = self._nodes(last)
        expected = self._product(last)
        exact = expected is not None or all(node.op_type in _EXACT for node in nodes)
        if expected is None:
            expected = self._by_numpy(nodes, name)
        wide, wanted = result.astype(np.int64), expected.astype(np.int64)
        allowed = 0 if exact else 1 if result.itemsize == 1 else 1 + int(1e-5 * np.abs(wanted).max(initial=0))
        worst = int(np.abs(wide - wanted).max(initial=0))
        if worst <= allowed:
            return ""
        count, operators = int((wide != wanted).sum()), " ".join(node.op_type for node in nodes)
        return f"{name}: {count} of {result.size} elements, by up to {worst} (at most {allowed}), of {operators}"

    def _nodes(self, last: onnx.NodeProto) -> list[onnx.NodeProto]:
        """The nodes that compute the result of `last` from stored tensors, in order."""
        wanted, seen = list(last.input), {id(last)}
        while wanted:
            name = wanted.pop()
            node = None if name in self._stored else self._producers.get(name)
            if node is not None and id(node) not in seen:
                seen.add(id(node))
                wanted += node.input
        return [node for node in self._model.graph.node if id(node) in seen]

    def _by_numpy(self, nodes: Sequence[onnx.NodeProto], name: str) -> Array:
        """The result of the nodes by the importer's definitions, without graph passes."""
        made = {output for node in nodes for output in node.output}
        read = dict.fromkeys(operand for node in nodes for operand in node.input if operand and operand not in made)
        constants = [numpy_helper.from_array(self._stored[operand], operand) for operand in read]
        graph = helper.make_graph(nodes, "segment", [], [helper.make_empty_tensor_value_info(name)], constants)
        model = helper.make_model(graph, opset_imports=self._model.opset_import, ir_version=self._model.ir_version)
        return evaluate(load_model(onnx.shape_inference.infer_shapes(model)), {})[0]

    def _product(self, last: onnx.NodeProto) -> Array | None:
        """The definition of a product between quantizations: clip(round(float32(sum) * m) + zero), where the multiplier
        m is (x scale * weight scale) / y scale in float32; None for another segment.
        """
        node, is_positive = self._producers.get(last.input[0]), False
        if node is not None and node.op_type == "Relu":
            node, is_positive = self._producers.get(node.input[0]), True
        if node is None or node.op_type not in ("Conv", "MatMul") or node.output[0] in self._stored:
            return None
        operands = [self._quantized(name) for name in node.input]
        if any(operand is None for operand in operands):
            return None
        (x, x_scale), (w, w_scale), *bias = (operand for operand in operands if operand is not None)
        y_scale, zero = self._stored[last.input[1]], self._stored[last.input[2]]
        if x_scale.size != 1 or y_scale.size != 1 or zero.itemsize != 1:
            return None
        sums = _convolved(x, w, node) if node.op_type == "Conv" else np.matmul(x, w)
        by_channel = (-1, *(1,) * (x.ndim - 2)) if node.op_type == "Conv" else (-1,)
        if bias:
            sums = sums + bias[0][0].reshape(by_channel)
        multiplier = (x_scale * w_scale) / y_scale
        rounded = np.rint(sums.astype(np.float32) * multiplier.astype(np.float32).reshape(by_channel))
        info = np.iinfo(zero.dtype)
        least = max(info.min, int(zero)) if is_positive else info.min
        return np.clip(rounded.astype(np.float64) + int(zero), least, info.max).astype(zero.dtype)

    def _quantized(self, name: str) -> tuple[Array, Array] | None:
        """Integers without their zero point, and their scale, of a dequantized tensor of int8, uint8 or int32."""
        node = self._producers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.input[0] not in self._stored:
            return None
        integers, scale = self._stored[node.input[0]], self._stored[node.input[1]]
        zero = self._stored[node.input[2]] if len(node.input) > 2 else np.zeros(1, integers.dtype)
        if integers.dtype not in (np.int8, np.uint8, np.int32) or len(set(zero.flat)) > 1:
            return None
        return integers.astype(np.int64) - int(zero.flat[0]), scale


def _convolved(x: Array, w: Array, node: onnx.NodeProto) -> Array:
    """The sums of a convolution of integers."""
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    rank, groups = x.ndim - 2, attributes.get("group", 1)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    pads = attributes.get("pads", [0] * 2 * rank)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spans = [(extent - 1) * dilation + 1 for extent, dilation in zip(w.shape[2:], dilations, strict=True)]
    windows = sliding_window_view(padded, spans, tuple(range(2, 2 + rank)))
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    windows = windows[(slice(None), slice(None), *steps)]
    batch, places = x.shape[0], windows.shape[2 : 2 + rank]
    rows = np.moveaxis(windows.reshape(batch, groups, -1, *windows.shape[2:]), 2, 2 + rank)
    rows = rows.reshape(batch, groups, int(np.prod(places)), -1)
    columns = w.reshape(1, groups, w.shape[0] // groups, -1)
    sums = np.matmul(columns, rows.swapaxes(2, 3))
    return sums.reshape(batch, w.shape[0], *places)
