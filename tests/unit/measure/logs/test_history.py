"""The best trial of a workload, and how far one workload is from another."""

import json
import math
from pathlib import Path

import pytest

from retune.compiler.measure.logs.history import best_trial, best_trials, distance, distill
from retune.compiler.measure.logs.log import LoggedTask, LoggedTrial, append_log, read_log
from retune.compiler.measure.record import MeasureStatus


def trial(key: str, seconds: float | None, target: str = "llvm -mcpu=znver4") -> LoggedTrial:
    costs = () if seconds is None else (seconds,)
    status = MeasureStatus.RUN_TIMEOUT if seconds is None else MeasureStatus.OK
    return LoggedTrial(LoggedTask(key, target), (), costs, status, 1.0, 1)


def key(*args: object) -> str:
    return json.dumps(["conv", *args])


@pytest.mark.parametrize(
    ("wanted", "known", "factor"),
    [
        ((8, 3, 224, 224), (8, 3, 224, 224), 1),
        (([8, 3, 224, 224],), ([1, 3, 112, 112],), 32),
        (([1, 3, 112, 112],), ([8, 3, 224, 224],), math.inf),
        ((4, [0, 0]), (4, [1, 1]), math.inf),
        ((4, [1, 1]), (4, [0, 0]), math.inf),
        ((4, "float32"), (4, "float16"), math.inf),
        ((224,), (223,), math.inf),
        ((4, 4), (4,), math.inf),
        (([4], 4), ([4, 4],), math.inf),
        ((True,), (1,), math.inf),
    ],
)
def test_distance_of_workloads_is_that_of_tvm(
    wanted: tuple[object, ...], known: tuple[object, ...], factor: float
) -> None:
    assert distance(key(*wanted), key(*known)) == factor


def test_other_functions_and_texts_are_infinitely_far() -> None:
    assert distance('["a", 1]', '["b", 1]') == math.inf
    assert distance("a", "b") == math.inf
    assert distance("a", "a") == 1


def test_the_best_trial_is_of_the_workload_and_the_kind_of_target() -> None:
    trials = [trial(key(8), None), trial(key(8), 2.0), trial(key(8), 1.0, "cuda"), trial(key(4), 0.1)]
    assert best_trial(trials, key(8), "llvm") == trials[1]
    assert best_trial(trials, key(8)) == trials[2]
    assert best_trial(trials) == trials[3]
    assert best_trial(trials, key(8), "llvm", include_compatible=True) == trials[3]
    assert best_trial(trials, key(16)) is None
    assert best_trial([], key(8)) is None


def test_a_program_that_rounds_is_none_for_a_strict_target() -> None:
    rounding = trial(key(8), 1.0, "cuda -keys=cuda,gpu -arch=sm_90 -math=tf32")
    strict = trial(key(8), 2.0, "cuda -arch=sm_80")
    assert best_trial([rounding, strict], key(8), "cuda -arch=sm_90") == strict
    assert best_trial([rounding], key(8), "cuda") is None
    assert best_trial([rounding, strict], key(8), "cuda -math=tf32") == rounding
    assert best_trial([strict], key(8), "cuda -math=tf32") == strict


def test_distilling_keeps_the_best_of_both_logs(tmp_path: Path) -> None:
    source, best = tmp_path / "a.json", tmp_path / "b.json"
    append_log(source, [trial("x", 2.0), trial("x", 1.0), trial("y", None), trial("z", 3.0)])
    assert distill(source, best) == 2
    assert list(read_log(best)) == [trial("x", 1.0), trial("z", 3.0)]
    append_log(source, [trial("z", 2.0), trial("x", 5.0)])
    assert distill(source, best) == 2
    assert list(read_log(best)) == best_trials(list(read_log(source)))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json", "b.json"]
