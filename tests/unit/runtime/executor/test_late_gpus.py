"""What only shows where GPUs work later than they are asked, in memory that is theirs: threads, memory that goes and
comes, recordings that fail.
"""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import ArtifactError, DeviceError, OptionError
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.host_memory import HostMemory
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate
from retune.compiler.schedule.task import SearchTask
from tests.support.gpu_network import network_with_gpu
from tests.support.late_gpus import LateGpus
from tests.support.workloads import GPU

X = np.arange(16, dtype=np.float32)


def made(outputs: tuple[int, ...] = (2,), count: int = 1) -> tuple[CompiledNetwork, LateGpus]:
    """y = 4 x, with what is between on a GPU too; output 3 is y in another shape."""
    network, double = network_with_gpu()
    gpu = next(kernel for kernel in network.kernels if kernel.device is not None)
    kinds = [BufferKind.INPUT, BufferKind.INTERMEDIATE, BufferKind.OUTPUT]
    buffers = tuple(BufferSpec("xty"[place], (16,), "float32", kind, place) for place, kind in enumerate(kinds))
    buffers += (BufferSpec("flat", (4, 4), "float32", BufferKind.OUTPUT, 2),)
    calls = (Call("gpu", (0, 1), device=1), Call("gpu", (1, 2), device=1))
    plan = Plan("net", buffers, calls, (0,), outputs, 64)
    return CompiledNetwork(plan, (gpu,), {}), LateGpus(double.functions, count=count)


def tensor(gpus: LateGpus, shape: tuple[int, ...] = (16,)) -> DeviceArray:
    gpus.open(0)
    array = DeviceArray.allocate(gpus, gpus.stream(), 0, shape, "float32")
    array.write(np.zeros(shape, np.float32))
    return array


def test_a_memory_belongs_to_one_executor() -> None:
    network, gpus = made()
    memory = CudaMemory(gpus)
    executor = GraphExecutor(network, memories=[memory])
    executor.run(x=X)
    with pytest.raises(OptionError, match="this is the memory of another executor already; make another one for this"):
        GraphExecutor(network, memories=[memory])
    np.testing.assert_array_equal(executor.get_output(0), 4 * X)
    nothing = replace(network, plan=replace(network.plan, calls=(), outputs=()))
    with pytest.raises(OptionError, match="this is the memory of another executor already"):
        GraphExecutor(nothing, memories=[HostMemory()] * 2)


def test_unreferenced_executor_releases_its_memory() -> None:
    network, gpus = made()
    gc.collect()
    gc.disable()
    try:
        memory = CudaMemory(gpus, graphs=True)
        executor, stream = GraphExecutor(network, memories=[memory]), memory.stream
        del memory
        executor.run(x=X)
        gone = weakref.ref(executor)
        del executor
        assert gone() is None
        gpus.wait(stream)
        assert all(piece.freed for piece in gpus.pieces)
    finally:
        gc.enable()


def test_a_recording_that_failed_is_not_what_is_launched_then(monkeypatch: pytest.MonkeyPatch) -> None:
    network, gpus = made()
    executor = GraphExecutor(network, memories=[CudaMemory(gpus, graphs=True)])
    executor.run(x=X)
    first, second = tensor(gpus), tensor(gpus)
    executor.set_output_zero_copy("y", first)
    executor.run()
    executor.set_output_zero_copy("y", second)
    with monkeypatch.context() as patch:

        def capture(*_: object) -> Any:
            raise DeviceError("CUDA: OUT_OF_MEMORY")

        patch.setattr(gpus, "capture", capture)
        with pytest.raises(DeviceError, match="OUT_OF_MEMORY"):
            executor.run()
    executor.run(x=X + 1)
    np.testing.assert_array_equal(second.numpy(), 4 * X + 4)
    np.testing.assert_array_equal(first.numpy(), 4 * X)


def test_an_array_that_is_given_once_more_is_not_recorded_once_more() -> None:
    network, gpus = made()
    executor = GraphExecutor(network, memories=[CudaMemory(gpus, graphs=True)])
    array = tensor(gpus)
    for more in range(3):
        executor.set_output_zero_copy("y", array)
        executor.run(x=X + more)
        executor.get_output("y", array)  # where it is already
        np.testing.assert_array_equal(array.numpy(), 4 * X + 4 * more)
    assert gpus.asked.count("graph of 2") == 1


@pytest.mark.parametrize("first_on_gpu", [False, True])
def test_one_of_two_outputs_in_the_same_memory_goes_to_an_array(first_on_gpu: bool) -> None:
    network, gpus = made((2, 3, 2))
    executor = GraphExecutor(network, memories=[CudaMemory(gpus)])
    flat = tensor(gpus, (4, 4)) if first_on_gpu else aligned_copy(X.reshape(4, 4))
    executor.set_output_zero_copy("flat", flat)
    for place in (0, 2):
        for other in (tensor(gpus), aligned_copy(X)):
            with pytest.raises(OptionError, match="for the output y: it shows the memory of flat, which is in an arr"):
                executor.set_output_zero_copy(place, other)
    executor.run(x=X)
    np.testing.assert_array_equal(flat.numpy() if isinstance(flat, DeviceArray) else flat, 4 * X.reshape(4, 4))
    np.testing.assert_array_equal(executor.get_output("y"), 4 * X)


def test_an_output_that_is_there_twice_goes_to_one_array() -> None:
    network, gpus = made((2, 2))
    executor = GraphExecutor(network, memories=[CudaMemory(gpus)])
    executor.set_output_zero_copy("y", aligned_copy(X))  # the first of the name
    with pytest.raises(OptionError, match="for the output y: it shows the memory of output 0, which is in an array"):
        executor.set_output_zero_copy(1, aligned_copy(X))
    executor.set_output_zero_copy(0, tensor(gpus))


def test_calls_take_the_workspace_of_the_one_that_needs_most() -> None:
    kernels, functions = [], []
    for size in (16, 128):
        x = te.placeholder((size,), name="x")
        more = te.compute((size,), lambda i, x=x: x[i] + 1.0, "more")
        dag = ComputeDAG([x, te.compute((size,), lambda i, more=more: more[i] * 2.0, "y")])
        steps = tuple(Annotate(stage, 0, Annotation.THREAD_X) for stage in (1, 2))
        kernels.append(build_kernel(SearchTask("t", dag, Target("cuda"), GPU), steps, f"k{size}"))
        functions.append(lower_for_gpu(replay(dag, steps), f"k{size}", GPU))
    small, large = (kernel.workspace_bytes for kernel in kernels)
    assert 0 < small < large
    buffers = [
        BufferSpec(f"b{place}", (size,), "float32", kind, place)
        for place, (size, kind) in enumerate((size, kind) for kind in _ENDS for size in (16, 128))
    ]
    calls = (Call("k16", (0, 2), device=1), Call("k128", (1, 3), device=1))
    network = CompiledNetwork(Plan("net", tuple(buffers), calls, (0, 1), (2, 3), 0), tuple(kernels), {})
    gpus = LateGpus(functions)
    executor = GraphExecutor(network, memories=[CudaMemory(gpus)])
    assert executor.memory().devices == 2 * (64 + 512) + large
    wide = np.arange(128, dtype=np.float32)
    executor.run(b0=X, b1=wide)
    np.testing.assert_array_equal(executor.get_output(0), 2 * X + 2)
    np.testing.assert_array_equal(executor.get_output(1), 2 * wide + 2)


_ENDS = (BufferKind.INPUT, BufferKind.OUTPUT)


def test_executors_in_threads_of_their_own() -> None:
    """Each opens its GPU in the thread that runs it, and waits for its own work."""
    network, gpus = made(count=2)
    executors = [GraphExecutor(network, memories=[CudaMemory(gpus, at % 2, graphs=True)]) for at in range(4)]

    def work(at: int) -> None:
        for more in range(6):
            executors[at].run(x=X + at + more)
            np.testing.assert_array_equal(executors[at].get_output(0), 4 * (X + at + more))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_a_call_before_any_run_finds_zeros_on_a_gpu() -> None:
    network, gpus = made()
    executor = GraphExecutor(network, memories=[CudaMemory(gpus)])
    executor.call(1)
    np.testing.assert_array_equal(executor.value(2), 0 * X)
    for wrong in (-1, 2, True, "1"):
        with pytest.raises(OptionError, match="there is no call"):
            executor.call(wrong)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="there is no buffer -1; the plan has 4"):
        executor.value(-1)


def test_an_input_that_shows_another_one_is_no_input() -> None:
    network, gpus = made()
    buffers = (*network.plan.buffers, BufferSpec("v", (4, 4), "float32", BufferKind.INPUT, 0))
    damaged = replace(network, plan=replace(network.plan, buffers=buffers, inputs=(0, 4)))
    with pytest.raises(ArtifactError, match="plan net: v is no input with memory of its own"):
        GraphExecutor(damaged, memories=[CudaMemory(gpus)])
    with pytest.raises(ArtifactError, match="plan net: t is no input with memory of its own"):
        GraphExecutor(replace(damaged, plan=replace(damaged.plan, inputs=(1,))))
