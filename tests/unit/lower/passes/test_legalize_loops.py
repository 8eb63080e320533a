"""A parallel loop inside another loop is refused; what the pass changes stands in tests/cases/loops."""

import pytest

from retune.compiler.core.errors import LoweringError
from retune.compiler.lower.passes.legalize_loops import legalize_loops
from retune.compiler.schedule.state import Annotation
from retune.compiler.schedule.steps import Annotate, Split
from tests.support.small_computations import doubled, loops


def test_a_parallel_loop_inside_another_is_refused() -> None:
    function = loops(doubled(8), Split(1, 0, 8, (4,)), Annotate(1, 1, Annotation.PARALLEL))
    with pytest.raises(LoweringError, match="lies inside another loop"):
        legalize_loops(function)
