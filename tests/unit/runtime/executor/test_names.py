"""What a script imports to run networks is there and takes the parameters that it is known for; each of them counts."""

import inspect
import time
from collections.abc import Callable

import numpy as np
import pytest

from retune.compiler import debug_executor, graph_executor
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.tvm.graph_executor import GraphModule, cpu, create, save_param_dict
from tests.support.clock import Clock
from tests.support.graphs import ARITHMETIC, one_call, weighted

NO = inspect.Parameter.empty
"""A parameter without a default."""

TIMING = {"limit_zero_time_iterations": 100, "cooldown_interval_ms": 0, "repeats_to_cooldown": 1}

PARAMETERS: dict[str, dict[str, object]] = {
    "create": {"graph_json_str": NO, "libmod": NO, "device": NO},
    "get_device": {"libmod": NO, "device": NO},
    "load_module": {"path": NO},
    "GraphModule": {"module": NO},
    "GraphModule.set_input": {"self": NO, "key": None, "value": None, "params": NO},
    "GraphModule.run": {"self": NO, "input_dict": NO},
    "GraphModule.get_num_outputs": {"self": NO},
    "GraphModule.get_num_inputs": {"self": NO},
    "GraphModule.get_input": {"self": NO, "index": NO, "out": None},
    "GraphModule.get_input_index": {"self": NO, "name": NO},
    "GraphModule.get_input_info": {"self": NO},
    "GraphModule.get_output": {"self": NO, "index": NO, "out": None},
    "GraphModule.debug_get_output": {"self": NO, "node": NO, "out": NO},
    "GraphModule.load_params": {"self": NO, "params_bytes": NO},
    "GraphModule.share_params": {"self": NO, "other": NO, "params_bytes": NO},
    "GraphModule.__getitem__": {"self": NO, "key": NO},
    "GraphModule.benchmark": {
        "self": NO, "device": NO, "func_name": "run", "repeat": 5, "number": 5, "min_repeat_ms": None,
        "limit_zero_time_iterations": 100, "end_to_end": False, "cooldown_interval_ms": 0, "repeats_to_cooldown": 1,
        "kwargs": NO,
    },
    "debug.create": {"graph_json_str": NO, "libmod": NO, "device": NO, "dump_root": None},
    "debug.GraphModuleDebug.run": {
        "self": NO, "number": 10, "repeat": 1, "min_repeat_ms": 1, **TIMING, "sort_by_time": True, "input_dict": NO,
    },
    "debug.GraphModuleDebug.run_individual": {"self": NO, "number": NO, "repeat": 1, "min_repeat_ms": 0, **TIMING},
    "debug.GraphModuleDebug.run_individual_node": {
        "self": NO, "index": NO, "number": 10, "repeat": 1, "min_repeat_ms": 0, **TIMING,
    },
    "debug.GraphModuleDebug.profile": {"self": NO, "collectors": None, "input_dict": NO},
    "debug.GraphModuleDebug.debug_get_output": {"self": NO, "node": NO, "out": None},
    "debug.GraphModuleDebug.execute_node": {"self": NO, "index": NO},
    "debug.GraphModuleDebug.get_node_output": {"self": NO, "index": NO, "out_ind": 0},
    "debug.GraphModuleDebug.get_debug_result": {"self": NO, "sort_by_time": True},
    "debug.GraphModuleDebug.exit": {"self": NO},
}  # fmt: skip
"""Every function of the two executors with its parameters, in order, and their defaults."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_name_takes_its_parameters_with_their_defaults(name: str) -> None:
    found: object = debug_executor if name.startswith("debug.") else graph_executor
    for part in name.removeprefix("debug.").split("."):
        found = getattr(found, part)
    assert callable(found)
    parameters = inspect.signature(found).parameters
    assert {each.name: each.default for each in parameters.values()} == PARAMETERS[name]


def test_all_names_are_there() -> None:
    for module in (graph_executor, debug_executor):
        assert all(hasattr(module, name) for name in module.__all__)
    assert {name.partition(".")[0] for name in PARAMETERS} <= {*graph_executor.__all__, "debug"}


def _counting(clock: Clock) -> GraphModule:
    """A graph of one call, which the clock counts."""

    def function(x: Array, out: Array) -> None:
        clock.call()
        out[...] = x

    return create(one_call().dumps(), {"myadd": function}, cpu())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Every call takes a millisecond."""
    found = Clock(1_000_000)
    found.install(monkeypatch)
    return found


@pytest.mark.parametrize(
    ("options", "calls", "results"),
    [
        ({}, 1 + 5 * 5, 5),
        ({"repeat": 2}, 1 + 2 * 5, 2),
        ({"number": 3}, 1 + 5 * 3, 5),
        ({"number": 1, "repeat": 1, "min_repeat_ms": 0}, 2, 1),
        ({"number": 1, "repeat": 2, "end_to_end": True}, 3, 2),
        ({"number": 1, "repeat": 1, "func_name": "get_num_outputs"}, 0, 1),
    ],
)
def test_how_often_a_benchmark_runs_the_graph(
    options: dict[str, object], calls: int, results: int, clock: Clock
) -> None:
    result = _counting(clock).benchmark(cpu(), **options)  # type: ignore[arg-type]
    assert clock.calls == calls
    assert len(result.results) == results


def test_a_benchmark_goes_on_until_it_has_lasted_long_enough(clock: Clock) -> None:
    (seconds,) = _counting(clock).benchmark(cpu(), repeat=1, number=1, min_repeat_ms=20).results
    assert 20 < clock.calls < 60
    assert seconds == 0.001


@pytest.mark.parametrize(("after", "pauses"), [(1, 3), (2, 1)])
def test_a_benchmark_rests(after: int, pauses: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(time, "sleep", rests.append)
    _counting(clock).benchmark(cpu(), repeat=3, number=1, cooldown_interval_ms=30, repeats_to_cooldown=after)
    assert rests == [0.03] * pauses


def test_inputs_of_a_benchmark_are_set_once_or_with_every_run(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    module = _counting(clock)
    counted: list[str] = []
    original: Callable[..., None] = module.module.set_input

    def counting(*args: object, **inputs: Array) -> None:
        counted.extend(inputs)
        original(*args, **inputs)

    monkeypatch.setattr(module.module, "set_input", counting)
    x = np.arange(4, dtype="float32")
    module.benchmark(cpu(), repeat=2, number=3, x=x)
    assert counted == ["x"]
    counted.clear()
    module.benchmark(cpu(), repeat=2, number=3, end_to_end=True, x=x)
    assert counted == ["x"] * (1 + 1 + 2 * 3)
    np.testing.assert_array_equal(module.get_output(0), x)


def test_a_function_of_the_module_inside_is_timed_by_name(clock: Clock) -> None:
    module = _counting(clock)
    evaluate = module.module.time_evaluator("run", cpu(), number=2, repeat=3)
    assert clock.calls == 0
    assert len(evaluate().results) == 3
    assert clock.calls == 1 + 3 * 2
    blob = save_param_dict({"w": np.ones(4, "float32")})
    other = create(weighted().dumps(), ARITHMETIC, cpu())
    assert len(other.module.time_evaluator("load_params", number=1)(blob).results) == 1
    np.testing.assert_array_equal(other.get_input("w"), np.ones(4, "float32"))
    with pytest.raises(AttributeError, match="has no function 'fly'"):
        module.module.time_evaluator("fly")
    with pytest.raises(OptionError, match="number must be at least 1"):
        module.module.time_evaluator("run", number=0)
