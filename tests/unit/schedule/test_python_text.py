"""Programs printed as Python: the text runs and makes the same program."""

from typing import Any

import numpy as np
import pytest

from retune.compiler import te
from retune.compiler.core.errors import ScheduleError
from retune.compiler.schedule import primitives as s
from retune.compiler.schedule.dag import ComputeDAG
from retune.compiler.schedule.python_text import print_python_code_from_state
from retune.compiler.schedule.state import State, replay
from retune.compiler.schedule.steps import Annotate, Split
from tests.support.property.computations import random_computation
from tests.support.property.wild import wild_steps


def run(text: str, dag: ComputeDAG) -> State:
    space: dict[str, Any] = {"dag": dag}
    exec(text, space)
    state = space["state"]
    assert isinstance(state, State)
    return state


def chain() -> ComputeDAG:
    x = te.placeholder((8, 8), name="x")
    y = te.compute((8, 8), lambda i, j: x[i, j] + 1.0, "y")
    return ComputeDAG([x, te.compute((8, 8), lambda i, j: y[i, j] * 2.0, "y")])


def test_steps_print_as_calls_of_primitives() -> None:
    x = te.placeholder((8, 8), name="x")
    k = te.reduce_axis(8, "k")
    dag = ComputeDAG([x, te.compute((8,), lambda i: te.sum(x[i, k], k), "total")])
    state, (_, inner) = s.split(State.initial(dag), "total", "k", [4])
    state, rf = s.rfactor(state, "total", inner, 1)
    state = s.reorder(state, rf, ["k_0", "i", "k_1"])
    state, _ = s.vectorize(state, rf, "k_1")
    state, _ = s.parallel(state, "total.repl", 0)
    assert print_python_code_from_state(dag, state) == (
        "from retune.compiler.schedule.primitives import parallel, reorder, rfactor, split, vectorize\n"
        "from retune.compiler.schedule.state import State\n"
        "\n"
        "state = State.initial(dag)\n"
        "state, _ = split(state, 'total', 'k', [4])\n"
        "state, _ = rfactor(state, 'total', 'k.1', 1)\n"
        "state = reorder(state, 'total.rf', ['k_0', 'i', 'k_1'])\n"
        "state, _ = vectorize(state, 'total.rf', 'k_1')\n"
        "state, _ = parallel(state, 'total.repl', 'ax0')\n"
    )


def test_no_steps_are_no_calls() -> None:
    dag = chain()
    assert run(print_python_code_from_state(dag, State.initial(dag)), dag).steps == ()


def test_stages_of_one_name_are_numbered() -> None:
    dag = chain()
    state = replay(dag, [Annotate(1, 0, 3), Annotate(2, 0, 3)])
    text = print_python_code_from_state(dag, state)
    assert "parallel(state, 1, 'i')" in text
    assert run(text, dag).steps == state.steps


@pytest.mark.parametrize("seed", range(60))
def test_the_text_of_a_random_program_makes_it_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dag = random_computation(rng)
    state = replay(dag, wild_steps(dag, rng))
    again = run(print_python_code_from_state(dag, state), dag)
    assert again.steps == state.steps
    assert str(again) == str(state)


def test_a_sketch_has_no_text() -> None:
    dag = chain()
    with pytest.raises(ScheduleError, match="fill in its tile sizes first"):
        print_python_code_from_state(dag, replay(dag, [Split(1, 0, 8, (None,))]))
