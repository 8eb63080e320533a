"""An operator written for the usual layout computes with a weight of another one."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError, ScheduleError
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import get_shape_from_rewritten_layout
from retune.compiler.schedule.pretransformed_weights import (
    remove_index_check,
    rewrite_compute_body,
    rewrite_tensor_shape,
)
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor

LAYOUT = "2j2k3j4k"


def dense(weight: Tensor, n: int, m: int, depth: int) -> tuple[Tensor, Tensor]:
    x = te.placeholder((n, depth), name="x")
    k = te.reduce_axis(depth, "k")
    attrs = {"layout_free_placeholders": (weight,)}
    return x, te.compute((n, m), lambda i, j: te.sum(x[i, k] * weight[k, j], k), "y", attrs)


def test_the_body_is_put_right() -> None:
    depth, columns = get_shape_from_rewritten_layout(LAYOUT, ["k", "j"])
    weight = te.placeholder((2, 2, 3, 4), name="w")
    with pytest.raises(DefinitionError, match="4 dimensions but is read with 2"):
        dense(weight, 3, columns, depth)
    remove_index_check(weight)
    x, y = dense(weight, 3, columns, depth)
    with pytest.raises(DefinitionError, match="y reads w, which has 4 dimensions, with 2 indices"):
        ComputeDAG([x, weight, y])
    fixed = rewrite_compute_body(y, LAYOUT)
    assert ComputeDAG([x, weight, fixed]).inputs == (x, weight)
    assert "layout_free_placeholders" not in fixed.op.attrs
    rng = np.random.default_rng(0)
    left, right = rng.random((3, 8), np.float32), rng.random((8, 6), np.float32)
    laid = np.ascontiguousarray(right.reshape(2, 4, 2, 3).transpose(2, 0, 3, 1))
    (result,) = evaluate([fixed], {x: left, weight: laid})
    np.testing.assert_allclose(result, left @ right, rtol=1e-5)


def test_the_shape_of_an_input_is_changed_in_place() -> None:
    weight = te.placeholder((8, 6), name="w")
    rewrite_tensor_shape(weight, (2, 2, 3, 4))
    assert weight.shape == (2, 2, 3, 4)
    with pytest.raises(DefinitionError, match="does not hold the elements"):
        rewrite_tensor_shape(weight, (2, 2))


def test_what_does_not_fit_is_refused() -> None:
    weight = te.placeholder((2, 2, 3, 4), name="w")
    remove_index_check(weight)
    _, y = dense(weight, 3, 6, 8)
    with pytest.raises(ScheduleError, match="cannot be read"):
        rewrite_compute_body(y, "2q2k3j4k")
    with pytest.raises(DefinitionError, match="not that of"):
        rewrite_compute_body(y, "2j2k4j3k")
    with pytest.raises(DefinitionError, match="not indexed by i"):
        rewrite_compute_body(y, "2i2k3j4k")
    with pytest.raises(DefinitionError, match="it lists 0"):
        rewrite_compute_body(rewrite_compute_body(y, LAYOUT), LAYOUT)
    for function in (remove_index_check, lambda tensor: rewrite_tensor_shape(tensor, (18,))):
        with pytest.raises(DefinitionError, match="is computed"):
            function(y)
