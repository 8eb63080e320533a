"""Code and features of small kernels under their default schedule: LLVM IR for an AVX-512 CPU (tests/cases/llvm), PTX
for sm_80 (tests/cases/ptx), and what the cost model sees of both (tests/cases/features).
"""

import pytest

from retune.compiler.codegen.backend import backend_of, default_steps_of
from retune.compiler.core.target import HardwareParams
from retune.compiler.model.features import FEATURE_NAMES, extract
from retune.compiler.schedule.choices import choices_of
from retune.compiler.schedule.state import replay
from retune.compiler.schedule.statements import statement_nests
from retune.compiler.schedule.task import SearchTask
from tests.support.cases import check_case, check_cases, check_subjects
from tests.support.small_kernels import CPU, CPU_KERNELS, GPU, KERNELS, kernel_task


def _sections(task: SearchTask, stage: str) -> dict[str, str]:
    steps, backend = default_steps_of(task), backend_of(task.target)
    code = backend.print_stage(task, steps, stage).splitlines()
    # Every module declares the same functions of the math library, and comments name the compiler.
    kept = [line for line in code if not line.startswith(("declare ", "//"))]
    loops = backend.print_stage(task, steps, "loops")
    return {"target": str(task.target), "input": loops, "pass": stage, "output": "\n".join(kept).strip()}


@pytest.mark.parametrize("name", [*KERNELS, *CPU_KERNELS])
def test_llvm_of_a_kernel_is_that_of_its_case(name: str, update_golden: bool) -> None:
    dag = (KERNELS | CPU_KERNELS)[name]()
    check_case("llvm", name, _sections(kernel_task(dag, CPU), "llvm"), update_golden)


@pytest.mark.parametrize("name", KERNELS)
def test_ptx_of_a_kernel_is_that_of_its_case(name: str, update_golden: bool) -> None:
    check_case("ptx", name, _sections(kernel_task(KERNELS[name](), GPU), "ptx"), update_golden)


def _features(task: SearchTask) -> dict[str, str]:
    """The state, and for every statement the features that are not 0."""
    state = replay(task.dag, default_steps_of(task))
    table = extract(statement_nests(state), choices_of(state), HardwareParams(num_cores=4))[0]
    sections = {"input": str(state), "pass": "features"}
    for number, row in enumerate(table):
        values = {name: float(value) for name, value in zip(FEATURE_NAMES, row, strict=True) if value}
        sections[f"statement {number}"] = "\n".join(f"{name} {value:.4g}" for name, value in values.items())
    return sections


@pytest.mark.parametrize(
    "name", ["matmul", "row_minimum", "window", "depthwise", "add_broadcast", "transpose", "gather"]
)
def test_features_of_a_kernel_are_those_of_its_case(name: str, update_golden: bool) -> None:
    cases = {target.kind: _features(kernel_task(KERNELS[name](), target)) for target in (CPU, GPU)}
    check_cases("features", name, cases, update_golden)


def test_every_file_has_a_kernel() -> None:
    check_subjects("llvm", [*KERNELS, *CPU_KERNELS])
    check_subjects("ptx", KERNELS)
