"""Converters of the domain `com.microsoft.nchwc`: blocked convolutions, written by ONNX Runtime's highest optimization.

ONNX Runtime keeps values of this domain in blocks of b channels, (N, C / b, H, W, b). In the graph they are plain
(N, C, H, W), with C padded to whole blocks; `plain_kernel` reorders the constants to match. A file does not say what b
is: as in ONNX Runtime this CPU decides.
"""

from collections.abc import Mapping
from platform import machine

import numpy as np

from retune.compiler.frontend.ops.contributed.fused import activate, channels_first, channels_last
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.frontend.ops.indexing import cut
from retune.compiler.frontend.ops.standard import STANDARD, Composition, Definition, compose
from retune.compiler.graph.ir import Array
from retune.compiler.runtime.loader import host_features


def block_size() -> int:
    """Channels in a block of ONNX Runtime on this CPU."""
    return 16 if "avx512f" in host_features() or machine() == "aarch64" else 8


def plain_kernel(kernel: Array, block: int, *, of_outputs: bool) -> Array:
    """The kernel (O, I, ...) in plain order; it has blocks of outputs, and of inputs too unless `of_outputs`."""
    outputs, inputs, *window = kernel.shape
    axes = tuple(range(2, 2 + len(window)))
    if of_outputs:
        parts = kernel.reshape(outputs // block, inputs, *window, block)
        order = (0, len(parts.shape) - 1, 1, *axes)
    else:
        parts = kernel.reshape(outputs // block, inputs // block, *window, block, block)
        order = (0, len(parts.shape) - 1, 1, len(parts.shape) - 2, *axes)
    return np.ascontiguousarray(parts.transpose(order)).reshape(kernel.shape)


def _convolution(write: Composition) -> str:
    """Conv of the input and the kernel, then the optional bias, an optional sum and the activation."""
    x, kernel = write.operand(0), write.node.array(write.builder, 1, "the kernel")
    groups, block = write.node.integer("group", 1), block_size()
    outputs, inputs = kernel.shape[:2]
    # Few input channels are not in blocks, nor is the single channel of each group of a depthwise convolution.
    has_plain_inputs = inputs < block if groups == 1 else inputs == 1 and outputs == groups
    if outputs % block or (not has_plain_inputs and inputs % block):
        raise write.node.unsupported(
            f"a kernel of {list(kernel.shape)} has no blocks of {block} channels: the file is for another CPU"
        )
    weights = write.builder.constant(plain_kernel(kernel, block, of_outputs=has_plain_inputs), "kernel")
    x = write("Conv", x, weights, write.operand(2), **write.node.attributes)
    return activate(write, write("Add", x, write.operand(3)) if write.operand(3) else x)


def _reorder_input(write: Composition) -> str:
    """Channels first, padded with zeros to whole blocks."""
    x = write.operand(0)
    x = channels_first(write, x) if write.node.integer("channels_last", 0) else x
    channels, rank = write.shape(x)[1], len(write.shape(x))
    missing = -channels % block_size()
    if not missing:
        return x
    after = (0, missing, *(0 for _ in range(rank - 2)))
    return write("pad", x, pads_before=(0,) * rank, pads_after=after, value=0.0)


def _reorder_output(write: Composition) -> str:
    """Without the channels that pad the last block; channels last if the node says so."""
    x = write.operand(0)
    channels = write.node.integer("channels", write.shape(x)[1])
    x = cut(write.builder, x, 1, 0, channels) if channels < write.shape(x)[1] else x
    return channels_last(write, x) if write.node.integer("channels_last", 0) else x


def _upsample(write: Composition) -> str:
    scales = np.asarray(write.node.ints("scales") or (), np.float32)
    mode, coordinates = write.node.text("mode", "nearest"), "coordinate_transformation_mode"
    attributes = {"mode": mode, coordinates: write.node.text(coordinates, "asymmetric"), "nearest_mode": "floor"}
    return write("Resize", write.operand(0), "", scales, **attributes)


_DEFINITIONS: Mapping[str, Definition] = {
    "Conv": _convolution,
    "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output,
    "Upsample": _upsample,
}

CONVERTERS: Mapping[str, Converter] = {
    **{name: compose(define) for name, define in _DEFINITIONS.items()},
    **{name: STANDARD[name] for name in ("AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool")},
}
