"""The steps of tensor cores: their log form, their Python text, and what they refuse."""

import pytest

from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule.primitives import as_matmul, compute_at, pipeline, split, tensorize
from retune.compiler.schedule.python_text import print_python_code_from_state
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.steps import AsMatmul, Pipeline, Split, dump_steps, load_steps
from tests.support.tensor_core_products import product, tensor_space, with_lengths
from tests.support.workloads import matmul


def test_they_are_logged_and_read_back() -> None:
    steps = (AsMatmul(2, "bf16"), Pipeline(4, 1, 3))
    assert dump_steps(steps) == '[["MM",2,"bf16"],["PL",4,1,3]]'
    assert load_steps(dump_steps(steps)) == steps
    with pytest.raises(ScheduleError, match="is no text"):
        load_steps('[["MM",2,3]]')


def test_a_program_is_replayed_from_its_log_and_from_its_python_text() -> None:
    dag = product(64, 48, 64)
    steps = with_lengths(tensor_space(dag))
    state = replay(dag, load_steps(dump_steps(steps)))
    assert state.steps == steps
    text = print_python_code_from_state(dag, state)
    for call in (
        "as_matmul(state, 'C', 'f16')",
        "pipeline(state, 'C.mma', 'k.0.0', 2)",
        "tensorize(state, 'C.mma', 'm.1')",
    ):
        assert call in text
    names: dict[str, object] = {"dag": dag}
    exec(text, names)
    made = names["state"]
    assert isinstance(made, State)
    assert str(made) == str(state)


def test_a_state_shows_its_pipeline() -> None:
    dag = product(64, 48, 64)
    assert "C.mma pipeline: 2 iterations of k.0.0" in str(replay(dag, with_lengths(tensor_space(dag))))


def test_a_product_may_be_scheduled_by_hand() -> None:
    state, tensor = as_matmul(State.initial(product(64, 48, 64)), "C", "f16")
    assert tensor.name == "C.mma"
    assert [stage.op.name for stage in state.stages] == ["A", "B", "C.left.shared", "C.right.shared", "C.mma", "C"]
    state, (_, inner) = split(state, "C", "i", [16])
    state = compute_at(state, "C.mma", "C", "i.0")
    state = pipeline(state, "C.mma", "k", 3)
    assert state.stages[4].pipeline == ("k", 3)
    state, loop = tensorize(state, "C.mma", "k")
    assert "tensorize k" in str(state)
    assert loop.name == "k"
    assert inner.name == "i.1"


def test_what_does_not_fit_is_refused() -> None:
    dag = product(64, 48, 64)
    state = State.initial(dag)
    with pytest.raises(
        ScheduleError, match="C: tensor cores cannot multiply 64 x 64 by 64 x 48 elements of float16 as tf32"
    ):
        state.apply(AsMatmul(2, "tf32"))
    with pytest.raises(ScheduleError, match="C: write it as a product of matrices before transforming the stage"):
        state.apply(Split(2, 0, 64, (8,))).apply(AsMatmul(2, "f16"))
    with pytest.raises(ScheduleError, match="k is no loop that reduces inside another stage"):
        State.initial(matmul(8, 8, 8)).apply(Pipeline(2, 2, 2))
    made = state.apply(AsMatmul(2, "f16"))
    inside = compute_at(made, "C.mma", "C", "j")
    with pytest.raises(ScheduleError, match="m is no loop that reduces"):
        inside.apply(Pipeline(4, 1, 2))
    for depth in (0, 9):
        with pytest.raises(ScheduleError, match=f"a pipeline is 1 to 8 deep, not {depth}"):
            inside.apply(Pipeline(4, 3, depth))
