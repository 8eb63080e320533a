"""The executor on a network of three doubling kernels."""

import numpy as np
import pytest

from compiler.errors import ArtifactError, OptionError
from compiler.executor.graph_executor import GraphExecutor
from compiler.executor.network import CompiledNetwork
from tests.doubling_network import SHAPE, doubling_network
from tests.ir_kernels import ELEMENTS


def _x() -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)


@pytest.mark.parametrize("threads", [1, 2])
def test_it_computes_the_network(threads: int) -> None:
    executor = GraphExecutor(doubling_network(), threads)
    x = _x()
    executor.run(x=x)
    np.testing.assert_array_equal(executor.get_output(0), 8 * x)
    np.testing.assert_array_equal(executor.get_output("twice").ravel(), 2 * np.arange(ELEMENTS, dtype=np.float32))
    np.testing.assert_array_equal(executor.get_output("flat"), 8 * x.ravel())


def test_inputs_by_name_and_index_and_again() -> None:
    executor = GraphExecutor(doubling_network())
    x = _x()
    executor.set_input(0, x)
    executor.run()
    executor.set_input("x", 2 * x)
    first = executor.get_output(0)
    executor.run()
    np.testing.assert_array_equal(first, 8 * x)
    np.testing.assert_array_equal(executor.get_output(0), 16 * x)
    np.testing.assert_array_equal(executor.get_input("x"), 2 * x)


def test_strided_inputs_are_copied_right() -> None:
    executor = GraphExecutor(doubling_network())
    x = np.asfortranarray(_x())
    executor.run(x=x)
    np.testing.assert_array_equal(executor.get_output(0), 8 * x)


def test_facts_about_inputs_and_outputs() -> None:
    executor = GraphExecutor(doubling_network())
    assert (executor.get_num_inputs(), executor.get_num_outputs()) == (1, 3)
    assert executor.get_input_index("x") == 0
    assert executor.get_input_index("c") == -1
    assert executor.get_input_info() == ({"x": SHAPE}, {"x": "float32"})
    assert executor.get_output_info()[0] == {"out": SHAPE, "twice": SHAPE, "flat": (ELEMENTS,)}


def test_outputs_into_an_array_of_the_caller() -> None:
    executor = GraphExecutor(doubling_network())
    executor.run(x=_x())
    out = np.empty(SHAPE, np.float32)
    assert executor.get_output(0, out) is out
    np.testing.assert_array_equal(out, 8 * _x())
    with pytest.raises(OptionError, match="the array for the output out must be float32"):
        executor.get_output(0, np.empty(3, np.float32))


def test_wrong_inputs_are_refused() -> None:
    executor = GraphExecutor(doubling_network())
    with pytest.raises(OptionError, match=r"input x must be float32.*not float32\[3\]"):
        executor.run(x=np.zeros(3, np.float32))
    with pytest.raises(OptionError, match="not float64"):
        executor.set_input("x", np.zeros(SHAPE))
    with pytest.raises(OptionError, match="no input 'y'; the inputs are x"):
        executor.run(y=_x())
    with pytest.raises(OptionError, match="no input 1"):
        executor.set_input(1, _x())
    with pytest.raises(OptionError, match="no value given"):
        executor.set_input("x")
    with pytest.raises(OptionError, match="no output 'y'; the outputs are out, twice, flat"):
        executor.get_output("y")
    with pytest.raises(OptionError, match="threads"):
        GraphExecutor(doubling_network(), 0)


def test_benchmark_and_profile() -> None:
    executor = GraphExecutor(doubling_network())
    result = executor.benchmark(repeat=3, number=2, inputs={"x": _x()})
    assert len(result.results) == 3
    assert 0 < result.min <= result.median <= result.max < 1
    assert len(executor.benchmark(repeat=2, number=1, end_to_end=True, inputs={"x": _x()}).results) == 2
    times = executor.profile(repeat=3)
    assert [time.label for time in times] == ["first", "second", "third", "constant"]
    assert all(0 < time.seconds < 1 for time in times)
    np.testing.assert_array_equal(executor.get_output(0), 8 * _x())


def test_a_network_for_another_processor_is_refused() -> None:
    network = doubling_network()
    metadata = {"cpu": "hal9000", "needs": ["empathy"]}
    with pytest.raises(ArtifactError, match="compiled for hal9000; this machine lacks empathy"):
        GraphExecutor(CompiledNetwork(network.plan, network.kernels, network.constants, (), metadata))


def test_an_inconsistent_network_is_refused() -> None:
    network = doubling_network()
    with pytest.raises(ArtifactError, match="constant c is missing"):
        GraphExecutor(CompiledNetwork(network.plan, network.kernels, {}))
    with pytest.raises(ArtifactError, match="the plan says float32"):
        GraphExecutor(doubling_network(np.zeros(3, np.float32)))
