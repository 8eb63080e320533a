"""Functions that are built for a GPU, of which a double stands for one."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from retune.compiler import auto_scheduler
from retune.compiler.core.errors import DeviceError, TargetError
from retune.compiler.core.target import Target
from retune.compiler.driver import build as build_module
from retune.compiler.driver.build import build
from retune.compiler.driver.hardware import hardware_of_gpu
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.cuda.array import DeviceArray
from retune.compiler.runtime.cuda.function import CudaFunction
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.state import replay
from tests.support.fake_cuda import DEVICE, FakeDriver
from tests.support.workloads import matmul, softmax


def function_of(dag: ComputeDAG, monkeypatch: pytest.MonkeyPatch) -> tuple[CudaFunction, FakeDriver]:
    """The default schedule as a function, and the GPU that runs it."""
    known = lower_for_gpu(replay(dag, default_gpu_steps(dag)), "kernel", hardware_of_gpu(DEVICE))
    driver = FakeDriver([known])
    monkeypatch.setattr(build_module, "driver", lambda: driver)
    made = build(dag, target=Target("cuda"))
    assert isinstance(made, CudaFunction)
    return made, driver


def factors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 10)).astype("float32"), rng.standard_normal((10, 16)).astype("float32")


def test_arrays_of_numpy_go_there_and_results_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    product, driver = function_of(matmul(6, 16, 10), monkeypatch)
    assert Target(product.artifact.target).arch == DEVICE.arch
    left, right = factors()
    (result,) = product.outputs()
    product(*product.prepared(left, right), result, threads=2)
    np.testing.assert_allclose(result, left @ right, rtol=1e-5)
    assert driver.asked[-1] == "wait"


def test_arrays_on_the_gpu_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    product, driver = function_of(matmul(6, 16, 10), monkeypatch)
    there = [product.on_gpu(array) for array in (*factors(), np.zeros((6, 16), "float32"))]
    pieces = len(driver.pieces)
    product(*there)
    assert len(driver.pieces) == pieces
    np.testing.assert_allclose(there[2].numpy(), np.matmul(*factors()), rtol=1e-5)


def test_threads_do_not_share_what_lies_between_two_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, driver = function_of(softmax(3, 40), monkeypatch)
    assert soft.artifact.workspace_bytes
    began: list[int] = []
    plain = driver.launch

    def launch(*given: Any) -> None:
        began.append(threading.get_ident())
        time.sleep(0.01)
        plain(*given)

    monkeypatch.setattr(driver, "launch", launch)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: soft(np.zeros((3, 40), "float32"), np.zeros((3, 40), "float32")), range(2)))
    kernels = len(began) // 2
    assert kernels > 1
    assert [len(set(began[:kernels])), len(set(began[kernels:]))] == [1, 1]


def test_what_lies_between_two_kernels_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, _ = function_of(softmax(3, 40), monkeypatch)
    assert soft.artifact.workspace_bytes
    x = np.random.default_rng(1).standard_normal((3, 40)).astype("float32")
    (result,) = soft.outputs()
    soft(x, result)
    np.testing.assert_allclose(result, np.exp(x) / np.exp(x).sum(axis=1, keepdims=True), rtol=1e-5)


def test_the_gpu_tells_how_long_a_call_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    product, driver = function_of(matmul(6, 16, 10), monkeypatch)
    driver.seconds["kernel_kernel0"] = 2e-3
    found = product.seconds(*factors(), *product.outputs(), passes=3)
    np.testing.assert_allclose(found, [2e-3] * 3)


def test_what_does_not_fit_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    product, driver = function_of(matmul(6, 16, 10), monkeypatch)
    left, right = factors()
    (result,) = product.outputs()
    elsewhere = DeviceArray.allocate(driver, "stream", 1, (6, 10), "float32")
    wrong: list[tuple[list[Any], str]] = [
        ([left, right], "kernel takes 3 arrays, not 2"),
        ([left, left, result], r"kernel: B is float32\[10, 16\], the array given for it is float32\[6, 10\]"),
        ([left.astype("float64"), right, result], "kernel: A is float32"),
        ([left, right, result[:, ::-1]], "kernel: C is written: give a writable array without gaps"),
        ([elsewhere, right, result], r"kernel: A lies on cuda\(1\), not on cuda\(0\)"),
        ([left, [1, 2], result], "a list gives no array of DLPack"),
    ]
    for arrays, words in wrong:
        with pytest.raises(DeviceError, match=words):
            product(*arrays)
    with pytest.raises(DeviceError, match="kernel has 2 inputs, not 1"):
        product.prepared(left)


def test_a_script_builds_for_a_gpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    dag = matmul(6, 16, 10)
    _, driver = function_of(dag, monkeypatch)
    whole = auto_scheduler.ComputeDAG([*dag.inputs, *dag.outputs])
    schedule, args = whole.apply_steps_from_state(whole.get_init_state())
    driver.functions = [lower_for_gpu(replay(ComputeDAG(args), ()), "kernel", hardware_of_gpu(DEVICE))]
    product = auto_scheduler.build(schedule, args, "cuda")
    (result,) = product.outputs()
    product(*factors(), result)
    np.testing.assert_allclose(result, np.matmul(*factors()), rtol=1e-5)
    with pytest.raises(TargetError, match="the GPU here, Double 0, is sm_90a and runs no code for sm_100"):
        auto_scheduler.build(schedule, args, "cuda -arch=sm_100")
