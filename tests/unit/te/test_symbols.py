"""Tensor expressions with symbolic extents: definitions, their meaning for values, and what is refused."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import ArtifactError, DefinitionError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_symbolic
from retune.compiler.lower.symbolic import Unsupported
from retune.compiler.runtime.function import KernelFunction
from retune.compiler.te.evaluate import evaluate


def test_a_definition_has_the_meaning_of_its_values() -> None:
    n = te.symbol("n")
    x, k = te.placeholder((n, 3), name="x"), te.reduce_axis(n, "k")
    largest = te.compute((3,), lambda j: te.max(x[k, j], k), "largest")
    turned = te.compute((n, 3), lambda i, j: x[n - 1 - i, j] * te.cast("float32", i + n), "turned")
    for size in (0, 1, 4):
        source, first, second = te.instantiate([x, largest, turned], {"n": size})
        values = np.random.default_rng(size).random((size, 3), dtype="float32")
        maximum, reversed_rows = evaluate([first, second], {source: values})
        np.testing.assert_array_equal(maximum, values.max(0, initial=-np.inf))
        np.testing.assert_array_equal(reversed_rows, values[::-1] * (np.arange(size) + size)[:, None].astype("float32"))


def test_an_index_that_is_not_proved_inside_is_refused() -> None:
    n, m = te.symbol("n"), te.symbol("m")
    x = te.placeholder((n, m), name="x")
    for index in (lambda i: x[i, 0], lambda i: x[i + 1, i], lambda i: x[i, i]):
        with pytest.raises(DefinitionError, match="nothing shows that index"):
            te.compute((n,), index, "y")
    te.compute((n, m), lambda i, j: te.if_then_else(i + 1 < n, x[i + 1, j], 0.0), "shifted")
    te.compute((m, n), lambda i, j: x[n - 1 - j, i], "reversed")


def test_a_symbol_needs_a_name_and_a_value() -> None:
    with pytest.raises(DefinitionError, match="identifier"):
        te.symbol("n + 1")
    n = te.symbol("n")
    x = te.placeholder((n - 2,), name="x")
    y = te.compute((n - 2,), lambda i: x[i] + 1.0, "y")
    with pytest.raises(DefinitionError, match="the symbol n has no value"):
        te.instantiate([x, y], {})
    with pytest.raises(DefinitionError, match="the extent n - 2 is -1"):
        te.instantiate([x, y], {"n": 1})
    with pytest.raises(DefinitionError, match="at least 0"):
        te.instantiate([x, y], {"n": -1})


def _doubled() -> KernelFunction:
    n = te.symbol("n")
    x = te.placeholder((n, 4), name="x")
    kernel = build_symbolic([x, te.compute((n, 4), lambda i, j: x[i, j] * 2.0, "y")])
    assert not isinstance(kernel, Unsupported)
    return kernel


def test_a_symbolic_function_is_called_with_arrays_of_any_size() -> None:
    kernel = _doubled()
    for size in (0, 1, 5, 1000):
        x = np.random.default_rng(size).random((size, 4), dtype="float32")
        (y,) = kernel.outputs({"n": size})
        kernel(x, y)
        np.testing.assert_array_equal(y, x * 2)


def test_a_wrong_size_is_one_sentence() -> None:
    kernel = _doubled()
    x = np.zeros((3, 4), "float32")
    with pytest.raises(ArtifactError, match=r"argument y: expected 12 elements"):
        kernel(x, np.zeros((2, 4), "float32"))
    with pytest.raises(ArtifactError, match=r"argument x: expected 8 elements"):
        kernel(x, np.zeros((2, 4), "float32"), sizes={"n": 2})
    for size in (-1, 1 << 31, True, 2.0):
        with pytest.raises(ArtifactError, match="integer from 0"):
            kernel.outputs({"n": size})  # type: ignore[dict-item]
    with pytest.raises(ArtifactError, match="needs values of"):
        kernel.outputs()
    with pytest.raises(ArtifactError, match="needs values of"):
        kernel.outputs({"n": 1, "m": 2})
    with pytest.raises(ArtifactError, match=r"expected the shape \[3, 4\]"):
        kernel(np.zeros((3, 4), "float32"), np.zeros((4, 3), "float32"))


def test_symbolic_extents_are_for_cpus() -> None:
    n = te.symbol("n")
    x = te.placeholder((n,), name="x")
    with pytest.raises(ValueError, match="compile a kernel for each shape"):
        build_symbolic([x, te.compute((n,), lambda i: x[i] * 2.0, "y")], target=Target("cuda -arch=sm_80"))
