"""Networks with kernels for a GPU behind the interface of graph executors: a library, its JSON, debugging, and arrays
that lie on the GPU. Kernels run thread by thread on a double.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import retune
from retune.compiler import debug_executor
from retune.compiler.core.errors import ArtifactError, DeviceError, OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.device import cpu, cuda, opencl
from retune.compiler.runtime.executor import executors
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.library import Library
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.params import save_param_dict
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.tvm.graph_executor import GraphModule, create
from tests.support.fake_cuda import FakeDriver
from tests.support.gpu_network import network_with_gpu, plan_of

X = np.arange(16, dtype=np.float32)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The GPUs of this machine: two of them, which know the kernel of `network_with_gpu`."""
    _, made = network_with_gpu()
    made.count = 2
    monkeypatch.setattr(executors, "driver", lambda: made)
    return made


def on_gpu_alone() -> CompiledNetwork:
    """out = 4 x, all of it on a GPU."""
    network, _ = network_with_gpu()
    gpu = next(kernel for kernel in network.kernels if kernel.device is not None)
    kinds = [BufferKind.INPUT, BufferKind.INTERMEDIATE, BufferKind.OUTPUT]
    buffers = tuple(BufferSpec("xty"[place], (16,), "float32", kind, place) for place, kind in enumerate(kinds))
    plan = Plan("net", buffers, (Call("gpu", (0, 1), device=1), Call("gpu", (1, 2), device=1)), (0,), (2,), 64)
    return CompiledNetwork(plan, (gpu,), {})


def with_weights() -> CompiledNetwork:
    """out = 2 w + 0, on a GPU: the constant w is doubled, and the input is read by nobody."""
    network, _ = network_with_gpu()
    gpu = next(kernel for kernel in network.kernels if kernel.device is not None)
    return CompiledNetwork(plan_of(Call("gpu", (1, 5), device=1)), (gpu,), {1: X})


def tensor(driver: FakeDriver, values: Array, number: int = 0) -> DeviceArray:
    """An array of another library on a GPU."""
    made = DeviceArray.allocate(driver, driver.stream(), number, values.shape, values.dtype.name)
    made.write(values)
    return made


def writes_to(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of every copy to the GPU from now on."""
    found: list[int] = []
    plain = driver.write

    def write(address: int, array: Array, stream: Any) -> None:
        found.append(array.nbytes)
        plain(address, array, stream)

    monkeypatch.setattr(driver, "write", write)
    return found


def test_a_library_runs_where_it_was_compiled_for(driver: FakeDriver) -> None:
    library = Library(network_with_gpu()[0])
    module = GraphModule(library["default"](cuda(1)))
    module.run(b0=X)
    np.testing.assert_array_equal(module.get_output(0), 8 * X)
    assert "open 1" in driver.asked
    assert "open 0" not in driver.asked
    assert module.module.devices == (cpu(), cuda(1))
    assert len(module.benchmark(cuda(1), repeat=2, number=1).results) == 2
    assert module.benchmark(cuda(1), repeat=1, number=1, end_to_end=True, b0=X).mean > 0
    with pytest.raises(OptionError, match=r"network net runs on cpu\(0\) and cuda\(1\), not on cuda\(0\)"):
        module.benchmark(cuda(0))


def test_devices_that_a_library_does_not_run_on(driver: FakeDriver) -> None:
    make = Library(network_with_gpu()[0])["default"]
    for given in ((), (cpu(),), (cuda(0), cuda(1))):
        with pytest.raises(OptionError, match="network net was compiled for one GPU, and given is"):
            make(*given)
    with pytest.raises(OptionError, match=r"networks run on cpu\(0\) and on GPUs such as cuda\(0\), not on opencl"):
        make(opencl(0))
    with pytest.raises(OptionError, match="devices are needed, such as"):
        make("cuda")
    with pytest.raises(DeviceError, match="there is no GPU number 2; this machine has 2"):
        make(cuda(2))
    plan = plan_of(Call("gpu", (0, 2), device=1), Call("gpu", (2, 5), device=2))
    both = Library(CompiledNetwork(plan, on_gpu_alone().kernels, {1: X}))["default"]
    with pytest.raises(OptionError, match=r"for 2 GPUs, and given is cuda\(1\): name them, such as cuda\(0\) and cuda"):
        both(cuda(1))
    assert not driver.launches()


def test_its_json_says_what_runs_on_the_gpu(driver: FakeDriver) -> None:
    library = Library(network_with_gpu()[0])
    text, params = library.get_graph_json(), library.get_graph_params()
    data = json.loads(text)
    assert data["attrs"]["device_index"][1] == [1, 1, 1, 2, 1]
    assert [node.get("attrs", {}).get("device") for node in data["nodes"]] == [None, None, None, "1", None]
    for change in (False, True):  # what another tool wrote says nothing of it
        if change:
            del data["nodes"][3]["attrs"]["device"]
        module = create(json.dumps(data), library, [cpu(0), cuda(0)])
        module.set_input(**params)
        module.run(b0=X)
        np.testing.assert_array_equal(module.get_output(0), 8 * X)
    assert driver.launches() == ["gpu_kernel0"] * 2
    data["nodes"][3]["attrs"]["device"] = "two"
    with pytest.raises(ArtifactError, match="its device is 'two', and must be a number such as 1"):
        create(json.dumps(data), library, cuda(0))
    data["nodes"][3]["attrs"]["device"] = "99"
    with pytest.raises((ArtifactError, OptionError), match="99"):
        create(json.dumps(data), library, cuda(0))


@pytest.mark.usefixtures("driver")
def test_a_library_without_parameters_gets_them_later() -> None:
    library = Library(with_weights())
    module = GraphModule(library.remove_params()["default"](cuda(0)))
    with pytest.raises(OptionError, match="no value was set for the parameters b1"):
        module.run()
    module.load_params(save_param_dict(library.get_graph_params()))
    module.run()
    np.testing.assert_array_equal(module.get_output(0), 2 * X)
    whole = GraphModule(library["default"](cuda(0)))
    whole.load_params(save_param_dict({"b1": X + 1}))
    whole.run()
    np.testing.assert_array_equal(whole.get_output(0), 2 * X + 2)
    module.share_params(whole, save_param_dict({"b1": X}))
    module.run()
    np.testing.assert_array_equal(module.get_output(0), 2 * X + 2)


def test_an_input_goes_to_the_gpu_when_it_was_set(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = GraphExecutor(on_gpu_alone(), memories=[CudaMemory(driver, graphs=True)])
    sent = writes_to(driver, monkeypatch)
    executor.run(x=X)
    executor.run()
    assert sent == [X.nbytes]
    executor.set_input("x", X + 1)
    executor.run()
    assert sent == [X.nbytes] * 2
    np.testing.assert_array_equal(executor.get_output(0), 4 * X + 4)


def test_an_array_of_the_cpu_without_a_copy_is_sent_in_every_run(driver: FakeDriver) -> None:
    executor = GraphExecutor(on_gpu_alone(), memories=[CudaMemory(driver, graphs=True)])
    mine = aligned_copy(X)
    executor.set_input_zero_copy("x", mine)
    for more in range(3):
        mine[...] = X + more
        executor.run()
        np.testing.assert_array_equal(executor.get_output(0), 4 * (X + more))


def test_an_input_and_an_output_that_lie_on_the_gpu(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = GraphExecutor(on_gpu_alone(), memories=[CudaMemory(driver, graphs=True)])
    sent = writes_to(driver, monkeypatch)
    executor.set_input("x", tensor(driver, X))  # which goes away
    sent.clear()
    for _ in range(3):
        executor.run()
        np.testing.assert_array_equal(executor.get_output(0), 4 * X)
    np.testing.assert_array_equal(executor.get_input("x"), X)
    out = tensor(driver, 0 * X)
    sent.clear()
    found: object = executor.get_output("y", out)
    assert found is out
    np.testing.assert_array_equal(out.numpy(), 4 * X)
    assert sent == []
    executor.run(x=X + 1)
    np.testing.assert_array_equal(executor.get_output(0), 4 * X + 4)


def test_memory_of_the_caller_on_the_gpu_is_read_and_written_in_place(driver: FakeDriver) -> None:
    executor = GraphExecutor(on_gpu_alone(), memories=[CudaMemory(driver, graphs=True)])
    executor.run(x=0 * X)
    x, y = tensor(driver, X), tensor(driver, 0 * X)
    executor.set_input_zero_copy("x", x)
    executor.set_output_zero_copy("y", y)
    for more in range(3):
        x.write(X + more)
        executor.run()
        np.testing.assert_array_equal(y.numpy(), 4 * (X + more))
        np.testing.assert_array_equal(executor.get_output(0), 4 * (X + more))
        np.testing.assert_array_equal(executor.get_input(0), X + more)
    assert driver.asked.count("graph of 2") == 2  # one before, one after the change
    executor.run(x=X)  # in memory of its own again
    np.testing.assert_array_equal(x.numpy(), X + 2)
    np.testing.assert_array_equal(y.numpy(), 4 * X)
    here = aligned_copy(0 * X)
    executor.set_output_zero_copy("y", here)
    executor.run(x=2 * X)
    np.testing.assert_array_equal(here, 8 * X)
    np.testing.assert_array_equal(y.numpy(), 4 * X)


def test_arrays_on_a_gpu_that_do_not_fit(driver: FakeDriver) -> None:
    executor = GraphExecutor(on_gpu_alone(), memories=[CudaMemory(driver)])
    small = tensor(driver, np.zeros(4, np.float32))
    elsewhere = tensor(driver, X, 1)
    for call in (
        lambda: executor.set_input("x", small),
        lambda: executor.set_input_zero_copy("x", small),
        lambda: executor.get_output(0, small),
        lambda: executor.set_output_zero_copy("y", small),
    ):
        with pytest.raises(OptionError, match=r"must be float32\[16\], not float32\[4\]"):
            call()
    with pytest.raises(OptionError, match=r"lies on cuda\(1\), and it is read on cuda\(0\): give a NumPy array"):
        executor.set_input("x", elsewhere)
    for give in (executor.get_output, executor.set_output_zero_copy):
        with pytest.raises(OptionError, match=r"is computed on cuda\(0\); the array lies on cuda\(1\)"):
            give(0, elsewhere)
    same = tensor(driver, X)
    executor.set_input_zero_copy("x", same)
    with pytest.raises(OptionError, match="the array shares memory with x, and one of them is written"):
        executor.set_output_zero_copy("y", same)
    mixed = GraphExecutor(network_with_gpu()[0], memories=[CudaMemory(driver)])
    with pytest.raises(OptionError, match=r"lies on cuda\(0\), and it is read on cpu\(0\): give a NumPy array"):
        mixed.set_input_zero_copy("b0", same)
    with pytest.raises(OptionError, match=r"computed on cpu\(0\); the array lies on cuda\(0\)"):
        mixed.get_output(0, same)
    plain = GraphExecutor(_host_alone())
    with pytest.raises(OptionError, match=r"lies on cuda\(0\), and it is read on cpu\(0\): give a NumPy array"):
        plain.set_input("b0", same)


def _host_alone() -> CompiledNetwork:
    network, _ = network_with_gpu()
    host = next(kernel for kernel in network.kernels if kernel.device is None)
    return CompiledNetwork(plan_of(Call("host", (0, 5))), (host,), {1: X})


def test_how_many_bytes_a_gpu_holds(driver: FakeDriver) -> None:
    executor = GraphExecutor(on_gpu_alone(), memories=[CudaMemory(driver)])
    assert executor.memory().devices == X.nbytes * 3  # input, output, and the arena
    assert executor.memory().peak == X.nbytes * 3
    executor.set_output_zero_copy("y", tensor(driver, X))
    assert executor.memory().devices == X.nbytes * 2


def test_code_of_a_kernel_is_loaded_once(driver: FakeDriver) -> None:
    GraphExecutor(on_gpu_alone(), memories=[CudaMemory(driver)])
    assert [line for line in driver.asked if line.startswith("load")] == ["load ptx gpu_kernel0"]


@pytest.mark.usefixtures("driver")
def test_debugging_on_a_gpu(tmp_path: Path) -> None:
    library = Library(network_with_gpu()[0])
    text, params = library.get_graph_json(), library.get_graph_params()
    with debug_executor.create(text, library, [cpu(), cuda(1)], dump_root=tmp_path) as module:
        assert module.folder.name == "_tvmdbg_device_CUDA_1"
        module.set_input(**params)
        module.run(number=1, b0=X)
        names = [node["name"] for node in module.get_graph_nodes()]
        values = [module.get_node_output(number) for number in range(len(names))]
        np.testing.assert_array_equal(values[-3:], [2 * X, 4 * X, 8 * X])
        assert "gpu" in module.get_debug_result()
        module.set_input("b0", X + 1)
        np.testing.assert_array_equal(module.debug_get_output(names[3]), 4 * X + 4)
        for number in (2, 3, 4):  # one by one
            module.execute_node(number)
        np.testing.assert_array_equal(module.get_node_output(4), 8 * X + 8)
        report = module.profile(b0=X)
        assert "cuda1" in report.table()
        assert [len(one) for one in module.run_individual(2, repeat=3)] == [3] * len(names)


def test_times_of_calls_on_a_gpu(driver: FakeDriver) -> None:
    executor = executors.executor_of(network_with_gpu()[0], 1)
    found = executor.profile(repeat=2)
    assert [time.kernel for time in found] == ["host", "gpu", "host"]
    assert executor.time_evaluator("run", cuda(0), number=1)().mean > 0
    assert driver.asked.count("wait") >= 2  # each time that the call is timed


def test_a_gpu_has_a_constant_once(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    network = with_weights()
    sent = writes_to(driver, monkeypatch)
    one, two = (GraphExecutor(network, memories=[CudaMemory(driver)]) for _ in range(2))
    assert sent == [X.nbytes]
    GraphExecutor(network, memories=[CudaMemory(driver, 1)])
    assert sent == [X.nbytes] * 2  # another GPU has it for itself
    one.run()
    one.load_params(save_param_dict({"b1": X + 1}))
    for executor in (one, two):
        executor.run()
    np.testing.assert_array_equal(one.get_output(0), 2 * X + 2)
    np.testing.assert_array_equal(two.get_output(0), 2 * X)
    del one, two, executor
    sent.clear()
    GraphExecutor(network, memories=[CudaMemory(driver)])
    assert sent == [X.nbytes]  # nobody had it any more


@pytest.mark.usefixtures("driver")
def test_a_loaded_network_runs_on_the_gpu_it_was_compiled_for(tmp_path: Path) -> None:
    path = tmp_path / "net.retune"
    on_gpu_alone().save(path)
    network = retune.load(path)
    np.testing.assert_array_equal(network(X), 4 * X)
    np.testing.assert_array_equal(network(x=X + 1), 4 * (X + 1))
