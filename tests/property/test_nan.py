"""NaN, infinities and zeros of both signs in every operator that compares, orders or folds.

One rule, that of NumPy and PyTorch: a maximum, minimum, reduction or pool with a NaN among its elements is a NaN; an
order has NaN above all numbers; of +0 and -0, which are equal, a maximum or minimum is either.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import retune
from retune.compiler import te
from retune.compiler.codegen.nvidia.nvptx import ptx
from retune.compiler.core.target import Target
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, Split
from tests.support.ptx.machine import run_ptx
from tests.support.simt.execute import execute
from tests.support.tiers import long_except
from tests.support.workloads import GPU

Array = NDArray[Any]
VALUES = np.array([-np.inf, -2.5, -1, -0.0, 0.0, 0.5, 3, np.inf])


def odd(*shape: int, seed: int = 0) -> Array:
    """Rows that begin with a NaN, end with one, or have none, and others with some."""
    rng = np.random.default_rng(seed)
    found = rng.choice(VALUES, shape).astype("float32")
    found[rng.random(shape) < 0.15] = np.nan
    rows = found.reshape(-1, shape[-1])
    rows[0], rows[1, -1], rows[2] = np.nan, np.nan, np.arange(shape[-1])
    return found


X, Y, IMAGE = odd(6, 37), odd(6, 37, seed=1), odd(1, 2, 9, 9)
LONG = odd(3, 300)
ZEROS = np.zeros((6, 5), "int64")


def number(value: float) -> Array:
    return np.array(value, "float32")


def whole(*numbers: int) -> Array:
    return np.array(numbers, "int64")


def windows(x: Array, size: int, join: Any) -> Array:
    return np.asarray(join(np.lib.stride_tricks.sliding_window_view(x, (size, size), (2, 3)), axis=(4, 5)))


def scattered(join: np.ufunc) -> Sequence[Array]:
    """`X` with the first columns of `Y` joined to its first one."""
    return [np.column_stack([join.reduce(np.c_[X[:, :1], Y[:, :5]], axis=1), X[:, 1:]])]


Case = tuple[str, Sequence[Array | None], dict[str, Any], Callable[[], Sequence[Array]] | None]
POINTWISE: tuple[str, ...] = (
    "Relu",
    "LeakyRelu",
    "Elu",
    "Selu",
    "Celu",
    "HardSigmoid",
    "HardSwish",
    "Sign",
    "Abs",
    "Neg",
    "Softmax",
)
POINTWISE += ("ThresholdedRelu", "Shrink", "LogSoftmax", "Hardmax", "IsNaN", "IsInf", "Softplus", "Sigmoid", "Round")
FOLDS = ("Max", "Min", "Sum", "Mean", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
CASES: list[Case] = [
    *((name, [X], {}, None) for name in POINTWISE),
    *((name, [X, Y], {}, None) for name in ("Max", "Min", "Mean", "Equal", "Less", "LessOrEqual", "Greater", "Add")),
    ("Max", [X, Y[:1], X * 2], {}, None),
    ("PRelu", [X, np.array([0.25], "float32")], {}, None),
    ("Clip", [X, number(-1), number(1)], {}, None),
    ("Clip", [X, number(0)], {}, None),
    ("Clip", [X, None, number(1)], {}, None),
    ("Where", [X > 0, X, Y], {}, None),
    *((f"Reduce{name}", [X, whole(axis)], {"keepdims": axis}, None) for name in FOLDS for axis in (0, 1)),
    *((name, [X], {"axis": axis, **last}, None) for name in ("ArgMax", "ArgMin") for axis in (0, 1)
      for last in ({}, {"select_last_index": 1})),
    *(("TopK", [x, whole(4)], {"largest": largest}, None) for x in (X, LONG) for largest in (0, 1)),
    ("TopK", [X, whole(3)], {"axis": 0}, None),
    # Python's `max`, of which ONNX's reference makes its pools, depends on the order of a NaN and a number.
    ("MaxPool", [IMAGE], {"kernel_shape": [2, 2]}, lambda: [windows(IMAGE, 2, np.max)]),
    ("AveragePool", [IMAGE], {"kernel_shape": [3, 3]}, lambda: [windows(IMAGE, 3, np.mean)]),
    ("GlobalMaxPool", [IMAGE], {}, None),
    *(("ScatterND", [X, whole(0, 2, 0)[:, None], Y[:3]], {"reduction": how}, None) for how in ("max", "min", "add")),
    ("ScatterElements", [X, ZEROS, Y[:, :5]], {"axis": 1, "reduction": "max"}, lambda: scattered(np.maximum)),
    ("ScatterElements", [X, ZEROS, Y[:, :5]], {"axis": 1, "reduction": "min"}, lambda: scattered(np.minimum)),
    ("CumSum", [X, np.array(1)], {}, None),
    ("Unique", [X], {}, None),
]  # fmt: skip


def compiled(op: str, operands: Sequence[Array | None], attributes: dict[str, Any], how: str) -> list[Array]:
    """What a network of one node gives; integers, single numbers and what is `folded` are constants of it."""
    names = ["" if one is None else f"x{place}" for place, one in enumerate(operands)]
    node = helper.make_node(op, names, ["y", "z"] if op == "TopK" else ["y"], **attributes)
    fed = {name: np.asarray(one) for name, one in zip(names, operands, strict=True) if one is not None}
    fixed = {name: one for name, one in fed.items() if how == "folded" or one.dtype == "int64" or one.size == 1}
    free = {name: one for name, one in fed.items() if name not in fixed} or {"unused": np.zeros(1, "float32")}

    def described(name: str, one: Array) -> onnx.ValueInfoProto:
        shape = [f"{name}_{axis}" for axis in range(one.ndim)] if how == "dynamic" else one.shape
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(one.dtype), shape)

    graph = helper.make_graph(
        [node],
        "net",
        [described(*pair) for pair in free.items()],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output],
        [numpy_helper.from_array(one, name) for name, one in fixed.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    model = onnx.shape_inference.infer_shapes(model)
    for entry in model.graph.output:
        entry.type.tensor_type.shape.SetInParent()
    found = retune.compile(model, dynamic=how == "dynamic")(**free)
    return [np.asarray(one) for one in (found if isinstance(found, (list, tuple)) else [found])]


def reference(op: str, operands: Sequence[Array | None], attributes: dict[str, Any]) -> Sequence[Any]:
    names = ["" if one is None else f"x{place}" for place, one in enumerate(operands)]
    node = helper.make_node(op, names, ["y", "z"] if op == "TopK" else ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
        for name in (*filter(None, names), *node.output)
    ]
    graph = helper.make_graph([node], "net", values[: -len(node.output)], values[-len(node.output) :])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    fed = {name: np.asarray(one) for name, one in zip(names, operands, strict=True) if one is not None}
    return ReferenceEvaluator(model).run(None, fed)  # type: ignore[return-value]


QUICK = ["MaxPool", "ReduceMax", "TopK"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", long_except(QUICK, sorted({op for op, *_ in CASES})))
def test_operators_keep_nan_and_infinities_as_numpy_does(op: str) -> None:
    for name, operands, attributes, wanted in CASES:
        if name != op:
            continue
        expected = wanted() if wanted else reference(op, operands, attributes)
        for how in ("static", "dynamic", "folded"):
            if op == "Unique" and how == "static":
                continue  # the size of its result is data
            pairs = zip(compiled(op, operands, attributes, how), expected, strict=False)
            for found, right in pairs:
                assert found.dtype == np.asarray(right).dtype
                np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5, err_msg=f"{op} {attributes} {how}")


SIGNED: dict[str, tuple[str, list[Array], Callable[[Array], Array]]] = {
    "neg": ("Neg", [], np.negative),
    "plus zero": ("Add", [number(0)], lambda x: x + np.float32(0)),
    "plus minus zero": ("Add", [number(-0.0)], lambda x: x),
    "minus zero": ("Sub", [number(0)], lambda x: x),
    "times one": ("Mul", [number(1)], lambda x: x),
    "times zero": ("Mul", [number(0)], lambda x: x * np.float32(0)),
    "by one": ("Div", [number(1)], lambda x: x),
    "round": ("Round", [], np.round),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", long_except(["static"], ["static", "dynamic", "folded"]))
def test_signs_of_zeros_are_those_of_ieee_754(how: str) -> None:
    x = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf], "float32")
    for name, (op, operands, meaning) in SIGNED.items():
        (found,) = compiled(op, [x, *operands], {}, how)
        wanted = meaning(x)
        np.testing.assert_array_equal(found, wanted, err_msg=name)
        zeros = wanted == 0
        np.testing.assert_array_equal(np.signbit(found[zeros]), np.signbit(wanted[zeros]), err_msg=name)


@pytest.mark.parametrize("dtype", long_except(["float32"], ["float32", "float64", "float16", "bfloat16"]))
@pytest.mark.parametrize("capability", ["sm_75", "sm_90"])
def test_gpu_kernels_keep_nan(capability: str, dtype: str) -> None:
    x, k = te.placeholder((6, 64), dtype, "x"), te.reduce_axis(64, "k")
    reduced = [te.compute((6,), lambda i, one=one: one(x[i, k], k), "y") for one in (te.max, te.min)]
    pairs = [
        te.compute((6, 64), lambda i, j, one=one: one(x[i, j], x[5 - i, j]), "z") for one in (te.maximum, te.minimum)
    ]
    given = odd(6, 64).astype(dtype)
    wide = given.astype("float64")
    wanted = [wide.max(axis=1), wide.min(axis=1), np.maximum(wide, wide[::-1]), np.minimum(wide, wide[::-1])]
    for output, right in zip((*reduced, *pairs), wanted, strict=True):
        dag = ComputeDAG([x, output])
        across = (Split(1, 1, 64, (32,)), Annotate(1, 2, Annotation.THREAD_X), Annotate(1, 0, Annotation.BLOCK_X))
        for steps in (across, (Annotate(1, 0, Annotation.THREAD_X),)) if right.ndim == 1 else (across[1:],):
            if right.ndim == 2:
                steps = (Annotate(1, 1, Annotation.THREAD_X), Annotate(1, 0, Annotation.BLOCK_X))
            function = lower_for_gpu(replay(dag, steps), "k", GPU)
            text = ptx(function, Target(f"cuda -arch={capability}"))
            for found in (execute(function, [given])[0], run_ptx(text, function, [given])[0]):
                np.testing.assert_array_equal(found.astype("float64"), right)
