"""Places of the largest and smallest elements, against NumPy."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ops import reduce
from retune.compiler.te.evaluate import evaluate


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16", "bool"])
def test_place_and_value(axis: int, keepdims: bool, largest: bool, dtype: str) -> None:
    x = te.placeholder((3, 5, 4), dtype, "x")
    values = np.random.default_rng(0).integers(0, 3, (3, 5, 4)).astype(dtype)
    make, place_of, value_of = (reduce.argmax, np.argmax, np.max) if largest else (reduce.argmin, np.argmin, np.min)
    place, value = make(x, axis, keepdims=keepdims)
    found, best = evaluate([place, value], {x: values})
    assert (place.dtype, value.dtype) == ("int64", dtype)
    np.testing.assert_array_equal(found, place_of(values, axis=axis, keepdims=keepdims))
    np.testing.assert_array_equal(best, value_of(values, axis=axis, keepdims=keepdims))


def test_what_cannot_be_is_refused() -> None:
    x = te.placeholder((2, 200), name="x")
    with pytest.raises(DefinitionError, match="x has 2 dimensions, so there is no axis 2"):
        reduce.argmax(x, 2)
    with pytest.raises(DefinitionError, match="int8 does not hold the 200 places"):
        reduce.argmin(x, 1, index="int8")
    assert reduce.argmax(x, 0, index="int8", name="best")[0].name == "best.v0"
