"""Operators with shapes and attributes, for every test that wants to go through all of them."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.graph.ir import Attribute, Node
from retune.compiler.ops import OPS
from retune.compiler.te.tensor import Tensor
from tests.support.attributes import CONV, POOL

Attrs = Mapping[str, Attribute]
Shapes = tuple[tuple[int, ...], ...]

MAX_POOL: dict[str, Attribute] = {**POOL, "dilations": (1, 1)}
AVG_POOL: dict[str, Attribute] = {**POOL, "count_include_pad": False}

CONV_3D: dict[str, Attribute] = {
    "strides": (1, 2, 1),
    "pads": (1, 0, 1, 0, 1, 1),
    "dilations": (1, 1, 2),
    "groups": 1,
    "layout": "NDHWC",
}

TRANSPOSED: dict[str, Attribute] = {"strides": (2, 2), "pads": (1, 1, 1, 1), "layout": "NHWC"}

PHASES: dict[str, Attribute] = {"strides": (2, 2), "pads": (1, 1), "layout": "NHWC"}

KEPT: dict[str, Attribute] = {"axes": (0, 2), "keepdims": True}

UNARY: tuple[str, ...] = ("relu", "sigmoid", "tanh", "exp", "erf", "neg", "abs", "floor", "ceil", "round", "identity")
UNARY += ("softplus", "silu", "hard_swish", "gelu", "gelu_tanh")
UNARY += ("sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "sign", "is_nan")
BINARY = (
    "add",
    "sub",
    "mul",
    "div",
    "rounded_mul",
    "true_div",
    "maximum",
    "minimum",
    "mod",
    "fmod",
    "equal",
    "less",
    "less_equal",
)

CASES: list[tuple[str, Shapes, Attrs]] = [
    *((op, ((2, 3, 4),), {}) for op in UNARY),
    *((op, ((2, 3, 4), (3, 1)), {}) for op in BINARY),
    ("add", ((4,), (2, 3, 4)), {}),
    ("leaky_relu", ((2, 3),), {"alpha": 0.1}),
    ("clip", ((4, 5),), {"low": -0.5, "high": 0.75}),
    ("clip", ((4, 5),), {"low": -0.5, "high": float("inf")}),
    ("cast", ((4, 5),), {"dtype": "int32"}),
    ("conv2d", ((2, 6, 7, 3), (3, 3, 3, 5)), CONV),
    ("conv2d", ((1, 7, 7, 3), (3, 3, 3, 5)), {**CONV, "strides": (2, 2), "pads": (1, 0, 0, 1)}),
    ("conv2d", ((1, 9, 9, 2), (3, 3, 2, 4)), {**CONV, "dilations": (2, 3), "pads": (0, 3, 1, 2)}),
    ("conv2d", ((1, 6, 6, 4), (1, 1, 4, 3)), {**CONV, "pads": (0, 0, 0, 0), "strides": (2, 2)}),
    ("conv2d", ((1, 6, 6, 1), (3, 2, 1, 3)), CONV),
    ("conv2d", ((1, 6, 6, 4), (3, 3, 4)), {**CONV, "groups": 4}),
    ("conv2d", ((1, 6, 6, 4), (1, 1, 4)), {**CONV, "groups": 4, "pads": (0, 0, 0, 0)}),
    ("conv2d", ((1, 6, 6, 4), (3, 3, 2, 6)), {**CONV, "groups": 2}),
    ("conv2d", ((1, 6, 6, 4), (3, 3, 1, 8)), {**CONV, "groups": 4, "strides": (2, 1)}),
    ("conv2d", ((2, 3, 6, 7), (5, 3, 3, 3)), {**CONV, "layout": "NCHW"}),
    ("conv2d", ((1, 4, 6, 6), (4, 1, 3, 3)), {**CONV, "layout": "NCHW", "groups": 4, "strides": (2, 2)}),
    ("conv2d", ((1, 4, 6, 6), (6, 2, 3, 3)), {**CONV, "layout": "NCHW", "groups": 2}),
    ("winograd_conv2d", ((2, 6, 7, 3), (4, 4, 3, 5)), {"tile": 2, "pads": (1, 1, 1, 1)}),
    ("winograd_conv2d", ((1, 7, 9, 3), (6, 6, 3, 4)), {"tile": 4, "pads": (0, 1, 2, 0)}),
    ("winograd_conv3d", ((2, 3, 6, 7, 3), (4, 4, 3, 3, 5)), {"tile": 2, "pads": (1, 1, 1, 1, 1, 1)}),
    ("winograd_conv3d", ((1, 4, 7, 9, 3), (4, 4, 2, 3, 4)), {"tile": 2, "pads": (0, 0, 1, 1, 2, 0)}),
    ("winograd_conv3d", ((1, 2, 7, 6, 3), (6, 6, 1, 3, 4)), {"tile": 4, "pads": (0, 1, 1, 0, 1, 1)}),
    ("dense", ((4, 7), (7, 5)), {}),
    (
        "scan",
        ((3, 5), (4, 3, 5), (5, 5)),
        {
            "body": '[[["dense",[1,3],{}],["add",[4,2],{}],["tanh",[5],{}],["mul",[6,["float32",0.5]],{}]],[7,6]]',
            "steps": 4,
            "states": 1,
            "axes": (0,),
            "reverse": (1,),
            "shown": (1, 0),
            "backward": (1, 0),
        },
    ),
    (
        "recurrent",
        ((4, 3, 2, 20), (2, 5, 20), (2, 3, 5), (2, 3, 5), (2, 15)),
        {
            "cell": "LSTM",
            "operands": "weight h c peepholes",
            "functions": "sigmoid tanh tanh",
            "clip": 0.5,
            "reverse": (1, 0),
            "finals": 2,
        },
    ),
    (
        "recurrent",
        ((3, 2, 1, 12), (1, 4, 8), (1, 4, 4), (1, 2, 4)),
        {
            "cell": "GRU",
            "operands": "weight hidden_weight h",
            "functions": "sigmoid relu",
            "clip": 0.0,
            "reverse": (0,),
            "finals": 1,
        },
    ),
    ("batch_matmul", ((3, 4, 7), (3, 7, 5)), {}),
    ("contract", ((4, 3, 7), (7, 3, 5)), {"left": "mhk", "right": "khn", "result": "mhn"}),
    ("contract", ((3, 4, 2, 5), (3, 2, 6, 5)), {"left": "amjk", "right": "ajnk", "result": "nam"}),
    ("contract", ((4,), (5,)), {"left": "m", "right": "n", "result": "nm"}),
    ("max_pool2d", ((1, 7, 8, 3),), MAX_POOL),
    ("max_pool2d", ((1, 3, 7, 8),), {**MAX_POOL, "layout": "NCHW"}),
    ("max_pool2d", ((1, 8, 8, 3),), {**MAX_POOL, "pads": (0, 0, 0, 0), "kernel": (2, 2)}),
    ("max_pool2d", ((1, 9, 9, 2),), {**MAX_POOL, "dilations": (2, 2), "strides": (1, 1)}),
    ("avg_pool2d", ((1, 7, 8, 3),), AVG_POOL),
    ("avg_pool2d", ((1, 7, 8, 3),), {**AVG_POOL, "count_include_pad": True}),
    ("avg_pool2d", ((1, 3, 7, 8),), {**AVG_POOL, "layout": "NCHW", "pads": (0, 0, 1, 1)}),
    ("avg_pool2d", ((1, 8, 8, 3),), {**AVG_POOL, "pads": (0, 0, 0, 0), "kernel": (2, 4)}),
    *((f"reduce_{name}", ((2, 3, 4),), KEPT) for name in ("sum", "mean", "max", "min", "prod")),
    ("conv3d", ((1, 4, 5, 6, 3), (2, 3, 2, 3, 4)), CONV_3D),
    ("conv3d", ((2, 4, 3, 6, 5), (6, 2, 1, 3, 3)), {**CONV_3D, "layout": "NCDHW", "groups": 2}),
    ("conv_transpose2d", ((1, 4, 5, 2), (4, 4, 2, 3)), TRANSPOSED),
    ("conv_transpose2d", ((2, 3, 4, 2), (3, 2, 2, 5)), {**TRANSPOSED, "strides": (2, 3), "pads": (1, 0, -1, 0)}),
    ("conv_phases2d", ((1, 4, 5, 2), (4, 4, 2, 3)), {**PHASES, "size": (4, 5)}),
    ("conv_phases2d", ((2, 3, 4, 2), (4, 3, 2, 5)), {**PHASES, "strides": (2, 3), "pads": (0, 4), "size": (5, 2)}),
    ("conv_phases2d", ((1, 3, 2, 4), (2, 2, 4, 3)), {**PHASES, "pads": (0, 0), "size": (3, 2)}),
    *((op, ((2, 5, 4),), {"axis": 1, "keepdims": op == "arg_max"}) for op in ("arg_max", "arg_min")),
    *(("top_k", ((3, 7, 2),), {"axis": 1, "k": 4, "largest": largest}) for largest in (True, False)),
    *(("top_k", (shape,), {"axis": 1, "k": k, "largest": True}) for shape, k in (((2, 300, 2), 3), ((1, 701), 40))),
    ("top_k", ((2, 600),), {"axis": 1, "k": 1, "largest": False}),
    ("reduce_mean", ((2, 3, 4),), {"axes": (1,), "keepdims": False}),
    ("reduce_sum", ((2, 3),), {"axes": (0, 1), "keepdims": False}),
    ("softmax", ((2, 3, 4),), {"axis": 1}),
    ("log_softmax", ((2, 3, 4),), {"axis": 2}),
    ("normalize", ((3, 4, 9),), {"axes": (2,), "epsilon": 1e-5, "centred": True}),
    ("normalize", ((3, 4, 9),), {"axes": (2,), "epsilon": 1e-5, "centred": False}),
    ("normalize", ((3, 4, 5),), {"axes": (0, 2), "epsilon": 1e-3, "centred": True}),
    ("group_normalize", ((2, 3, 5, 12),), {"axes": (1, 2), "axis": 3, "groups": 4, "epsilon": 1e-5}),
    ("group_normalize", ((6, 3, 5),), {"axes": (2,), "axis": 0, "groups": 3, "epsilon": 1e-3}),
    ("batch_norm", ((2, 3, 4), *((3,),) * 4), {"axis": 1, "epsilon": 100.0}),
    ("reshape", ((2, 3, 4),), {"shape": (4, 6)}),
    ("reshape", ((2, 6),), {"shape": (2, 1, 3, 2)}),
    ("reshape", ((1, 1),), {"shape": ()}),
    ("transpose", ((2, 3, 4),), {"perm": (2, 0, 1)}),
    *(("transpose", (shape,), {"perm": (0, 2, 1)}) for shape in ((2, 40, 24), (1, 21, 32), (3, 36, 197), (2, 80, 67))),
    ("transpose", ((1, 16, 8, 12),), {"perm": (0, 2, 3, 1)}),
    ("concat", ((2, 3), (2, 1), (2, 4)), {"axis": 1}),
    ("slice", ((5, 6),), {"starts": (1, 0), "stops": (5, 6), "steps": (1, 2)}),
    ("pad", ((2, 3),), {"pads_before": (0, 1), "pads_after": (2, 0), "value": 1.5}),
    ("pad", ((2, 3),), {"pads_before": (0, 0), "pads_after": (0, 0), "value": 1.5}),
    ("broadcast_to", ((3, 1),), {"shape": (2, 3, 4)}),
]

_RNG = np.random.default_rng(11)
_PHASES: dict[str, Attribute] = {"strides": (2, 3), "pads": (1, 2), "size": (3, 4), "layout": "NHWC", "pad_value": 7}
_PART = _RNG.uniform(-0.9, 0.9, (3, 4)).astype(np.float32)
_WHOLE = np.array([[-7, 7, 5], [-8, 3, 0]], np.int32)
_HALVES = np.array([*np.arange(-300.5, 300), -np.inf, -6e4, -0.0, 6e4, np.inf])
_BITS = np.array([[12, 10, 255], [1, 0, 128]], np.uint8)
_TRUE = np.array([[True, False, True], [False, False, True]])
_DATA = _RNG.standard_normal((4, 3, 5)).astype(np.float32)
_ALONG = np.array([[[2, 0, 1, -1, 2]], [[0, -3, 1, 1, 0]]])
_ROWS = np.array([[0, 2], [3, -1], [1, 0]])
_SLICES = _RNG.standard_normal((3, 5)).astype(np.float32)
_SCALES = np.array([0.5, 0.25, 0.125], np.float32)
_SCATTERED: tuple[str, ...] = ("none", "add", "mul", "max", "min")


def _bytes(dtype: str, *shape: int) -> NDArray[Any]:
    limits = np.iinfo(dtype)
    return np.random.default_rng(6).integers(limits.min, limits.max + 1, shape).astype(dtype)


_ALONG_AXIS_1: list[Attrs] = [{"axis": 1, "reduction": reduction} for reduction in _SCATTERED]

_TAPS: list[NDArray[Any]] = [
    np.array([[0, 1], [1, -1], [9, 0], [-9, 1]], np.int32),
    np.array([[0.25, 0.75], [1, 0], [-0.5, 1.5], [2, 3]], np.float32),
    np.array([[1], [0], [1]]),
    np.array([[1], [0.5], [-2]], np.float32),
]
"""Places, among them some outside, and weights of two axes."""

_TREES: list[NDArray[Any]] = [
    np.array([2, 9, 200, 0, 0, 0, 0], np.int32),
    np.array([0, -0.5, 0.5, 0, 0, 0, 0], np.float32),
    np.array([1, 2, 3, 4, 5, 6, *np.repeat(np.arange(3, 7), 2)], np.int32),
    np.array([0, 2, 0, 1, 0], np.int32),
]
"""Tests, among them one of a feature that is not there, splits, children and roots of trees."""

_DATA_2D = _RNG.standard_normal((3, 32)).astype(np.float32)
_OF_BLOCKS = _RNG.uniform(0.1, 0.3, (2, 5)).astype(np.float32)

TYPED_CASES: list[tuple[str, list[NDArray[Any]], Attrs]] = [
    *((op, [_PART], {}) for op in ("asin", "acos", "atanh")),
    ("acosh", [1 + np.abs(_PART)], {}),
    ("sign", [_WHOLE], {}),
    ("arange", [], {"start": 2, "count": 5, "step": -3}),
    ("extents", [], {"values": (3, 1, 70)}),
    ("bits", [_PART], {"dtype": "int32"}),
    ("bits", [_PART.astype(np.float16)], {"dtype": "uint16"}),
    ("bits", [_WHOLE], {"dtype": "float32"}),
    ("bits", [_WHOLE], {"dtype": "uint32"}),
    ("bits", [_TRUE], {"dtype": "uint8"}),
    ("bits", [np.array([1, 0, 1], np.uint8)], {"dtype": "bool"}),
    ("is_nan", [np.array([1, np.nan, -np.inf], np.float32)], {}),
    *((op, [_WHOLE, np.array([2, -2, 3], np.int32)], {}) for op in ("mod", "fmod", "less", "equal")),
    *((op, [array], {}) for op in ("bit_not",) for array in (_WHOLE, _BITS, _TRUE)),
    *((op, [array, array[:1]], {}) for op in ("bit_and", "bit_or", "bit_xor") for array in (_WHOLE, _BITS, _TRUE)),
    *((op, [_BITS, np.array([1, 3, 7], np.uint8)], {}) for op in ("shift_left", "shift_right")),
    ("where", [_TRUE, np.ones((3, 2, 1), np.float32), np.zeros((1, 3), np.float32)], {}),
    *(
        ("dequantize_bits", [_bytes("uint8", 2, 2 * bits, 5), _OF_BLOCKS, -3 * _OF_BLOCKS], {"bits": bits})
        for bits in (2, 4, 8)
    ),
    *(
        ("dense_bits", [_DATA_2D, _bytes("uint8", 2, 2 * bits, 5), _OF_BLOCKS, -3 * _OF_BLOCKS], {"bits": bits})
        for bits in (2, 4, 8)
    ),
    *(("transpose", [_bytes(dtype, 48, 33)], {"perm": (1, 0)}) for dtype in ("int8", "uint8")),
    ("transpose", [_RNG.standard_normal((2, 24, 16))], {"perm": (2, 0, 1)}),
    ("gather", [_DATA, np.array([[2, -1, 0], [1, 1, -3]])], {"axis": 1}),
    ("gather", [_DATA, np.array(-2, np.int32)], {"axis": 0}),
    ("gather", [_DATA, np.array([9, -9])], {"axis": 2}),
    ("resample", [_DATA, *_TAPS[:2]], {"axes": (1,)}),
    ("resample", [_DATA, *_TAPS], {"axes": (0, 2)}),
    ("resample", [_DATA.astype(np.float64), *_TAPS], {"axes": (1, 2)}),
    ("gather_elements", [_DATA, _ALONG], {"axis": 1}),
    ("gather_nd", [_DATA, _ROWS], {"batch_dims": 0}),
    ("gather_nd", [_DATA, np.array([[2], [0], [-1], [1]])], {"batch_dims": 1}),
    *(("scatter_elements", [_DATA, _ALONG, _DATA[:2, :1] * 3], attrs) for attrs in _ALONG_AXIS_1),
    *(("scatter_elements", [_DATA, _ALONG[:1, :, :1], _DATA[:2, :1] * 3], attrs) for attrs in _ALONG_AXIS_1),
    *(("scatter_nd", [_DATA, _ROWS, _SLICES], {"reduction": reduction}) for reduction in _SCATTERED),
    ("scatter_nd", [_DATA, _ROWS[[0, 0, 1]], _SLICES], {"reduction": "none"}),
    ("scatter_nd", [_DATA, _ROWS[[0, 0, 0]], _SLICES], {"reduction": "add"}),
    ("tree_leaves", [_DATA[:, 0], *_TREES], {"levels": 2}),
    ("conv2d", [_RNG.integers(-9, 9, (1, 5, 5, 3), "int32"), _RNG.integers(-9, 9, (3, 3, 3, 2), "int32")], CONV),
    *(
        ("qconv2d", [_bytes(x, 1, 5, 6, 8), _bytes(w, 3, 3, 8, 16)], {**CONV, "pad_value": 9, "window": ()})
        for x in ("uint8", "int8")
        for w in ("uint8", "int8")
    ),
    ("qconv2d", [_bytes("uint8", 1, 5, 5, 3), _bytes("int8", 3, 3, 4, 16)], {**CONV, "pad_value": 7, "window": ()}),
    (
        "qconv2d",
        [_bytes("uint8", 1, 3, 5, 5), _bytes("int8", 6, 4, 1, 1)],
        {**CONV, "pads": (0, 0, 0, 0), "layout": "NCHW", "pad_value": 7, "window": ()},
    ),
    *(
        (
            "qconv2d",
            [_bytes(x, 1, 5, 5, 16), _bytes("int8", *taps, 16)],
            {**CONV, "groups": 16, "pad_value": 100, "window": window},
        )
        for x, taps, window in (("uint8", (3, 3), ()), ("int8", (4, 3), (3, 3)), ("uint8", (3, 8), (3, 3)))
    ),
    (
        "qconv3d",
        [_bytes("uint8", 1, 4, 5, 6, 8), _bytes("int8", 2, 3, 3, 8, 16)],
        {**CONV_3D, "pad_value": 9, "window": ()},
    ),
    (
        "qconv3d",
        [_bytes("int8", 1, 4, 5, 6, 3), _bytes("int8", 2, 3, 2, 4, 16)],
        {**CONV_3D, "pad_value": -7, "window": ()},
    ),
    (
        "qconv3d",
        [_bytes("uint8", 1, 6, 3, 5, 5), _bytes("int8", 4, 3, 1, 3, 3)],
        {**CONV_3D, "layout": "NCDHW", "groups": 2, "pad_value": 255, "window": ()},
    ),
    ("conv2d", [_RNG.random((1, 5, 5, 3)).astype("bfloat16"), _RNG.random((3, 3, 4, 16)).astype("bfloat16")], CONV),
    *(("qconv_phases2d", [_bytes(x, 2, 3, 4, 8), _bytes("int8", 4, 6, 8, 16)], _PHASES) for x in ("uint8", "int8")),
    ("qdense", [_bytes("uint8", 5, 12), _bytes("int8", 12, 16)], {}),
    ("qdense", [_bytes("int8", 5, 7), _bytes("int8", 7, 3)], {}),
    ("quantize", [_DATA, _SCALES, np.array([3, -2, 0], np.int8)], {"axis": 1}),
    ("quantize", [_DATA, _SCALES[0], np.array(7, np.uint8)], {"axis": 1}),
    ("quantize", [_DATA, _SCALES[:1], np.array([7], np.uint8)], {"axis": 0}),
    ("dequantize", [_bytes("int8", 4, 3, 5), _SCALES, np.array([3, -2, 0], np.int8)], {"axis": 1}),
    ("dequantize", [_bytes("uint8", 4, 3, 5), _SCALES[0], np.array(7, np.uint8)], {"axis": 2}),
    *(
        ("saturate", [_HALVES.astype(dtype), np.array([[0], [1], [117], [-128], [255]], np.int32)], {"dtype": kind})
        for dtype in ("float16", "float32", "float64")
        for kind in ("int8", "uint8", "int16", "uint16")
    ),
    *(("lookup", [_bytes(dtype, 5, 70), _bytes("int8", 256)], {}) for dtype in ("int8", "uint8")),
    ("lookup", [_bytes("uint8", 3, 4), np.arange(256, dtype=np.float32)], {}),
    ("qbatch_matmul", [_bytes("int8", 2, 5, 8), _bytes("int8", 2, 8, 16)], {}),
]
"""Operators with operands of other types than float32, or of a part of its range."""


def lowered(op: str, arrays: list[NDArray[Any]], attrs: Attrs) -> tuple[Tensor, list[Tensor], Node]:
    """The operator as a tensor, its placeholders, and the graph node that it stands for."""
    node = Node(op, tuple(f"x{place}" for place in range(len(arrays))), ("y",), attrs)
    tensors = [te.placeholder(array.shape, array.dtype.name, f"p{place}") for place, array in enumerate(arrays)]
    return OPS[op].tensor(tensors, attrs), tensors, node


def random_arrays(shapes: Shapes) -> list[NDArray[Any]]:
    """Seeded normal numbers of standard deviation 2."""
    rng = np.random.default_rng(7)
    return [(2 * rng.standard_normal(shape)).astype(np.float32) for shape in shapes]
