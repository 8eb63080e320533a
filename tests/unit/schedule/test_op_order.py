"""Stage orders: those of known computations, and which of several outputs comes first."""

import pytest

from retune.compiler import te
from retune.compiler.ir.expr import Expr
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.te.tensor import Tensor
from tests.support.workloads import (
    conv_bn_relu,
    double_matmul,
    max_pool,
    min_nm,
    softmax,
    winograd_nhwc,
    zero_rank_reduce,
)

ORDERS = {
    "conv_bn_relu": "Data pad Kernel conv Bias Bias_add Scale Bn_mul Offset Bn_add relu",
    "winograd": "inputs data_pad input_tile B data_pack weight bgemm A inverse conv2d_winograd",
    "max_pool": "data pool",
    "min_nm": "A B",
    "softmax": "A max exp sum div",
    "zero_rank_reduce": "A B",
    "double_matmul": "A B D C E",
}


@pytest.mark.parametrize("name", ORDERS)
def test_orders_of_the_search_workloads(name: str) -> None:
    dags = {
        "conv_bn_relu": conv_bn_relu(1, 14, 16, 16, 3, 1, 1),
        "winograd": winograd_nhwc(1, 8, 16, 16, 1),
        "max_pool": max_pool(14, 16),
        "min_nm": min_nm(10, 64),
        "softmax": softmax(1, 64),
        "zero_rank_reduce": zero_rank_reduce(16),
        "double_matmul": double_matmul(16),
    }
    assert " ".join(op.name for op in dags[name].ops) == ORDERS[name]


def names(*tensors: Tensor) -> list[str]:
    return [op.name for op in ComputeDAG(tensors).ops]


def product(a: Tensor, b: Tensor, name: str) -> Tensor:
    k = te.reduce_axis(8, "k")
    return te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], k), name)


def plus(name: str, *tensors: Tensor) -> Tensor:
    def body(i: te.Axis, j: te.Axis) -> Expr:
        total: Expr = tensors[0][i, j]
        for tensor in tensors[1:]:
            total = total + tensor[i, j]
        return total + 1.0

    return te.compute((8, 8), body, name)


def inputs(letters: str) -> list[Tensor]:
    return [te.placeholder((8, 8), name=name) for name in letters]


def test_operations_are_in_the_order_of_tvm() -> None:
    a, b, c = inputs("ABC")
    assert names(a, b, product(a, b, "C")) == ["A", "B", "C"]
    d = product(a, b, "D")
    assert names(a, b, c, product(d, c, "E")) == ["A", "B", "D", "C", "E"]
    k = te.reduce_axis(8, "k")
    top = te.compute((8,), lambda i: te.max(a[i, k], k), "max")
    power = te.compute((8, 8), lambda i, j: te.exp(a[i, j] - top[i]), "exp")
    q = te.reduce_axis(8, "q")
    total = te.compute((8,), lambda i: te.sum(power[i, q], q), "sum")
    assert names(a, te.compute((8, 8), lambda i, j: power[i, j] / total[i], "div")) == [
        "A",
        "max",
        "exp",
        "sum",
        "div",
    ]


def test_an_index_that_is_read_comes_before_what_it_indexes() -> None:
    x, index = te.placeholder((100,), name="X"), te.placeholder((5,), "int32", "Index")
    assert names(x, index, te.compute((5,), lambda i: x[index[i]], "Y")) == ["Index", "X", "Y"]


def test_outputs_in_the_order_of_a_sorted_walk() -> None:
    a, b, c = inputs("ABC")
    d, e = product(a, b, "D"), product(a, c, "E")
    assert names(a, b, c, d, e) == ["A", "B", "D", "C", "E"]
    assert names(a, b, c, e, d) == ["A", "C", "E", "B", "D"]
    # By hand, for [r, s, first, second, third] with third = r + 1, second = s + 1, first = r + 2: the walk from the
    # last numbers third 0, r 1, second 2, s 3, first 4. Ready are r and s; s is greater, so second (2) comes before r.
    r, s = inputs("rs")
    first, second, third = plus("first", r), plus("second", s), plus("third", r)
    assert names(r, s, first, second, third) == ["s", "second", "r", "first", "third"]
    assert [tensor.name for tensor in ComputeDAG([r, s, first, second, third]).outputs] == ["first", "second", "third"]
