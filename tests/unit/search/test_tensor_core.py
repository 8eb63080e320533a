"""The search's programs for tensor cores: when there are any, and that all which are legal can be lowered."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import LoweringError, TargetError
from retune.compiler.core.target import Target
from retune.compiler.driver.hardware import hardware_of
from retune.compiler.ir.stmt import walk_stmt as walk
from retune.compiler.ir.tensor_core import Mma, WarpgroupMma
from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.model.boosted_trees import XGBModel
from retune.compiler.model.features import extract
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate, AsMatmul, load_steps
from retune.compiler.schedule.task import SearchTask
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.search.program_features import scored_hardware
from retune.compiler.search.rules import SketchContext
from retune.compiler.search.sketch import derive_sketches
from retune.compiler.search.spaces import build_spaces
from tests.support.property.checks import checked
from tests.support.property.programs import inputs_of
from tests.support.tensor_core_products import PRODUCTS, TF32, product, sampled, tensor_space
from tests.support.tiers import long_except, long_rows
from tests.support.workloads import GPU, double_matmul, matmul

VTHREAD = int(Annotation.VTHREAD)


def uses(dag: ComputeDAG, target: str, **options: Any) -> list[str]:
    """The kinds of instructions in the sketches for a target."""
    context = SketchContext(GPU, SearchOptions(**options), None, Target(target))
    steps = (step for sketch in derive_sketches(dag, context) for step in sketch.steps)
    return [step.kind for step in steps if isinstance(step, AsMatmul)]


def test_only_gpus_that_have_them_use_tensor_cores() -> None:
    dag = product(64, 64, 64)
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"):
        assert uses(dag, f"cuda -arch={arch}") == ["f16"]
    assert uses(dag, "cuda -arch=sm_75") == []
    assert uses(dag, "cuda") == []
    assert uses(dag, "cuda -arch=sm_80", without_rules=("TensorCoreTiling",)) == []


def test_float32_is_strict_unless_the_target_says_otherwise() -> None:
    dag = matmul(64, 64, 64)
    assert uses(dag, "cuda -arch=sm_80") == []
    assert uses(dag, "cuda -arch=sm_80 -math=strict") == []
    assert uses(dag, "cuda -arch=sm_80 -math=tf32") == ["tf32"]
    strict, loose = (SearchTask("t", dag, Target(f"cuda -arch=sm_80{math}"), GPU) for math in ("", " -math=tf32"))
    assert strict.identity != loose.identity
    with pytest.raises(TargetError, match="cannot read math 'fast'"):
        Target("cuda -math=fast")
    with pytest.raises(TargetError, match="llvm has no math"):
        Target("llvm", math="tf32")
    assert str(TF32) == "cuda -arch=sm_80 -math=tf32"
    assert Target(str(TF32)) == TF32


def test_the_other_sketches_are_still_there() -> None:
    dag = product(64, 64, 64)
    context = SketchContext(GPU, SearchOptions(), None, TF32)
    sketches = derive_sketches(dag, context)
    plain = derive_sketches(dag, replace(context, target=None))
    assert [sketch.steps for sketch in sketches[1:]] == [sketch.steps for sketch in plain]


def test_two_products_of_a_graph_are_both_done_by_them() -> None:
    dag = double_matmul(64)
    kinds = [
        sum(isinstance(step, AsMatmul) for step in space.sketch) for space in build_spaces(task(dag), SearchOptions())
    ]
    assert sorted(kinds)[-1] == 2
    space = max(
        build_spaces(task(dag), SearchOptions()), key=lambda one: sum(isinstance(s, AsMatmul) for s in one.sketch)
    )
    steps = next(sampled(space, 8))
    function = lower_for_gpu(replay(dag, steps), "k", GPU, check=True)
    assert all(any(isinstance(stmt, Mma) for stmt in walk(kernel.body.body)) for kernel in function.kernels)


def task(dag: ComputeDAG) -> SearchTask:
    return SearchTask("product", dag, TF32, GPU)


def test_a_row_is_found_again_from_its_steps() -> None:
    space = tensor_space(product(64, 48, 96))
    for row in space.sample(np.random.default_rng(0), 40):
        found = space.row_of(space.steps(row))
        assert found is not None
        np.testing.assert_array_equal(found, row)


def test_lengths_are_multiples_of_the_fragment() -> None:
    space = tensor_space(product(256, 256, 256))
    choices = [width.choices for width in space.layout.widths]
    assert choices[0] == (16, 32, 64, 128)
    assert choices[2] == (8, 16, 32, 64, 128, 256)
    assert choices[6] == (1, 2, 4, 8)
    assert not space.layout.splits
    assert not space.layout.unroll or all(stage != 4 for stage, _ in space.layout.unroll)


@pytest.mark.parametrize("name", long_except(["f16", "conv2d with stride"], PRODUCTS))
def test_what_the_mask_lets_pass_is_lowered_within_the_limits(name: str) -> None:
    dag = PRODUCTS[name]()
    small = replace(GPU, max_shared_memory_per_block=16384, max_threads_per_block=256)
    space = tensor_space(dag, hardware=small)
    passed = 0
    for _, group in space.groups(space._draw(np.random.default_rng(0), 200)):
        for row, legal in zip(group.rows, space.legal(group), strict=True):
            state = replay(dag, space.steps(row))
            if not legal:
                continue
            (kernel,) = lower_for_gpu(state, "k", small).kernels
            assert kernel.bytes_of("shared") <= 16384
            assert kernel.threads <= 256
            passed += 1
    assert passed > 5


@pytest.mark.parametrize(("kibibytes", "count"), long_rows([(163, 40)], [(48, 100), (163, 40)]))
def test_shared_memory_is_counted_as_it_is_allocated(kibibytes: int, count: int) -> None:
    """What the mask refuses for its shared memory, the lowering refuses too."""
    dag = product(512, 512, 512)
    tight = replace(GPU, max_shared_memory_per_block=kibibytes << 10)
    roomy = replace(GPU, max_shared_memory_per_block=1 << 20)
    space = tensor_space(dag, hardware=roomy)
    seen: set[bool] = set()
    for _, group in space.groups(space._draw(np.random.default_rng(0), count)):
        legal_here = replace(space, hardware=tight).legal(group)
        for row, fits, legal in zip(group.rows, space.legal(group), legal_here, strict=True):
            if not fits:
                continue
            state = replay(dag, space.steps(row))
            (kernel,) = lower_for_gpu(state, "k", roomy).kernels
            assert bool(legal) == (kernel.bytes_of("shared") <= tight.max_shared_memory_per_block)
            seen.add(bool(legal))
            if not legal:
                with pytest.raises(LoweringError, match="bytes of shared memory"):
                    lower_for_gpu(state, "k", tight)
    assert seen == {False, True}


def test_features_are_finite() -> None:
    dag = PRODUCTS["conv2d"]()
    space, hardware = tensor_space(dag), scored_hardware(task(dag))
    for _, group in space.groups(space.sample(np.random.default_rng(0), 32)):
        found = extract(group.nests, group.choices, hardware, count=len(group.rows))
        assert np.isfinite(found).all()


@pytest.mark.parametrize("name", ["bias and relu", "tf32", "conv2d with stride", "attention"])
def test_as_ordinary_loops_a_program_computes_the_definition(name: str) -> None:
    dag = PRODUCTS[name]()
    values = inputs_of(dag, np.random.default_rng(1))
    for steps in sampled(tensor_space(dag), 2):
        bound = tuple(step for step in steps if not (isinstance(step, Annotate) and step.annotation >= VTHREAD))
        checked(dag, bound, values, 2, [2e-1 if name == "bias and relu" else 1e-3])


def test_programs_of_warpgroups_are_first_where_a_gpu_has_them() -> None:
    """The first batch for a large product, from the analytical model alone."""
    target = Target("cuda -arch=sm_90a")
    task = SearchTask("matmul", product(4096, 4096, 4096, out="float16"), target, hardware_of(target, 1))
    programs = SketchPolicy(task, XGBModel(), seed=0).ask(16, 0)
    groups = 0
    for program in programs:
        (kernel, *_) = lower_for_gpu(replay(task.dag, load_steps(program.steps)), "k", task.hardware).kernels
        groups += any(isinstance(stmt, WarpgroupMma) for stmt in walk(kernel.body.body))
    assert groups >= 8
