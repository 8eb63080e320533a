"""Activations, softmax and norms as exporters write them: many spellings of each, and near misses of them."""

from collections.abc import Callable, Sequence
from math import pi, sqrt
from typing import Any

import numpy as np

from retune.compiler.graph.builder import GraphBuilder


class Writer:
    """Writes expressions; what commutes is written in an order that `choice` decides."""

    def __init__(self, builder: GraphBuilder, choice: Callable[[], bool]) -> None:
        self.builder = builder
        self._next_choice = choice

    def number(self, value: float) -> str:
        """A constant, of rank 0 or 1."""
        return self.builder.constant(np.full((1,) if self._next_choice() else (), value, np.float32))

    def __call__(self, op: str, *operands: str | float, **attrs: Any) -> str:
        names = [self.number(operand) if isinstance(operand, (int, float)) else operand for operand in operands]
        return self.builder.emit(op, names, attrs)

    def either(self, *ways: Callable[[], str]) -> str:
        """One of several ways to write the same."""
        return ways[0]() if len(ways) == 1 or self._next_choice() else self.either(*ways[1:])

    def add(self, a: str | float, b: str | float) -> str:
        """a + b"""
        return self("add", a, b) if self._next_choice() else self("add", b, a)

    def scaled(self, a: str, factor: float) -> str:
        """a * factor, or a / (1 / factor)"""
        return self.times(a, factor) if self._next_choice() else self("div", a, 1 / factor)

    def times(self, *factors: str | float) -> str:
        """A product, multiplied in any order."""
        left = list(factors)
        while len(left) > 1:
            first = left.pop(0 if self._next_choice() else -1)
            second = left.pop(0 if self._next_choice() else -1)
            left.append(self("mul", first, second))
        (result,) = left
        assert isinstance(result, str)
        return result


def gelu(w: Writer, x: str, half: float = 0.5, root: float = sqrt(0.5)) -> str:
    """PyTorch and TensorFlow."""
    gate = w("erf", w.scaled(x, root))
    return w.either(
        lambda: w.times(x, half, w.add(gate, 1)),
        lambda: w.times(x, w.add(w.scaled(gate, half), half)),
        lambda: w.add(w.scaled(x, half), w.times(x, gate, half)),
    )


def gelu_tanh(w: Writer, x: str, cube: float = 0.044715) -> str:
    """GPT-2."""
    c = sqrt(2 / pi)
    inner = w.either(
        lambda: w.scaled(w.add(x, w.scaled(w.times(x, x, x), cube)), c),
        lambda: w.times(x, c, w.add(w.times(x, x, cube), 1)),
    )
    return w.times(x, 0.5, w.add(w("tanh", inner), 1))


def silu(w: Writer, x: str, slope: float = 1.0) -> str:
    """Swish."""
    inner = x if slope == 1 else w.scaled(x, slope)
    power = w("exp", w.either(lambda: w("neg", inner), lambda: w.scaled(inner, -1)))
    return w.either(
        lambda: w.times(x, w("sigmoid", inner)),
        lambda: w("div", x, w.add(power, 1)),
        lambda: w.times(x, w("div", 1, w.add(power, 1))),
    )


def hard_swish(w: Writer, x: str, shift: float = 3.0) -> str:
    """MobileNet-V3."""
    return w.either(
        lambda: w.scaled(w.times(x, w("clip", w.add(x, shift), low=0.0, high=6.0)), 1 / 6),
        lambda: w.times(x, w("clip", w.add(w.scaled(x, 1 / 6), shift / 6), low=0.0, high=1.0)),
    )


def softmax(w: Writer, x: str, axes: Sequence[int] = (2,), other: Sequence[int] = ()) -> str:
    """`other` are the axes of the sum, when they are others than those of the maximum."""
    power = w("exp", w("sub", x, w("reduce_max", x, axes=tuple(axes), keepdims=True)))
    total = w("reduce_sum", power, axes=tuple(other or axes), keepdims=True)
    return w.either(lambda: w("div", power, total), lambda: w.times(power, w("div", 1, total)))


def log_softmax(w: Writer, x: str, axes: Sequence[int] = (2,), other: Sequence[int] = ()) -> str:
    """The same for the logarithm."""
    peak = w("reduce_max", x, axes=tuple(axes), keepdims=True)
    shifted = w("sub", x, peak)
    log = w("log", w("reduce_sum", w("exp", shifted), axes=tuple(other or axes), keepdims=True))
    if other:
        return w("sub", shifted, log)
    return w.either(
        lambda: w("sub", shifted, log),
        lambda: w("sub", x, w.add(peak, log)),
        lambda: w("log", softmax(w, x, axes)),
    )


def normalize(w: Writer, x: str, axes: Sequence[int] = (2,), other: Sequence[int] = (), power: float = 2.0) -> str:
    """Layer norm, with a scale and a bias; `other` are the axes of the variance."""
    mean = w("reduce_mean", x, axes=tuple(axes), keepdims=True)
    centred = w("sub", x, mean)
    square = w.either(lambda: w("mul", centred, centred), lambda: w("pow", centred, 2)) if power == 2 else ""
    variance = w("reduce_mean", square or w("pow", centred, power), axes=tuple(other or axes), keepdims=True)
    deviation = w("sqrt", w.add(variance, 1e-5))
    scale = w.builder.constant(np.linspace(0.5, 2, w.builder.value(x).shape[-1], dtype=np.float32))
    bias = w.builder.constant(np.linspace(-1, 1, w.builder.value(x).shape[-1], dtype=np.float32))
    slope = w("div", 1, deviation)
    return w.either(
        lambda: w.add(w.times(w("div", centred, deviation), scale), bias),
        lambda: w.add(w.times(centred, slope, scale), bias),
        lambda: _as_tensorflow(w, x, mean, w.times(slope, scale), bias),
    )


def _as_tensorflow(w: Writer, x: str, mean: str, slope: str, bias: str) -> str:
    return w.add(w("mul", x, slope), w("sub", bias, w("mul", mean, slope)))


def rms_norm(w: Writer, x: str, axes: Sequence[int] = (2,), power: float = 2.0) -> str:
    """LLaMA."""
    mean = w("reduce_mean", w("pow", x, power), axes=tuple(axes), keepdims=True)
    deviation = w("sqrt", w.add(mean, 1e-6))
    return w.either(lambda: w("div", x, deviation), lambda: w.times(x, w("div", 1, deviation)))
