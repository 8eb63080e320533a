"""Any schedule computes what the definition says: random programs, random schedules, fenced buffers, compared with the
NumPy oracle.
"""

import contextlib

import numpy as np
import pytest

from compiler.driver.build import build_kernel, kernel_source
from compiler.errors import LoweringError
from compiler.runtime.buffers import FencedArray
from compiler.runtime.loader import load_kernels
from compiler.schedule.dag import ComputeDAG
from compiler.schedule.default import default_steps
from compiler.schedule.steps import Step, dump_steps, load_steps
from compiler.schedule.task import SearchTask
from compiler.target import HardwareParams, Target
from compiler.te.evaluate import evaluate
from tests.property.programs import inputs_of, random_program, random_steps

HARDWARE = HardwareParams(2)


def check(dag: ComputeDAG, steps: tuple[Step, ...], rng: np.random.Generator, threads: int) -> None:
    """Build, run in fenced buffers and compare."""
    task = SearchTask("random", dag, Target.host(), HARDWARE)
    artifact = build_kernel(task, steps, "kernel")
    values = inputs_of(dag, rng)
    expected = evaluate(dag.outputs, values)
    fences = []
    for spec, tensor in zip(artifact.args, (*dag.inputs, *dag.outputs), strict=True):
        fence = FencedArray(spec.shape, spec.dtype)
        if spec.is_output:
            fence.array[...] = np.nan
        elif spec.packing is not None:
            fence.array.reshape(-1)[:] = spec.packing.pack(values[tensor])
        else:
            fence.array[...] = values[tensor]
        fences.append(fence)
    load_kernels([artifact])["kernel"].bind([fence.array for fence in fences], threads)()
    context = f"\n{dag}\n{dump_steps(steps)}\n{kernel_source(task, steps, 'loops')}"
    for fence in fences:
        assert fence.damage() == "", context
    for fence, wanted in zip(fences[-len(expected) :], expected, strict=True):
        np.testing.assert_allclose(fence.array, wanted, rtol=2e-5, atol=2e-5, err_msg=context)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_schedule_computes_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dag = random_program(rng)
    steps = random_steps(dag, rng)
    assert load_steps(dump_steps(steps)) == steps
    with contextlib.suppress(LoweringError):  # a parallel loop inside another one, say: refused, never miscompiled
        check(dag, steps, rng, threads=1 + seed % 2)


@pytest.mark.parametrize("seed", range(12))
def test_the_untuned_schedule_computes_the_definition(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    dag = random_program(rng)
    check(dag, default_steps(dag), rng, threads=2)
