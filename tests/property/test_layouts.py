"""Whatever is done about the layout of constants, random programs compute the definition."""

import contextlib

import numpy as np
import pytest

from retune.compiler.core.errors import LoweringError
from retune.compiler.lower.layout_rewrite import relayouts, rewrite_layout
from retune.compiler.model import RandomModel
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.default.layout import LayoutRewriteOption
from retune.compiler.schedule.steps import Step, load_steps
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.policy import SketchPolicy
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.tensor import Tensor
from tests.support.property.checks import checked
from tests.support.property.computations import random_computation
from tests.support.property.programs import inputs_of, random_program
from tests.support.property.wild import wild_steps
from tests.support.tiers import long_except
from tests.support.workloads import matmul, task_of

NONE, INSERT, PRE = LayoutRewriteOption
Values = dict[Tensor, np.ndarray]


def check_every_form(dag: ComputeDAG, steps: tuple[Step, ...], values: Values) -> int:
    """Run a program with every option, and its rewritten graphs; how many inputs those laid out again.

    Raises: AssertionError when one is wrong, LoweringError when the program is refused.
    """
    for option in LayoutRewriteOption:
        checked(dag, steps, values, 2, layout=option)
    changes = relayouts(dag, steps)
    expected = evaluate(dag.outputs, values)
    for option in (INSERT, PRE):
        changed, rewritten = rewrite_layout(dag, steps, option)
        laid_out = {dag.id_of(tensor): array for tensor, array in values.items()}
        if option is PRE:
            for change in changes:
                laid_out[change.source] = change.packing.pack(laid_out[change.source]).reshape(change.shape)
        given = {new: laid_out[dag.id_of(old)] for old, new in zip(dag.inputs, changed.inputs, strict=True)}
        checked(changed, rewritten, given, 2, layout=NONE)
        for found, wanted in zip(evaluate(changed.outputs, given), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    return len(changes)


@pytest.mark.parametrize("seed", long_except([0], range(3)))
def test_random_programs_with_rewritten_layouts_compute_the_same(seed: int) -> None:
    laid_out = tried = 0
    rng = np.random.default_rng(4000 + seed)
    while tried < 4:
        dag = random_computation(rng) if tried % 2 else random_program(rng)
        if not dag.layout_free:
            continue
        steps = wild_steps(dag, rng)
        with contextlib.suppress(LoweringError):  # refused, as such steps may be
            laid_out += check_every_form(dag, steps, dict(inputs_of(dag, rng)))
            tried += 1
    assert laid_out > 0


def test_sampled_programs_with_rewritten_layouts_compute_the_same() -> None:
    dag = matmul(16, 16, 16)
    rng = np.random.default_rng(0)
    values = {tensor: rng.standard_normal(tensor.shape).astype("float32") for tensor in dag.inputs}
    policy = SketchPolicy(task_of("matmul", dag), RandomModel(0), SearchOptions(population=64, generations=1), seed=3)
    assert sum(check_every_form(dag, load_steps(program.steps), values) for program in policy.ask(6, 0)) >= 4
