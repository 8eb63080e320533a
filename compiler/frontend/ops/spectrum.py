"""Converters of ONNX DFT, STFT, window functions and the mel weight matrix.

A transform is a product with a constant matrix of cosines and sines: n * m multiply-adds for n samples and m
frequencies. Lengths are static.
"""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from onnx import helper

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, formula_of, in_float32
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array


def _waves(length: int, frequencies: int, *, inverse: bool) -> Array:
    """exp(∓2πi n f / length) as an array of (length, 2, frequencies, 2): parts of the number by parts of the result."""
    # The product is reduced modulo the length first: cos of a large argument would lose digits.
    angles = 2 * np.pi * (np.outer(np.arange(length), np.arange(frequencies)) % length) / length
    real, imaginary = np.cos(angles), (np.sin(angles) if inverse else -np.sin(angles))
    waves = np.empty((length, 2, frequencies, 2))
    # A complex product as a real one of 2x2 blocks: (a + ib)(c + id).
    waves[:, 0, :, 0], waves[:, 0, :, 1] = real, imaginary
    waves[:, 1, :, 0], waves[:, 1, :, 1] = -imaginary, real
    return waves / length if inverse else waves


def _to_real(length: int, count: int) -> Array:
    """The inverse transform to real numbers from the first half of the spectrum: (count, 2, length, 1)."""
    waves = _waves(length, length, inverse=True).transpose(2, 1, 0, 3)[:count, :, :, :1].copy()
    mirrored = np.arange(count)
    # A real signal's spectrum is Hermitian: inner frequencies stand for their mirror images too.
    waves[(mirrored > 0) & (2 * mirrored < length)] *= 2
    return waves


def _transform(builder: GraphBuilder, node: OnnxNode, x: str, axis: int, waves: Array) -> str:
    """The product of `waves` with the axis and the last axis (the parts of a number) of `x`."""
    write, _ = formula_of(builder, node)
    value = builder.value(x)
    parts = value.shape[-1]
    length = waves.shape[0]
    # A shorter transform reads the first samples; a longer one pads with zeros, whose rows of the matrix are left out.
    if value.shape[axis] > length:
        x = take(builder, x, axis, range(length))
    waves = waves[: value.shape[axis], :parts]
    shape = builder.value(x).shape
    rank = len(shape)
    order = (*(i for i in range(rank - 1) if i != axis), axis, rank - 1)
    others = [shape[i] for i in order[:-2]]
    flat = write("reshape", write("transpose", x, perm=order), shape=(prod(others), shape[axis] * parts))
    matrix = waves.reshape(shape[axis] * parts, -1).astype(value.dtype)
    result = write("dense", flat, builder.constant(matrix, "waves"))
    full = write("reshape", result, shape=(*others, *waves.shape[2:]))
    return write("transpose", full, perm=tuple(int(i) for i in np.argsort(order)))


def _dft(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    x = node.operand(builder, 0)
    rank = len(x.shape)
    axis = node.integer("axis", 1)
    if node.opset >= 20:
        axis = int(node.array(builder, 2, "the axis").item()) if node.has_input(2) else -2
    axis = node.axis(axis, rank)
    if axis == rank - 1 or x.shape[-1] not in (1, 2):
        raise node.unsupported("needs real or complex numbers in the last axis, and transforms another one")
    inverse, half = bool(node.integer("inverse", 0)), bool(node.integer("onesided", 0))
    length = 2 * (x.shape[axis] - 1) if inverse and half else x.shape[axis]
    if node.has_input(1):
        length = int(node.array(builder, 1, "the length").item())
    if length < 1:
        raise node.unsupported(f"a transform of length {length}")
    if inverse and half:
        waves = _to_real(length, length // 2 + 1)
    else:
        waves = _waves(length, length // 2 + 1 if half else length, inverse=inverse)
    return [_transform(builder, node, x.name, axis, waves)]


def _stft(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    shape = builder.value(x).shape
    step = int(node.array(builder, 1, "the step").item())
    if node.has_input(3):
        length = int(node.array(builder, 3, "the frame length").item())
    elif node.has_input(2):
        length = node.operand(builder, 2).size
    else:
        raise node.unsupported("needs a window or a frame length")
    signal = x if len(shape) == 3 else write("reshape", x, shape=(*shape, 1))
    samples = builder.value(signal).shape[1]
    count = (samples - length) // step + 1
    if step < 1 or length < 1 or count < 1:
        raise node.unsupported(f"frames of {length} by {step} do not fit {samples} samples")
    indices = np.arange(count)[:, None] * step + np.arange(length)
    frames = write("gather", signal, builder.constant(indices, "frames"), axis=1)
    if node.has_input(2):
        frames = write("mul", frames, write("reshape", node.inputs[2], shape=(length, 1)))
    waves = _waves(length, length // 2 + 1 if node.integer("onesided", 1) else length, inverse=False)
    return [_transform(builder, node, frames, 2, waves)]


def _mel_weights(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """Triangles, evenly spaced on the mel scale, over the frequencies of a transform."""
    names = ("the number of bands", "the length", "the sample rate", "the lowest", "the highest frequency")
    bands, length, rate, low, high = (node.array(builder, i, what).item() for i, what in enumerate(names))
    bins = int(length) // 2 + 1
    # The HTK formula of the mel scale, as ONNX defines it.
    ends = 2595 * np.log10(1 + np.array([low, high]) / 700)
    edges = 700 * (10 ** ((np.arange(bands + 2) * (ends[1] - ends[0]) / (bands + 2) + ends[0]) / 2595) - 1)
    # Rounded down to bins, as in ONNX's reference: a triangle may lose a side, whose width then counts as 1.
    bin_edges = ((length + 1) * edges // rate).astype(int)
    lower, center, upper = (bin_edges[start : start + int(bands)] for start in range(3))
    at = np.arange(bins)[:, None]
    rising = (at - lower) / np.maximum(center - lower, 1) * (at >= lower)
    falling = (upper - at) / np.maximum(upper - center, 1) * (at < upper)
    weights = np.where(at == center, 1.0, np.where(at < center, rising, falling))
    dtype = helper.tensor_dtype_to_np_dtype(node.integer("output_datatype", 1))
    return [builder.constant(weights.astype(dtype), node.outputs[0])]


def _window(terms: Sequence[float]) -> Converter:
    """A sum of cosines over the length of a window."""

    def convert(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
        size = int(node.array(builder, 0, "the size").item())
        # Periodic windows, for spectra, leave the last point to the next period.
        whole = size if node.integer("periodic", 1) else size - 1
        angles = 2 * np.pi * np.arange(size) / max(whole, 1)
        values = sum(term * np.cos(order * angles) for order, term in enumerate(terms))
        dtype = helper.tensor_dtype_to_np_dtype(node.integer("output_datatype", 1))
        return [builder.constant(np.asarray(values).astype(dtype), node.outputs[0])]

    return convert


CONVERTERS: Mapping[str, Converter] = {
    "BlackmanWindow": _window((0.42, -0.5, 0.08)),
    "DFT": in_float32(_dft),
    # ONNX's α, 25/46, is the exact optimum that 0.54 rounds.
    "HammingWindow": _window((25 / 46, -21 / 46)),
    "HannWindow": _window((0.5, -0.5)),
    "MelWeightMatrix": _mel_weights,
    "STFT": in_float32(_stft),
}
