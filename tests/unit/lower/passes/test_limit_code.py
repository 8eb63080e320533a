"""An unroll that asks for too much code is refused by name."""

import pytest

from retune.compiler.core.errors import LoweringError
from retune.compiler.core.target import HardwareParams
from retune.compiler.lower.passes.limit_code import limit_code
from retune.compiler.lower.pipeline import lower
from retune.compiler.schedule.state import Annotation, replay
from retune.compiler.schedule.steps import Annotate
from tests.support.small_computations import doubled, loops, matmul

UNROLL = Annotation.UNROLL


def test_a_long_unrolled_nest_is_refused() -> None:
    everything = (Annotate(2, 0, UNROLL), Annotate(2, 1, UNROLL))
    with pytest.raises(LoweringError, match=r"unrolling i.s2 makes 33554432 statements, more than 16384"):
        limit_code(loops(matmul(4096, 4096, 2), *everything))
    with pytest.raises(LoweringError, match="unrolling i"):
        lower(replay(matmul(4096, 4096, 2), everything), "k", HardwareParams(1))


def test_what_is_short_enough_is_left_alone() -> None:
    for function in (loops(doubled(16384), Annotate(1, 0, UNROLL)), loops(matmul(4096, 4096, 2))):
        assert limit_code(function) is function
