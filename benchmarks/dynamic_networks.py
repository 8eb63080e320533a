"""The networks of `benchmarks.dynamic`, the distributions of their shapes, and seeded inputs of a shape."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from benchmarks import zoo

Sizes = Mapping[str, int]
"""An extent by symbol."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """An extent between `least` and `most`, a multiple of `step`, uniform in the logarithm. One that `grows` is `least`
    in the first request and one more in each of the next, as in a cache.
    """

    least: int
    most: int
    step: int = 1
    grows: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A network of the zoo with symbols: its `options`, those that make it small for a quick run, its symbols, and
    extents that follow from them.
    """

    network: str
    options: Mapping[str, Any]
    quick: Mapping[str, Any]
    symbols: Mapping[str, Symbol]
    derived: Mapping[str, Callable[[Sizes], int]] = field(default_factory=dict)

    def build(self, is_quick: bool) -> onnx.ModelProto:
        """The model with its symbols."""
        return zoo.build(self.network, **{**self.options, **(self.quick if is_quick else {})})

    def stream(self, count: int, seed: int) -> list[Sizes]:
        """The extents of `count` requests."""
        rng = np.random.default_rng(seed)
        return [self._sizes(number, rng) for number in range(count)]

    def spread(self, requests: Sequence[Sizes], count: int) -> list[Sizes]:
        """So many shapes of the requests, evenly from the smallest to the largest."""
        shapes = {tuple(sizes.values()): sizes for sizes in requests}
        ordered = sorted(shapes.values(), key=lambda sizes: math.prod(sizes[name] for name in self.symbols))
        last = len(ordered) - 1
        return [
            ordered[index] for index in sorted({round(number * last / max(1, count - 1)) for number in range(count)})
        ]

    def _sizes(self, number: int, rng: np.random.Generator) -> Sizes:
        shares = {name: float(rng.random()) for name in self.symbols}
        return self._derive(
            {
                name: min(symbol.least + number, symbol.most) if symbol.grows else _extent(symbol, shares[name])
                for name, symbol in self.symbols.items()
            }
        )

    def _derive(self, sizes: dict[str, int]) -> Sizes:
        return sizes | {name: rule(sizes) for name, rule in self.derived.items()}


def _extent(symbol: Symbol, share: float) -> int:
    """The extent that `share` of the others are below."""
    low, high = symbol.least // symbol.step, symbol.most // symbol.step
    extent = int(math.exp(math.log(low) + share * math.log((high + 1) / low)))
    return min(extent, high) * symbol.step


_TEXT = {"batch": "batch", "tokens": "tokens"}
_TINY_TEXT = {"layers": 1, "words": 100}
CASES: Mapping[str, Case] = {
    "minilm_l6": Case("minilm_l6", _TEXT, _TINY_TEXT, {"batch": Symbol(1, 8), "tokens": Symbol(8, 256)}),
    "bert_base": Case("bert_base", _TEXT, _TINY_TEXT, {"batch": Symbol(1, 4), "tokens": Symbol(8, 256)}),
    "whisper_tiny_encoder": Case(
        "whisper_tiny_encoder", {"frames": "frames"}, {"layers": 1, "width": 48}, {"frames": Symbol(100, 3000)}
    ),
    "segformer_b0": Case(
        "segformer_b0",
        {"image": ("height", "width")},
        {"layers": 1, "decoder": 32, "classes": 10},
        {"height": Symbol(128, 512, 32), "width": Symbol(128, 512, 32)},
    ),
    "resnet50": Case(
        "resnet50",
        {"batch": "batch", "image": "side"},
        {"width": 8, "classes": 10},
        {"batch": Symbol(1, 16), "side": Symbol(160, 320)},
    ),
    "smollm2_135m_step": Case(
        "smollm2_135m_step",
        {"past": "past"},
        _TINY_TEXT,
        {"past": Symbol(16, 1023, grows=True)},
        {"total": lambda sizes: sizes["past"] + 1},
    ),
    "lstm_2x128": Case("lstm", {"steps": "steps"}, {"layers": 1}, {"steps": Symbol(10, 100)}),
    "bilstm_2x100": Case(
        "lstm",
        {"steps": "steps", "width": 100, "bidirectional": True},
        {"layers": 1},
        {"steps": Symbol(32, 512)},
    ),
    "gru_128": Case("gru", {"steps": "steps"}, {}, {"steps": Symbol(10, 120)}),
    "crnn": Case("crnn", {"image": "width"}, {"width": 16}, {"width": Symbol(32, 512)}),
    "vad": Case("vad", {"samples": "samples"}, {}, {"samples": Symbol(512, 16000)}),
}
"""Networks of changing shapes, then those with recurrent layers."""


def shapes_of(model: onnx.ModelProto, sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """The shapes of the inputs where the symbols have these extents."""
    return {
        entry.name: tuple(
            sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in entry.type.tensor_type.shape.dim
        )
        for entry in model.graph.input
    }


def draw(model: onnx.ModelProto, sizes: Sizes, seed: int) -> dict[str, NDArray[Any]]:
    """Normal numbers for floats, and ones for integers: legal indices everywhere, and a mask that leaves nothing out;
    the ids of words are random.
    """
    rng = np.random.default_rng(seed)
    inputs: dict[str, NDArray[Any]] = {}
    shapes = shapes_of(model, sizes)
    for entry in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(entry.type.tensor_type.elem_type)
        shape = shapes[entry.name]
        if dtype.kind == "f":
            inputs[entry.name] = rng.standard_normal(shape, dtype=np.float32).astype(dtype)
        elif entry.name == "input_ids":
            inputs[entry.name] = rng.integers(0, _words(model), shape, dtype)
        else:
            inputs[entry.name] = np.ones(shape, dtype)
    return inputs


def _words(model: onnx.ModelProto) -> int:
    (table,) = (tensor for tensor in model.graph.initializer if tensor.name == "word_table")
    return int(table.dims[0])
