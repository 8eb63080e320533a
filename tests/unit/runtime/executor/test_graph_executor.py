"""The executor on a network of three doubling kernels."""

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import ArtifactError, OptionError
from retune.compiler.runtime.artifact import ALIGNMENT
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.params import save_param_dict
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec
from retune.compiler.runtime.timing import TimeEvaluator
from tests.support.doubling_network import SHAPE, doubling_network
from tests.support.ir_kernels import ELEMENTS


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


def test_constants_are_held_once(tmp_path: Path) -> None:
    given = np.ones(ELEMENTS, np.float32)
    for network in (doubling_network(given), CompiledNetwork.load(doubling_network(given).save(tmp_path / "n.retune"))):
        held = network.constants[4]
        assert held.ctypes.data % ALIGNMENT == 0
        assert not held.flags.writeable
        one, other = GraphExecutor(network), GraphExecutor(network)
        assert one.value(4).ctypes.data == other.value(4).ctypes.data == held.ctypes.data
        given[...] = 5  # the network has its own
        one.load_params(save_param_dict({"c": np.full(ELEMENTS, 3, np.float32)}))
        for executor, wanted in ((one, 6), (other, 2)):  # and an executor into which parameters are loaded, too
            executor.run(x=_x())
            np.testing.assert_array_equal(executor.get_output("twice").ravel(), np.full(ELEMENTS, wanted, np.float32))
        other.share_params(one, save_param_dict({"c": given}))
        other.run()
        np.testing.assert_array_equal(other.get_output("twice").ravel(), np.full(ELEMENTS, 6, np.float32))
        given[...] = 1


def test_loading_takes_no_more_memory_than_the_constants(tmp_path: Path) -> None:
    count = 1 << 22
    network = _with_a_large_constant(count)
    path = network.save(tmp_path / "large.retune")
    tracemalloc.start()
    try:
        executor = GraphExecutor(CompiledNetwork.load(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert executor.memory().constants > 4 * count
    assert peak < 1.5 * 4 * count


def _with_a_large_constant(count: int) -> CompiledNetwork:
    """The doubling network, and a constant that is an output."""
    network = doubling_network()
    plan = network.plan
    number = len(plan.buffers)
    spec = BufferSpec("large", (count,), "float32", BufferKind.CONSTANT, number)
    plan = replace(plan, buffers=(*plan.buffers, spec), outputs=(*plan.outputs, number))
    noise = np.random.default_rng(0).random(count, np.float32)
    return replace(network, plan=plan, constants={**network.constants, number: noise})


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
    with pytest.raises(OptionError, match="no input given for the value"):
        executor.set_input(None, _x())
    with pytest.raises(OptionError, match="no output 'y'; the outputs are out, twice, flat"):
        executor.get_output("y")
    with pytest.raises(OptionError, match="threads"):
        GraphExecutor(doubling_network(), 0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([[1.0, 2.0], [3.0]], "input x is no array"),
        (None, "no value given"),
        ("text", "input x must be float32"),
        (_x().astype(">f4"), "input x must be float32"),
        (_x().astype(object), "not object"),
        (_x().astype("complex64"), "not complex64"),
        (_x().T, r"not float32\["),
        (_x()[:, :-1], "input x must be"),
        (np.float32(3), r"not float32\[\]"),
        (np.zeros((0, 5), np.float32), r"not float32\[0, 5\]"),
    ],
)
def test_an_input_that_does_not_fit_is_refused(value: Any, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        GraphExecutor(doubling_network()).set_input("x", value)


def test_inputs_that_kernels_could_not_take_are_copied() -> None:
    executor = GraphExecutor(doubling_network())
    frozen = _x()
    frozen.flags.writeable = False
    for value in (frozen, np.asfortranarray(_x()), _x()[::-1], np.repeat(_x(), 2, axis=1)[:, ::2]):
        executor.run(x=value)
        np.testing.assert_array_equal(executor.get_output(0), 8 * value)
    executor.run(x=np.full(SHAPE, np.nan, np.float32))
    assert np.isnan(executor.get_output(0)).all()


@pytest.mark.parametrize("key", [-1, 99, 1.0, True, "", "y", b"x", [0], ("x",)])
def test_only_inputs_and_outputs_have_keys(key: Any) -> None:
    executor = GraphExecutor(doubling_network())
    with pytest.raises(OptionError, match="no input"):
        executor.set_input(key, _x())
    with pytest.raises(OptionError, match="no input"):
        executor.get_input(key)
    with pytest.raises(OptionError, match="no output"):
        executor.get_output(key)


def test_an_array_for_an_output_can_be_written_to() -> None:
    executor = GraphExecutor(doubling_network())
    frozen = _x()
    frozen.flags.writeable = False
    out: Any
    for out, words in (
        (frozen, "is read-only, and must be an array that can be written to"),
        (_x().tolist(), "an array is needed, of NumPy or with DLPack, not a list"),
        (3, "not a int"),
    ):
        with pytest.raises(OptionError, match=f"the array for the output out.* {words}"):
            executor.get_output(0, out)
    with pytest.raises(OptionError, match="array for the output out must be float32"):
        executor.get_output(0, _x().astype("float64"))


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", None, True, 1 << 20, 1 << 40])
def test_a_number_of_threads_can_be_started(threads: Any) -> None:
    with pytest.raises(OptionError, match="threads must be an integer from 1 to"):
        GraphExecutor(doubling_network(), threads)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repeat": 0}, "repeat must be at least 1, not 0"),
        ({"number": 1.5}, "number must be an integer, not 1.5"),
        ({"repeat": "a"}, "repeat must be an integer"),
        ({"min_repeat_ms": float("nan")}, "must be finite"),
        ({"min_repeat_ms": -1.0}, "min_repeat_ms must be at least 0"),
        ({"inputs": 5}, "inputs must map names to arrays"),
        ({"inputs": {"y": 1}}, "no input 'y'"),
    ],
)
def test_invalid_benchmark_options_are_refused(options: dict[str, Any], words: str) -> None:
    executor, inputs = GraphExecutor(doubling_network()), options.pop("inputs", None)
    with pytest.raises(OptionError, match=words):
        executor.benchmark(TimeEvaluator(**options), inputs=inputs)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"workspace_bytes": 1 << 50}, "no memory for an array"),
        ({"object_code": b""}, "cannot be loaded"),
        ({"object_code": b"\x7fELF" + bytes(60)}, "another kind of CPU"),
        ({"name": "other"}, "no kernel 'twofold'"),
        ({"args": ()}, "4 buffers|2 buffers for 0 arguments"),
    ],
)
def test_a_kernel_that_does_not_fit_the_plan(change: dict[str, Any], words: str) -> None:
    network = doubling_network()
    with pytest.raises(ArtifactError, match=words):
        GraphExecutor(replace(network, kernels=(replace(network.kernels[0], **change),)))


def test_a_network_larger_than_memory() -> None:
    network = doubling_network()
    with pytest.raises(ArtifactError, match="no memory for an array"):
        GraphExecutor(replace(network, plan=replace(network.plan, arena_bytes=1 << 50)))


def test_benchmark_and_profile() -> None:
    executor = GraphExecutor(doubling_network())
    result = executor.benchmark(TimeEvaluator(repeat=3, number=2), inputs={"x": _x()})
    assert len(result.results) == 3
    assert 0 < result.min <= result.median <= result.max
    assert len(executor.benchmark(TimeEvaluator(repeat=2), end_to_end=True, inputs={"x": _x()}).results) == 2
    times = executor.profile(repeat=3)
    assert [time.label for time in times] == ["first", "second", "third", "constant"]
    assert all(time.seconds > 0 for time in times)
    np.testing.assert_array_equal(executor.get_output(0), 8 * _x())


def test_a_network_for_another_cpu_is_refused() -> None:
    network = doubling_network()
    metadata = {"cpu": "hal9000", "needs": ["empathy"]}
    with pytest.raises(ArtifactError, match="compiled for hal9000; this machine lacks empathy"):
        GraphExecutor(CompiledNetwork(network.plan, network.kernels, network.constants, (), metadata))


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"triple": "sparc64-unknown-linux-gnu"}, "compiled for sparc64 CPUs; this machine's is"),
        ({"triple": 5}, "is damaged"),
        ({"needs": 5}, "is damaged"),
        ({"needs": [5]}, "is damaged"),
    ],
)
def test_what_a_network_says_of_its_cpu(facts: dict[str, object], message: str) -> None:
    network = doubling_network()
    with pytest.raises(ArtifactError, match=rf"network .* {message}"):
        GraphExecutor(CompiledNetwork(network.plan, network.kernels, network.constants, (), facts))


def test_an_inconsistent_network_is_refused() -> None:
    network = doubling_network()
    with pytest.raises(ArtifactError, match="constant c is missing"):
        GraphExecutor(CompiledNetwork(network.plan, network.kernels, {}))
    with pytest.raises(ArtifactError, match="the plan says float32"):
        GraphExecutor(doubling_network(np.zeros(3, np.float32)))
