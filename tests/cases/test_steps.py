"""Transform steps: the state and the loops of a computation before and after each; tests/cases/steps."""

import pytest

from retune.compiler.lower.build_loops import build_loops
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.state import Annotation, State, replay
from retune.compiler.schedule.steps import (
    Annotate,
    CacheRead,
    CacheWrite,
    ComputeAt,
    ComputeInline,
    ComputeRoot,
    FollowFusedSplit,
    FollowSplit,
    Fuse,
    Pragma,
    Reorder,
    Rfactor,
    Split,
    Step,
    StorageAlign,
    dump_steps,
)
from tests.support.cases import check_case, check_subjects
from tests.support.small_computations import matmul, window

STEPS: dict[str, tuple[ComputeDAG, tuple[Step, ...], Step]] = {
    "annotate": (matmul(4, 16, 8), (), Annotate(2, 1, Annotation.VECTORIZE)),
    "fuse": (matmul(4, 6, 8), (), Fuse(2, (0, 1))),
    "pragma": (matmul(4, 16, 8), (), Pragma(2, 0, "auto_unroll_max_step$16")),
    "reorder": (matmul(4, 6, 8), (), Reorder(2, (2, 0, 1))),
    "split": (matmul(4, 6, 8), (), Split(2, 1, 6, (4,))),
    "follow_split": (window(), (Split(2, 0, 8, (2, 2)),), FollowSplit(1, 0, 0, 1)),
    "follow_fused_split": (window(), (Split(2, 0, 8, (2, 2)),), FollowFusedSplit(1, 0, (0, 0), 1)),
    "storage_align": (matmul(4, 6, 8), (CacheRead(0, "local", (2,)),), StorageAlign(1, 0, 16, 3)),
    "compute_at": (window(), (Split(2, 0, 8, (4,)),), ComputeAt(1, 2, 0)),
    "compute_inline": (window(), (), ComputeInline(1)),
    "compute_root": (window(), (Split(2, 0, 8, (4,)), ComputeAt(1, 2, 0)), ComputeRoot(1)),
    "cache_read": (matmul(4, 6, 8), (), CacheRead(0, "local", (2,))),
    "cache_write": (matmul(4, 6, 8), (), CacheWrite(2)),
    "rfactor": (matmul(4, 6, 10), (Split(2, 2, 10, (4,)),), Rfactor(2, 3, 2)),
}


def _shown(title: str, state: State) -> dict[str, str]:
    return {f"{title}: state": str(state), f"{title}: loops": str(build_loops(state, "k"))}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_makes_of_a_state_what_the_case_says(name: str, update_golden: bool) -> None:
    dag, first, step = STEPS[name]
    state = replay(dag, first)
    head = {"graph": str(dag), "steps before": dump_steps(first), "step": dump_steps((step,))}
    sections = {**head, **_shown("before", state), **_shown("after", state.apply(step))}
    check_case("steps", name, sections, update_golden)


def test_every_step_has_a_case() -> None:
    assert {step.tag for _, _, step in STEPS.values()} == {
        "AN",
        "FU",
        "PR",
        "RE",
        "SP",
        "FSP",
        "FFSP",
        "SA",
        "CA",
        "CI",
        "CR",
        "CHR",
        "CHW",
        "RF",
    }
    check_subjects("steps", STEPS)
