"""The memory plan against its one promise: what lives together does not overlap."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.partition.memory_plan import ALIGNMENT, MemoryPlan, Request, plan_memory

requests = st.builds(
    lambda nbytes, first, length: Request(nbytes, first, first + length),
    nbytes=st.integers(0, 1000),
    first=st.integers(0, 20),
    length=st.integers(0, 8),
)


@given(st.lists(requests, max_size=25))
def test_live_buffers_never_overlap(wanted: list[Request]) -> None:
    plan = plan_memory(wanted)
    spans = [(offset, offset + request.nbytes) for offset, request in zip(plan.offsets, wanted, strict=True)]
    for (one, a), (two, b) in itertools.combinations(zip(wanted, spans, strict=True), 2):
        if one.first <= two.last and two.first <= one.last:
            assert a[1] <= b[0] or b[1] <= a[0]
    assert all(offset % ALIGNMENT == 0 for offset in plan.offsets)
    assert all(stop <= plan.arena_bytes for _, stop in spans)


def test_a_chain_needs_two_buffers() -> None:
    chain = [Request(640, step, step + 1) for step in range(10)]
    plan = plan_memory(chain)
    assert plan == MemoryPlan(plan.offsets, arena_bytes=1280)
    assert set(plan.offsets) == {0, 640}


def test_the_tightest_gap_is_taken() -> None:
    # At steps 2..3 only B and D of the first four live; the last request fits both gaps and takes the smaller one, A's.
    early = [Request(512, 0, 0), Request(448, 0, 3), Request(384, 0, 1), Request(320, 0, 3)]
    late = [Request(64, 2, 3), Request(512, 2, 3)]
    plan = plan_memory([*early, *late])
    assert plan.offsets[5] == plan.offsets[0]
    assert plan.offsets[4] == plan.offsets[2]


@pytest.mark.parametrize("request_", [Request(-1, 0, 0), Request(8, 3, 2)])
def test_impossible_requests_are_refused(request_: Request) -> None:
    with pytest.raises(DefinitionError, match="no buffer"):
        plan_memory([request_])
