"""Kernels and whole networks for AArch64 compute what those for this machine compute; they run in an emulator."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from retune.compiler import te
from retune.compiler.codegen.backend import default_steps_of
from retune.compiler.core.target import Target
from retune.compiler.driver.build import build_kernel
from retune.compiler.driver.compile_network import compile_graph
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.model.base import RandomModel
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.steps import load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.tune.extract import extract_network
from tests.support.aarch64 import missing, run_kernel, run_network
from tests.support.small_computations import matmul

ARM = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"
NETWORKS = ("mlp", "mobilenet_v2", "minilm_l6", "resnet18")
SAMPLES = 6

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(missing()), reason=f"not installed: {missing()}"),
]


def task_of(dag: ComputeDAG) -> SearchTask:
    return SearchTask("kernel", dag, Target(ARM), hardware_of(Target(ARM), 2))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_computes_what_it_computes_here(name: str, tmp_path: Path) -> None:
    arm = extract_network(name, ARM, 2)
    there = compile_graph(arm.graph, arm.target, threads=2, cut=arm.partition)
    here = extract_network(name, str(Target.host()), 2)
    executor = GraphExecutor(compile_graph(here.graph, here.target, threads=2, cut=here.partition), 2)
    rng = np.random.default_rng(0)
    shapes, dtypes = executor.get_input_info()
    inputs: dict[str, NDArray[Any]] = {
        key: rng.standard_normal(shape).astype(dtypes[key])
        if dtypes[key].startswith("float")
        else rng.integers(1, 2, shape).astype(dtypes[key])
        for key, shape in shapes.items()
    }
    executor.run(**inputs)
    for place, found in enumerate(run_network(there, inputs, tmp_path)):
        wanted = executor.get_output(place)
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max(), rtol=0.0)


@pytest.mark.parametrize(
    ("types", "cpu"),
    [
        (("int8", "int8", "int32"), "neoverse-n1"),
        (("uint8", "uint8", "int32"), "neoverse-n1"),
        (("uint8", "int8", "int32"), "neoverse-n1"),
        (("uint8", "int8", "int32"), "cortex-a53"),
    ],
)
def test_products_of_bytes_are_exact(types: tuple[str, str, str], cpu: str, tmp_path: Path) -> None:
    a, b, r = te.placeholder((9, 60), types[0], "a"), te.placeholder((60, 50), types[1], "b"), te.reduce_axis(60, "r")
    c = te.compute(
        (9, 50),
        lambda i, j: te.sum(te.cast(types[2], a[i, r]) * te.cast(types[2], b[r, j]), r),
        "c",
        {"layout_free_placeholders": (b,)},
    )
    target = Target(f"llvm -mtriple=aarch64-linux-gnu -mcpu={cpu}")
    task = SearchTask("kernel", ComputeDAG([a, b, c]), target, hardware_of(target, 2))
    rng = np.random.default_rng(1)
    left, right = (
        rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, kind, endpoint=True)
        for kind, shape in ((types[0], (9, 60)), (types[1], (60, 50)))
    )
    (found,) = run_kernel(build_kernel(task, default_steps_of(task), "kernel"), [left, right], tmp_path)
    np.testing.assert_array_equal(found, left.astype("int32") @ right.astype("int32"))


@pytest.mark.parametrize("sizes", [(37, 45, 29), (64, 64, 64)])
def test_programs_of_the_search_compute_a_product(sizes: tuple[int, int, int], tmp_path: Path) -> None:
    task = task_of(matmul(*sizes))
    left, right = (
        np.random.default_rng(2).standard_normal(tensor.shape, dtype=np.float32) for tensor in task.dag.inputs
    )
    programs = SketchPolicy(task, RandomModel()).ask(SAMPLES, 0)
    assert len(programs) == SAMPLES
    for number, program in enumerate(programs):
        folder = tmp_path / str(number)
        folder.mkdir()
        (found,) = run_kernel(build_kernel(task, load_steps(program.steps), "kernel"), [left, right], folder)
        np.testing.assert_allclose(found, left @ right, rtol=1e-4, atol=1e-4)
