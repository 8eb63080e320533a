"""Single layers in int8 and in float32, untuned: every int8 kernel against the float32 kernel of the same layer.

A layer is a product of a quantized activation and a quantized weight (or of two activations), requantized to bytes.
Activations are channels-last in memory, as within a network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from benchmarks.harness import Figure, interleaved
from retune.compiler.core.target import Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Attribute, Graph, Value
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.pipeline import optimize
from retune.compiler.runtime.executor.graph_executor import GraphExecutor

PASSES, PASS_SECONDS = 15, 0.01
_TO_FIRST, _TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
_SCALES = (0.02, 0.01, 0.05)
"""Scales of the activation, of the weight and of the result."""
_ZERO = 117


@dataclass(frozen=True, slots=True)
class Layer:
    """A product of `op`, the shapes of its operands (of images channels first) and its attributes; the second operand
    is a weight if `is_constant`.
    """

    op: str
    left: tuple[int, ...]
    right: tuple[int, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    is_constant: bool = True

    @property
    def is_image(self) -> bool:
        return len(self.left) == 4


def _conv(
    size: int | tuple[int, int],
    taken: int,
    made: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    groups: int = 1,
    pad: int | None = None,
) -> Layer:
    """A convolution of `taken` to `made` channels; `size` is that of its input."""
    height, width = size if isinstance(size, tuple) else (size, size)
    window = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    before = tuple(extent // 2 if pad is None else pad for extent in window)
    strides = tuple(stride if extent > 1 else 1 for extent in (height, width))
    attrs: dict[str, Attribute] = {"strides": strides, "pads": before * 2, "dilations": (1, 1), "groups": groups}
    attrs["layout"] = "NCHW"
    return Layer("conv2d", (1, taken, height, width), (made, taken // groups, *window), attrs)


def _transposed(size: int, taken: int, made: int, kernel: int, *, stride: int = 2, pad: int = 1) -> Layer:
    attrs: dict[str, Attribute] = {"strides": (stride,) * 2, "pads": (pad,) * 4, "layout": "NCHW"}
    return Layer("conv_transpose2d", (1, taken, size, size), (taken, made, kernel, kernel), attrs)


def _depthwise(size: int, channels: int, kernel: int, stride: int = 1) -> Layer:
    return _conv(size, channels, channels, kernel, stride=stride, groups=channels)


LAYERS: Mapping[str, Layer] = {
    "dense_128x510x512": Layer("dense", (128, 510), (510, 512)),
    "dense_128x513x384": Layer("dense", (128, 513), (513, 384)),
    "dense_128x512x512": Layer("dense", (128, 512), (512, 512)),
    "dense_1x1024x1000": Layer("dense", (1, 1024), (1024, 1000)),
    "dense_1x768x3072": Layer("dense", (1, 768), (768, 3072)),
    "attention_12x128x64x128": Layer("batch_matmul", (12, 128, 64), (12, 64, 128), is_constant=False),
    "attention_12x128x128x64": Layer("batch_matmul", (12, 128, 128), (12, 128, 64), is_constant=False),
    "attention_12x197x197x64": Layer("batch_matmul", (12, 197, 197), (12, 197, 64), is_constant=False),
    "attention_3x49x32x49": Layer("batch_matmul", (96, 49, 32), (96, 32, 49), is_constant=False),
    "conv3x3_s2_224_3_32": _conv(224, 3, 32, 3, stride=2),
    "conv7x7_s2_224_3_64": _conv(224, 3, 64, 7, stride=2),
    "conv16x16_s16_224_3_192": _conv(224, 3, 192, 16, stride=16, pad=0),
    "conv4x4_s4_224_3_96": _conv(224, 3, 96, 4, stride=4, pad=0),
    "conv1x1_28_128_256": _conv(28, 128, 256, 1),
    "conv1x1_s2_56_256_512": _conv(56, 256, 512, 1, stride=2),
    "conv3x3_28_128_128": _conv(28, 128, 128, 3),
    "conv3x3_30_30_30": _conv(30, 30, 30, 3),
    "conv3x3_g4_56_128": _conv(56, 128, 128, 3, groups=32),
    "conv3x3_g8_28_256": _conv(28, 256, 256, 3, groups=32),
    "conv3x3_g16_14_512": _conv(14, 512, 512, 3, groups=32),
    "conv3x3_s2_g4_56_128": _conv(56, 128, 128, 3, stride=2, groups=32),
    "conv1d_3_512_256_256": _conv((1, 512), 256, 256, (1, 3)),
    "conv1d_9_1024_64_64": _conv((1, 1024), 64, 64, (1, 9)),
    "transposed4x4_s2_16_256_128": _transposed(16, 256, 128, 4),
    "transposed2x2_s2_28_128_64": _transposed(28, 128, 64, 2, pad=0),
    "transposed3x3_s1_28_64_64": _transposed(28, 64, 64, 3, stride=1),
    "transposed3x3_s2_15_64_64": _transposed(15, 64, 64, 3),
    "depthwise3x3_112_32": _depthwise(112, 32, 3),
    "depthwise3x3_s2_112_48": _depthwise(112, 48, 3, 2),
    "depthwise3x3_56_72": _depthwise(56, 72, 3),
    "depthwise5x5_s2_56_72": _depthwise(56, 72, 5, 2),
    "depthwise5x5_28_120": _depthwise(28, 120, 5),
    "depthwise5x5_s2_28_240": _depthwise(28, 240, 5, 2),
    "depthwise5x5_14_480": _depthwise(14, 480, 5),
    "depthwise3x3_14_576": _depthwise(14, 576, 3),
    "depthwise5x5_s2_14_576": _depthwise(14, 576, 5, 2),
    "depthwise5x5_7_1152": _depthwise(7, 1152, 5),
    "depthwise3x3_7_1152": _depthwise(7, 1152, 3),
    "depthwise7x7_14_384": _depthwise(14, 384, 7),
}


def graph_of(layer: Layer, *, quantized: bool) -> Graph:
    """The layer alone, of bytes to bytes, or of float32 to float32."""
    builder = GraphBuilder("layer")
    operands = [
        _operand(builder, layer, "x", layer.left, quantized),
        _operand(builder, layer, "w", layer.right, quantized),
    ]
    result = builder.emit(layer.op, operands, layer.attrs)
    if quantized:
        result = builder.emit("quantize", [result, *_scale(builder, _SCALES[2], np.uint8(_ZERO))], {"axis": 0})
    if layer.is_image:
        result = builder.emit("transpose", [result], {"perm": _TO_LAST})
    return builder.finish({"y": result})


def _operand(builder: GraphBuilder, layer: Layer, name: str, shape: tuple[int, ...], quantized: bool) -> str:
    if name == "w" and layer.is_constant:
        weight = np.random.default_rng(1).integers(-127, 128, shape, np.int8)
        channel = {"dense": 1, "conv_transpose2d": 1}.get(layer.op, 0)
        if not quantized:
            return builder.constant(weight.astype("float32") * np.float32(_SCALES[1]), name)
        scales = np.full(shape[channel], _SCALES[1], "float32")
        operands = [builder.constant(scales, "scale"), builder.constant(np.zeros(shape[channel], np.int8), "zero")]
        return builder.emit("dequantize", [builder.constant(weight, name), *operands], {"axis": channel})
    stored = (shape[0], *shape[2:], shape[1]) if layer.is_image else shape
    operand = builder.input(Value(name, stored, "uint8" if quantized else "float32"))
    if layer.is_image:
        operand = builder.emit("transpose", [operand], {"perm": _TO_FIRST})
    if not quantized:
        return operand
    return builder.emit("dequantize", [operand, *_scale(builder, _SCALES[0], np.uint8(_ZERO))], {"axis": 0})


def _scale(builder: GraphBuilder, scale: float, zero: np.uint8) -> list[str]:
    return [builder.constant(np.array(scale, "float32"), "scale"), builder.constant(np.array(zero), "zero")]


def bound(graph: Graph, target: Target, threads: int) -> Callable[[], object]:
    """A call of a graph with default schedules on random inputs."""
    optimized = optimize(graph)
    cut = partition(optimized, target, hardware_of(target, threads))
    executor = GraphExecutor(compile_graph(optimized, target, {}, threads=threads, cut=cut), threads)
    for seed, value in enumerate(graph.inputs):
        array: Array = np.random.default_rng(seed).integers(0, 256, value.shape, np.uint8)
        executor.set_input(value.name, array if value.dtype == "uint8" else array.astype("float32") / 128 - 1)
    return executor.run


def layer_figure(name: str, target: Target, threads: int) -> Figure:
    """The time of a layer in int8; `of_float32` is that of its float32 kernels, in turn, divided by it."""
    runs = {
        form: bound(graph_of(LAYERS[name], quantized=form == "int8"), target, threads) for form in ("int8", "float32")
    }
    times = interleaved(runs, passes=PASSES, pass_seconds=PASS_SECONDS, figure=min)
    details = {"of_float32": round(times["float32"] / times["int8"], 3), "target": str(target)}
    return Figure(name, "retune-int8", threads, "latency", times["int8"] * 1e6, "us", details=details)
