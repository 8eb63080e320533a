"""What a GPU program computes when its blocks and threads run one after the other on a CPU: the definition."""

import numpy as np
import pytest

from tests.support.gpu_spaces import DAGS, one_after_the_other, spaces_of
from tests.support.property.checks import checked
from tests.support.property.programs import inputs_of
from tests.support.tiers import long_except


@pytest.mark.parametrize("name", long_except(["matmul", "pool", "min", "softmax"], DAGS))
def test_gpu_programs_compute_the_definition(name: str) -> None:
    dag = DAGS[name]
    rng = np.random.default_rng(1)
    values = inputs_of(dag, rng)
    # Transformed weights as drawn make results of hundreds out of which a tile's small ones are differences.
    tolerances = [1e-2] if name == "winograd" else [1e-4]
    for space in spaces_of(dag):
        for _, group in space.groups(space.sample(rng, 1500)):
            rows = group.rows[space.legal(group)][: 1 if name == "winograd" else 3]
            assert len(rows)
            for row in rows:
                checked(dag, one_after_the_other(space.steps(row)), values, 2, tolerances)


def test_a_thread_gathers_what_it_reads_itself() -> None:
    """The loops around the gather were fused and split again: each thread still has one tile of one channel."""
    (space,) = spaces_of(DAGS["winograd"])
    for _, group in space.groups(space.sample(np.random.default_rng(0), 4)):
        shape = next(nest.write.shape for nest in group.nests if nest.op.name == "input_tile")
        assert [np.unique(extent).tolist() for extent in shape] == [[6], [6], [1], [1]]
