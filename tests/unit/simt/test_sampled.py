"""Every sketch for GPUs of every operator that is tuned, executed thread by thread, computes the definition."""

import numpy as np
import pytest

from retune.compiler.lower.gpu.pipeline import lower_for_gpu
from retune.compiler.schedule.state import replay
from retune.compiler.search.options import SearchOptions
from retune.compiler.search.spaces import build_spaces
from retune.compiler.te.evaluate import evaluate
from tests.support.property.programs import inputs_of
from tests.support.simt.execute import execute
from tests.support.simt_operators import OPERATORS
from tests.support.tiers import long_except
from tests.support.workloads import GPU, gpu_task_of

PROGRAMS = 3
"""Of each sketch and placement."""


@pytest.mark.parametrize("name", long_except(["matmul", "depthwise", "softmax", "minimum"], OPERATORS))
def test_every_sketch_computes_the_definition_without_races(name: str) -> None:
    dag = OPERATORS[name]()
    rng = np.random.default_rng(2)
    values = inputs_of(dag, rng)
    wanted = evaluate(dag.outputs, values)
    for space in build_spaces(gpu_task_of(name, dag), SearchOptions()):
        count = 0
        for _, group in space.groups(space.sample(rng, 64)):
            for row in group.rows[space.legal(group)][:PROGRAMS]:
                count += 1
                function = lower_for_gpu(replay(dag, space.steps(row)), "kernel", GPU, check=True)
                found = execute(function, [values[tensor] for tensor in dag.inputs])
                for one, other in zip(found, wanted, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=str(function))
        assert count
