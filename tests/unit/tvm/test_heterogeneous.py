"""Networks on several devices: copies where they are needed and nowhere else, and the outputs of one device."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.errors import ArtifactError, DeviceError, OptionError
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.graph.ir import Graph
from retune.compiler.graph.partition.partition import partition
from retune.compiler.graph.partition.winograd import winograd_for
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact
from retune.compiler.runtime.device import cpu, cuda
from retune.compiler.runtime.executor import executors
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.device_memory import DeviceMemory
from retune.compiler.runtime.executor.executors import check_gpu, executor_of, gpu_count
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.host_memory import HostMemory
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.placement import Copy, Run, place_copies
from retune.compiler.runtime.executor.plan import Call, Plan
from retune.compiler.runtime.timing import TimeEvaluator
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.task import SearchTask
from tests.support.fake_cuda import FakeDriver
from tests.support.gpu_network import network_with_gpu, plan_of
from tests.support.small_computations import doubled
from tests.support.small_graphs import small_graphs
from tests.support.workloads import GPU


def kernel(name: str, inputs: int) -> KernelArtifact:
    """What is known of a kernel with so many inputs and one output."""
    args = [ArgSpec(f"a{place}", (16,), "float32", place == inputs) for place in range(inputs + 1)]
    return KernelArtifact(name, b"", tuple(args), 0, "llvm")


KERNELS = {"one": kernel("one", 1), "two": kernel("two", 2)}


def test_value_read_on_another_device_is_copied_once() -> None:
    plan = plan_of(
        Call("two", (0, 1, 2), device=1),  # both come from the CPU
        Call("two", (0, 2, 3), device=1),  # both are there
        Call("two", (2, 3, 4)),  # back
        Call("two", (4, 1, 5), device=1),  # the constant is there from the start
    )
    found = place_copies(plan, KERNELS)
    assert found.constants == (Copy(1, 0, 1),)
    assert found.steps == (
        Copy(0, 0, 1),
        Run(0, 1),
        Run(1, 1),
        Copy(2, 1, 0),
        Copy(3, 1, 0),
        Run(2, 0),
        Copy(4, 0, 1),
        Run(3, 1),
        Copy(5, 1, 0),
    )
    assert len(found.copies) == 5
    assert str(found).splitlines()[:2] == ["once: copy %1 from 0 to 1", "copy %0 from 0 to 1"]


def test_rewritten_value_is_copied_again() -> None:
    plan = plan_of(
        Call("one", (0, 2)), Call("one", (2, 3), device=1), Call("one", (3, 2), device=1), Call("one", (2, 5))
    )
    assert place_copies(plan, KERNELS).copies == (Copy(2, 0, 1), Copy(2, 1, 0))


def test_on_one_device_nothing_is_copied() -> None:
    plan = plan_of(Call("two", (0, 1, 2)), Call("one", (2, 5)))
    assert (place_copies(plan, KERNELS).copies, place_copies(plan, KERNELS).constants) == ((), ())


def test_plan_that_reads_an_unwritten_value_is_refused() -> None:
    with pytest.raises(ArtifactError, match="plan net: b3 is read before anything writes it"):
        place_copies(plan_of(Call("one", (3, 5))), KERNELS)
    with pytest.raises(ArtifactError, match="plan net: no kernel 'some_function' is given"):
        place_copies(plan_of(Call("some_function", (0, 5))), KERNELS)


def spread(network: CompiledNetwork, homes: Sequence[int]) -> CompiledNetwork:
    """The network with its calls on these devices, over and over."""
    calls = tuple(replace(call, device=homes[place % len(homes)]) for place, call in enumerate(network.plan.calls))
    return replace(network, plan=replace(network.plan, calls=calls))


@settings(max_examples=12, deadline=None)
@given(small_graphs(), st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(0, 99))
def test_a_network_on_three_devices_computes_what_it_does_on_one(graph: Graph, homes: list[int], seed: int) -> None:
    network = compile_graph(graph, Target.host())
    x = np.random.default_rng(seed).random((1, 4, 4, 8), "float32")
    plain = GraphExecutor(network)
    plain.run(x=x)
    executor = GraphExecutor(spread(network, homes), memories=[HostMemory(), HostMemory()])
    for _ in range(2):
        executor.run(x=x)
        for index in range(len(network.plan.outputs)):
            np.testing.assert_array_equal(executor.get_output(index), plain.get_output(index))


def mixed() -> tuple[CompiledNetwork, list[DeviceMemory], FakeDriver]:
    """8 x on the CPU, of which the second doubling is done on a GPU."""
    network, driver = network_with_gpu()
    return network, [CudaMemory(driver)], driver


def test_a_cpu_and_a_gpu() -> None:
    network, stores, driver = mixed()
    executor = GraphExecutor(network, memories=stores)
    for start in (0, 5):
        x = np.arange(start, start + 16, dtype="float32")
        executor.run(b0=x)
        np.testing.assert_array_equal(executor.get_output(0), 8 * x)
    assert driver.launches() == ["gpu_kernel0"] * 2


def test_a_device_that_is_not_given_and_code_for_another_one() -> None:
    network, _ = network_with_gpu()
    with pytest.raises(ArtifactError, match="also runs on device 1, in its call of gpu, and 0 memories of devices are"):
        GraphExecutor(network)
    with pytest.raises(ArtifactError, match="gpu is code for cuda, not for a CPU"):
        GraphExecutor(network, memories=[HostMemory()])


def test_code_for_a_gpu_is_nothing_for_a_shared_library_or_an_executor_of_the_cpu(tmp_path: Path) -> None:
    network, _ = network_with_gpu()
    library = Library(network)
    with pytest.raises(ArtifactError, match=r"kernel gpu is code for cuda, .* save the network as \.retune"):
        library.export_library(tmp_path / "net.so")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OptionError, match=r"compiled for one GPU, and given is no GPU: name it, such as cuda\(0\)"):
        library["default"](cpu())


def test_inputs_and_outputs_that_are_not_there() -> None:
    network, stores, _ = mixed()
    executor = GraphExecutor(network, memories=stores)
    with pytest.raises(OptionError, match="no input 'y'; the inputs are b0"):
        executor.run(y=np.zeros(16, "float32"))
    with pytest.raises(OptionError, match=r"input b0 must be float32\[16\]"):
        executor.run(b0=np.zeros(4, "float32"))
    with pytest.raises(OptionError, match="no output 1; the outputs are b5"):
        executor.get_output(1)


def test_where_calls_run_is_part_of_a_plan() -> None:
    plan = plan_of(Call("one", (0, 2), "a"), Call("one", (2, 5), "b", 1))
    assert Plan.loads(plan.dumps()) == plan
    assert "one(%2, %5) on device 1" in str(plan)


@settings(max_examples=6, deadline=None)
@given(small_graphs(), st.integers(0, 99))
def test_a_network_on_a_gpu_computes_what_it_does_on_a_cpu(graph: Graph, seed: int) -> None:
    """Its default kernels, executed thread by thread; the outputs come back in the end."""
    target = Target("cuda")
    plain = GraphExecutor(compile_graph(graph, Target.host()))
    cut = partition(graph, target, hardware_of(target, 1), winograd_for(target))
    network = compile_graph(graph, target, cut=cut)
    functions = [
        lower_for_gpu(replay(task.dag, default_gpu_steps(task.dag)), task.name, task.hardware) for task in cut.tasks
    ]
    driver = FakeDriver(functions)
    executor = GraphExecutor(network, memories=[CudaMemory(driver)])
    x = np.random.default_rng(seed).random((1, 4, 4, 8), "float32")
    plain.run(x=x)
    executor.run(x=x)
    for index in range(len(network.plan.outputs)):
        np.testing.assert_allclose(executor.get_output(index), plain.get_output(index), rtol=1e-4, atol=1e-5)
    again = [copy for copy in executor.placed.copies if copy.target == 1]
    assert {copy.storage for copy in again} <= set(network.plan.inputs)


def test_what_runs_a_network_follows_from_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    network, _, driver = mixed()
    monkeypatch.setattr(executors, "driver", lambda: driver)
    executor = executor_of(network, 1)
    assert executor.devices == (cpu(), cuda(0))
    assert executor.get_input_info() == ({"b0": (16,)}, {"b0": "float32"})
    assert executor.get_num_outputs() == 1
    executor.set_input("b0", np.ones(16, "float32"))
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0), np.full(16, 8.0))
    assert len(executor.calls_on(0)) == 2
    (on_gpu,) = executor.calls_on(1)
    before = len(driver.launches())
    on_gpu()
    assert driver.launches()[before:] == ["gpu_kernel0"]
    before = len(driver.launches())
    found = executor.benchmark(TimeEvaluator(repeat=2, number=3))
    assert len(found.results) == 2
    assert found.min > 0
    assert len(driver.launches()) - before == 1 + 2 * 3  # one that is not timed
    with pytest.raises(OptionError, match="threads must be an integer from 1"):
        executor_of(network, 0)


def test_code_for_another_gpu_is_refused_before_it_is_loaded() -> None:
    network, _, driver = mixed()
    assert gpu_count(network) == 1
    here = driver.devices()[0]
    check_gpu(network, here)
    (gpu,) = (kernel for kernel in network.kernels if kernel.device is not None)
    newer = replace(network, kernels=(replace(gpu, target="cuda -arch=sm_100"),))
    with pytest.raises(DeviceError, match=r"network net was compiled for sm_100; the GPU here, Double 0, is sm_90"):
        check_gpu(newer, here)


def test_untuned_programs_spread_over_threads_or_cpus() -> None:
    dag = doubled(1000)
    on_gpu = SearchTask("t", dag, Target("cuda"), GPU)
    (kernel_,) = lower_for_gpu(replay(dag, default_steps_of(on_gpu)), "k", GPU).kernels
    assert (kernel_.grid, kernel_.block) == ((8, 1, 1), (128, 1, 1))
    assert default_steps_of(SearchTask("t", dag, Target.host(), HardwareParams(2))) == default_steps(dag)


def test_two_gpus_are_opened_in_turn() -> None:
    """What the first doubling makes goes over the CPU to the other GPU."""
    network, _, driver = mixed()
    driver.count = 2
    gpu = next(kernel for kernel in network.kernels if kernel.device is not None)
    plan = plan_of(Call("gpu", (0, 2), device=1), Call("gpu", (2, 3), device=2), Call("gpu", (3, 5), device=1))
    both = CompiledNetwork(plan, (gpu,), {1: np.zeros(16, "float32")})
    executor = GraphExecutor(both, memories=[CudaMemory(driver, 0), CudaMemory(driver, 1)])
    executor.run(b0=np.ones(16, "float32"))
    np.testing.assert_array_equal(executor.get_output(0), np.full(16, 8.0))
    assert launched_on(driver) == [0, 1, 0]


def test_what_a_gpu_has_recorded_is_launched_with_that_gpu_open() -> None:
    """The last doubling needs no copy, and another GPU was used before it."""
    network, _, driver = mixed()
    driver.count = 2
    gpu = next(kernel for kernel in network.kernels if kernel.device is not None)
    plan = plan_of(Call("gpu", (0, 2), device=1), Call("gpu", (0, 3), device=2), Call("gpu", (2, 5), device=1))
    both = CompiledNetwork(plan, (gpu,), {1: np.zeros(16, "float32")})
    memories = [CudaMemory(driver, number, graphs=True) for number in range(2)]
    executor = GraphExecutor(both, memories=memories)
    for _ in range(2):
        driver.asked.clear()
        executor.run(b0=np.ones(16, "float32"))
        np.testing.assert_array_equal(executor.get_output(0), np.full(16, 4.0))
        assert launched_on(driver) == [0, 1, 0]


def launched_on(driver: FakeDriver) -> list[int]:
    """Which GPU was open at each launch."""
    current, launched = -1, []
    for line in driver.asked:
        if line.startswith("open"):
            current = int(line.split()[1])
        elif line.startswith("launch"):
            launched.append(current)
    return launched
