"""Random ONNX models of images, whose batch, height and width are symbolic and may be 0 or 1 when the model runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import helper

from retune.compiler.ir.dims import Dim
from tests.support.dynamic_models import Array, model, tensor

Shape = tuple[int, ...]
B, N, M = (Dim.symbol(name) for name in "bnm")
INPUTS = {"image": (B, 4, N, M), "other": (1, 8, M, 7), "line": (B, 6, N)}
"""Images and a sound, with channels that convolutions take in groups."""
_RESIZES: tuple[dict[str, Any], ...] = (
    {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
    {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    {"mode": "linear", "coordinate_transformation_mode": "asymmetric"},
    {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"},
    {"mode": "cubic", "coordinate_transformation_mode": "half_pixel"},
    {"mode": "cubic", "coordinate_transformation_mode": "half_pixel", "exclude_outside": 1},
    {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    {"mode": "nearest", "coordinate_transformation_mode": "half_pixel"},
)


@dataclass
class _Writer:
    """The nodes of a model; `channels` and the rank of each image of it."""

    rng: Random
    images: dict[str, tuple[int, int]]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def emit(self, op: str, inputs: Sequence[str], **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [f"t{len(self.nodes)}"], **attrs))
        return str(self.nodes[-1].output[0])

    def constant(self, array: object, dtype: str = "int64") -> str:
        name = f"k{len(self.weights)}"
        self.weights[name] = np.array(array, dtype)
        return name

    def weight(self, *shape: int) -> str:
        values = np.random.default_rng(len(self.weights)).uniform(-1, 1, shape) / np.sqrt(np.prod(shape[1:]) or 1)
        return self.constant(values, "float32")

    def pick(self) -> tuple[str, int, int]:
        """An image, more often one of the last, its channels and its rank."""
        names = list(self.images)
        name = self.rng.choice(names[-3:] if self.rng.random() < 0.7 else names)
        return name, *self.images[name]

    def extents(self, name: str, first: int) -> str:
        """The extents of an image from axis `first` on."""
        bounds = [self.constant([number]) for number in (first, 8)]
        return self.emit("Slice", [self.emit("Shape", [name]), *bounds])


def _convolution(w: _Writer) -> None:
    name, channels, rank = w.pick()
    spatial, groups = rank - 2, w.rng.choice([1, 1, 2, channels])
    taps = [w.rng.choice([1, 2, 3, 3, 5]) for _ in range(spatial)]
    wanted = groups * w.rng.choice([1, 2, 3]) if groups > 1 else w.rng.choice([1, 4, 8, 20])
    attrs: dict[str, Any] = {"group": groups, "strides": [w.rng.choice([1, 1, 2, 3]) for _ in range(spatial)]}
    if w.rng.random() < 0.5:
        attrs["auto_pad"] = w.rng.choice(["SAME_UPPER", "SAME_LOWER"])
    else:
        attrs["pads"] = [w.rng.randrange(3) for _ in range(2 * spatial)]
        attrs["dilations"] = [w.rng.choice([1, 1, 2]) for _ in range(spatial)]
    y = w.emit("Conv", [name, w.weight(wanted, channels // groups, *taps), w.weight(wanted)], **attrs)
    w.images[w.emit(w.rng.choice(["Relu", "Tanh"]), [y])] = wanted, rank


def _pool(w: _Writer) -> None:
    name, channels, rank = w.pick()
    spatial = rank - 2
    if w.rng.random() < 0.15:
        w.images[w.emit("GlobalAveragePool", [name])] = channels, rank
        return
    taps = [w.rng.choice([2, 3]) for _ in range(spatial)]
    attrs = {"kernel_shape": taps, "strides": [w.rng.choice([1, 2]) for _ in range(spatial)]}
    pads = [w.rng.randrange(2) for _ in range(2 * spatial)]
    w.images[w.emit(w.rng.choice(["MaxPool", "AveragePool"]), [name], pads=pads, **attrs)] = channels, rank


def _resize(w: _Writer) -> None:
    """To the size of another image, or by a factor."""
    name, channels, rank = w.pick()
    attrs = w.rng.choice([attrs for attrs in _RESIZES if rank == 4 or attrs["mode"] != "cubic"])
    like, _, other_rank = w.pick()
    if other_rank == rank and w.rng.random() < 0.6:
        sizes = w.emit(
            "Concat",
            [w.emit("Slice", [w.emit("Shape", [name]), w.constant([0]), w.constant([2])]), w.extents(like, 2)],
            axis=0,
        )
        y = w.emit("Resize", [name, "", "", sizes], **attrs)
    else:
        # ONNX Runtime aligns the corners of whole sizes, ONNX those of fractions.
        factors = [2.0, 3.0] if "align" in attrs["coordinate_transformation_mode"] else [0.5, 1.5, 2.0, 2.0]
        factor = [1.0, 1.0] + [w.rng.choice(factors)] * (rank - 2)
        y = w.emit("Resize", [name, "", w.constant(factor, "float32")], **attrs)
    w.images[y] = channels, rank


def _join(w: _Writer) -> None:
    """An image beside itself after a pointwise layer, or their sum."""
    name, channels, rank = w.pick()
    other = w.emit("Sigmoid", [name])
    if w.rng.random() < 0.5:
        w.images[w.emit("Concat", [name, other], axis=1)] = 2 * channels, rank
    else:
        w.images[w.emit("Add", [name, w.emit("Mul", [name, other])])] = channels, rank


def _normalize(w: _Writer) -> None:
    """A norm over channels, of tokens."""
    name, channels, rank = w.pick()
    last = w.emit("Transpose", [name], perm=[0, *range(2, rank), 1])
    scale = [w.constant(np.ones(channels), "float32"), w.weight(channels)]
    y = w.emit("LayerNormalization", [last, *scale], axis=-1)
    w.images[w.emit("Transpose", [y], perm=[0, rank - 1, *range(1, rank - 1)])] = channels, rank


def _attend(w: _Writer) -> None:
    """Attention of all pixels to those of a smaller image, as tokens."""
    name, channels, rank = w.pick()
    flat = w.constant([0, 0, -1])
    few = w.emit("MaxPool", [name], kernel_shape=[2] * (rank - 2), strides=[2] * (rank - 2), pads=[1] * 2 * (rank - 2))
    tokens, keys = (w.emit("Reshape", [image, flat]) for image in (name, few))  # batch, channels, tokens
    queries = w.emit("MatMul", [w.emit("Transpose", [tokens], perm=[0, 2, 1]), w.weight(channels, channels)])
    shares = w.emit("Softmax", [w.emit("MatMul", [queries, keys])], axis=-1)
    mixed = w.emit("MatMul", [shares, w.emit("Transpose", [keys], perm=[0, 2, 1])])
    shape = w.emit("Shape", [name])
    w.images[w.emit("Reshape", [w.emit("Transpose", [mixed], perm=[0, 2, 1]), shape], allowzero=1)] = channels, rank


def _flatten(w: _Writer) -> None:
    """A layer of all pixels of an image as rows."""
    name, channels, rank = w.pick()
    last = w.emit("Transpose", [name], perm=[0, *range(2, rank), 1])
    rows = w.emit("MatMul", [w.emit("Reshape", [last, w.constant([-1, channels])]), w.weight(channels, 8)])
    shape = w.emit(
        "Concat",
        [
            w.extents(last, 0),
        ],
        axis=0,
    )
    lead = w.emit("Slice", [shape, w.constant([0]), w.constant([rank - 1])])
    y = w.emit("Reshape", [rows, w.emit("Concat", [lead, w.constant([8])], axis=0)], allowzero=1)
    w.images[w.emit("Transpose", [y], perm=[0, rank - 1, *range(1, rank - 1)])] = 8, rank


_STEPS: tuple[Callable[[_Writer], None], ...] = (
    *(_convolution, _convolution, _convolution, _pool, _resize, _resize, _join, _normalize, _attend, _flatten),
)


def random_image_model(seed: int, steps: int = 6) -> tuple[onnx.ModelProto, dict[str, Shape]]:
    """A model of so many layers, all of whose last images are outputs, and the shapes of its inputs."""
    rng = Random(seed)
    chosen = rng.sample(sorted(INPUTS), rng.choice([1, 1, 2]))
    w = _Writer(rng, {name: (INPUTS[name][1], len(INPUTS[name])) for name in chosen})
    for _ in range(steps):
        rng.choice(_STEPS)(w)
    read = {name for node in w.nodes for name in node.input}
    inputs = {name: INPUTS[name] for name in chosen if name in read}
    results = [name for name in w.images if name not in INPUTS and name not in read]
    outputs = [tensor(name, [None] * w.images[name][1]) for name in results]
    fed = [tensor(name, [str(e) if isinstance(e, Dim) else e for e in shape]) for name, shape in inputs.items()]
    return model(w.nodes, fed, outputs, w.weights), inputs
