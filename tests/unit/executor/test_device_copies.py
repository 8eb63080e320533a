"""Sums and differences of which some are computed on a processor, some on a GPU whose kernels run thread by thread."""

import numpy as np
import pytest

from compiler import te
from compiler.driver.build import build_kernel
from compiler.executor.heterogeneous import HeterogeneousExecutor
from compiler.executor.network import CompiledNetwork
from compiler.executor.plan import BufferKind, BufferSpec, Call, Plan
from compiler.executor.stores import CudaStore, HostStore
from compiler.lower.gpu.pipeline import lower_for_gpu
from compiler.runtime.artifact import KernelArtifact
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.default import default_steps
from compiler.schedule.default_gpu import default_gpu_steps
from compiler.schedule.state import replay
from compiler.schedule.task import SearchTask
from compiler.target import HardwareParams, Target
from tests.cuda_double import DriverDouble
from tests.unit.search.workloads import GPU

SHAPE = (3, 4)


def _sum_or_difference(kind: str) -> ComputeDAG:
    x, y = te.placeholder(SHAPE, name="x"), te.placeholder(SHAPE, name="y")
    sign = 1.0 if kind == "add" else -1.0
    return ComputeDAG([x, y, te.compute(SHAPE, lambda i, j: x[i, j] + y[i, j] * sign, name="z")])


def _kernels(calls: tuple[tuple[str, int], ...]) -> tuple[list[KernelArtifact], DriverDouble]:
    """The kernels of calls, each named by what it does and where, and the GPU that has those of device 1."""
    kernels, functions = [], []
    for kind, device in dict.fromkeys(calls):
        dag, name = _sum_or_difference(kind), f"{kind}_{device}"
        steps = default_gpu_steps(dag) if device else default_steps(dag)
        target, hardware = (Target("cuda"), GPU) if device else (Target.host(), HardwareParams(1))
        kernels.append(build_kernel(SearchTask("t", dag, target, hardware), steps, name))
        if device:
            functions.append(lower_for_gpu(replay(dag, steps), name, GPU))
    return kernels, DriverDouble(functions)


@pytest.mark.parametrize(
    ("calls", "copies"),
    [
        ((("add", 0), ("subtract", 1)), 3),
        ((("add", 1), ("subtract", 0), ("add", 1)), 5),
        ((("add", 0), ("subtract", 1), ("add", 0)), 3),
    ],
    ids=["one way", "two ways, from the GPU", "two ways, from the processor"],
)
def test_n12_copies_between_a_processor_and_a_gpu(calls: tuple[tuple[str, int], ...], copies: int) -> None:
    names = "abcd"[: len(calls) + 1]
    kinds = [*[BufferKind.INPUT] * len(names), *[BufferKind.INTERMEDIATE] * (len(calls) - 1), BufferKind.OUTPUT]
    buffers = tuple(
        BufferSpec(f"{names}vwy"[place], SHAPE, "float32", kind, place, 64 * (place - len(names)))
        if kind is BufferKind.INTERMEDIATE
        else BufferSpec(f"{names}vwy"[place], SHAPE, "float32", kind, place)
        for place, kind in enumerate(kinds)
    )
    steps, held = [], 0
    for place, (kind, device) in enumerate(calls):
        steps.append(Call(f"{kind}_{device}", (held, place + 1, len(names) + place), device=device))
        held = len(names) + place
    plan = Plan("net", buffers, tuple(steps), tuple(range(len(names))), (held,), 128)
    kernels, driver = _kernels(calls)
    executor = HeterogeneousExecutor(CompiledNetwork(plan, tuple(kernels), {}), [HostStore(), CudaStore(driver)])
    assert len(executor.placed.copies) == copies
    rng = np.random.default_rng(0)
    for _ in range(2):
        arrays = {name: rng.integers(-9, 9, SHAPE).astype(np.float32) for name in names}
        executor.run(**arrays)
        wanted = arrays["a"] + arrays["b"] - arrays["c"] + (arrays["d"] if len(calls) == 3 else 0)
        np.testing.assert_array_equal(executor.get_output(0), wanted)
