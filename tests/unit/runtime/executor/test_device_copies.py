"""Sums and differences of which some are computed on a CPU, some on a GPU whose kernels run thread by thread."""

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.target import HardwareParams, Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.runtime.artifact import KernelArtifact
from retune.compiler.runtime.executor.cuda_memory import CudaMemory
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec, Call, Plan
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.cpu import default_steps
from retune.compiler.schedule.default.gpu import default_gpu_steps
from retune.compiler.schedule.state import replay as replay_steps
from retune.compiler.schedule.task import SearchTask
from tests.support.fake_cuda import FakeDriver
from tests.support.small_computations import doubled
from tests.support.workloads import GPU

SHAPE = (3, 4)


def _sum_or_difference(kind: str) -> ComputeDAG:
    x, y = te.placeholder(SHAPE, name="x"), te.placeholder(SHAPE, name="y")
    sign = 1.0 if kind == "add" else -1.0
    return ComputeDAG([x, y, te.compute(SHAPE, lambda i, j: x[i, j] + y[i, j] * sign, name="z")])


def _kernels(calls: tuple[tuple[str, int], ...]) -> tuple[list[KernelArtifact], FakeDriver]:
    """The kernels of calls, each named by what it does and where, and the GPU that has those of device 1."""
    kernels, functions = [], []
    for kind, device in dict.fromkeys(calls):
        dag, name = _sum_or_difference(kind), f"{kind}_{device}"
        steps = default_gpu_steps(dag) if device else default_steps(dag)
        target, hardware = (Target("cuda"), GPU) if device else (Target.host(), HardwareParams(1))
        kernels.append(build_kernel(SearchTask("t", dag, target, hardware), steps, name))
        if device:
            functions.append(lower_for_gpu(replay_steps(dag, steps), name, GPU))
    return kernels, FakeDriver(functions)


Calls = tuple[tuple[str, int], ...]
"""What is done one after the other, each to the last result and the next input, and on which device."""


def _network(calls: Calls) -> tuple[CompiledNetwork, FakeDriver]:
    """a, b, ... joined by calls."""
    names = "abcde"[: len(calls) + 1]
    labels = f"{names}uvwy"
    last = len(names) + len(calls) - 1
    buffers = []
    for place in range(last + 1):
        kind = BufferKind.INPUT if place < len(names) else BufferKind.INTERMEDIATE
        kind = BufferKind.OUTPUT if place == last else kind
        offset = 64 * (place - len(names)) if kind is BufferKind.INTERMEDIATE else 0
        buffers.append(BufferSpec(labels[place], SHAPE, "float32", kind, place, offset))
    steps, held = [], 0
    for place, (kind_of_call, device) in enumerate(calls):
        steps.append(Call(f"{kind_of_call}_{device}", (held, place + 1, len(names) + place), device=device))
        held = len(names) + place
    kernels, driver = _kernels(calls)
    plan = Plan("net", tuple(buffers), tuple(steps), tuple(range(len(names))), (held,), 64 * len(calls))
    return CompiledNetwork(plan, tuple(kernels), {}), driver


def _check(executor: GraphExecutor, calls: Calls, runs: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(runs):
        arrays = {name: rng.integers(-9, 9, SHAPE).astype(np.float32) for name in "abcde"[: len(calls) + 1]}
        executor.run(**arrays)
        first, *others = arrays.values()
        for array, (kind, _) in zip(others, calls, strict=True):
            first = first + array if kind == "add" else first - array
        np.testing.assert_array_equal(executor.get_output(0), first)


@pytest.mark.parametrize(
    ("calls", "copies"),
    [
        ((("add", 0), ("subtract", 1)), 3),
        ((("add", 1), ("subtract", 0), ("add", 1)), 6),
        ((("add", 0), ("subtract", 1), ("add", 0)), 3),
    ],
    ids=["one way", "two ways, from the GPU", "two ways, from the CPU"],
)
def test_a_graph_copies_between_cpu_and_gpu(calls: Calls, copies: int) -> None:
    network, driver = _network(calls)
    executor = GraphExecutor(network, memories=[CudaMemory(driver)])
    assert len(executor.placed.copies) == copies
    _check(executor, calls, 2)


def test_a_captured_cuda_graph_computes_the_same() -> None:
    dag = doubled(16)
    steps, kinds = default_gpu_steps(dag), [BufferKind.INPUT, *[BufferKind.INTERMEDIATE] * 2, BufferKind.OUTPUT]
    kernel = build_kernel(SearchTask("t", dag, Target("cuda"), GPU), steps, "twice")
    buffers = tuple(
        BufferSpec(f"b{place}", (16,), "float32", kind, place, 64 * (place == 2)) for place, kind in enumerate(kinds)
    )
    calls = tuple(Call("twice", (place, place + 1), device=1) for place in range(3))
    network = CompiledNetwork(Plan("net", buffers, calls, (0,), (3,), 128), (kernel,), {})
    asked = {}
    for replay in (False, True):
        driver = FakeDriver([lower_for_gpu(replay_steps(dag, steps), "twice", GPU)])
        executor = GraphExecutor(network, memories=[CudaMemory(driver, graphs=replay)])
        for start in range(3):
            x = np.arange(start, start + 16, dtype=np.float32)
            executor.run(b0=x)
            np.testing.assert_array_equal(executor.get_output(0), 8 * x)
        asked[replay] = [line for line in driver.asked if line.startswith("graph of")]
        assert len(driver.launches()) == 3 * 3
    assert asked == {False: [], True: ["graph of 3"]}
