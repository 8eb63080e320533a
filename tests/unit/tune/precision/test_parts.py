"""Samples, errors, ranges and the knapsack of the choice of precisions."""

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retune.compiler.core.errors import OptionError
from retune.compiler.graph.ir import Value
from retune.compiler.tune.precision.calibrate import METHODS, _Histogram
from retune.compiler.tune.precision.errors import METRICS, error_of, require_measurable
from retune.compiler.tune.precision.knapsack import Option, choose_options
from retune.compiler.tune.precision.samples import hold_out, read_samples

INPUTS = (Value("x", (1, 3), "float32"), Value("i", (2,), "int64"))


@pytest.mark.parametrize("seed", range(20))
def test_the_knapsack_finds_what_brute_force_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = [
        [Option(float(rng.integers(1, 20)), float(rng.integers(0, 9))) for _ in range(rng.integers(0, 4))]
        for _ in range(5)
    ]
    budget = float(rng.integers(1, 20))
    best = 0.0
    for picks in itertools.product(*([None, *options] for options in groups)):
        taken = [option for option in picks if option is not None]
        if sum(option.cost for option in taken) <= budget:
            best = max(best, sum(option.value for option in taken))
    chosen = [
        group[pick] for group, pick in zip(groups, choose_options(groups, budget), strict=True) if pick is not None
    ]
    assert sum(option.cost for option in chosen) <= budget
    # Costs are rounded up to a step: five options lose five steps of the budget at most.
    assert sum(option.value for option in choose_within(groups, budget * 1.01)) >= best
    assert sum(option.value for option in chosen) <= best


def choose_within(groups: list[list[Option]], budget: float) -> list[Option]:
    picks = choose_options(groups, budget)
    return [group[pick] for group, pick in zip(groups, picks, strict=True) if pick is not None]


def test_a_knapsack_without_budget_takes_what_is_free() -> None:
    assert choose_options([[Option(1.0, 0.0)], [Option(9.0, 1e-9)]], 0.0) == [0, None]


def test_costs_that_fill_a_knapsack_but_for_a_trifle_do_not_exceed_it() -> None:
    halves = [[Option(1.0, 0.50001)], [Option(1.0, 0.50001)]]
    assert sum(option.cost for option in choose_within(halves, 1.0)) <= 1.0


def test_errors_of_known_outputs() -> None:
    wanted, made = np.asarray([[1.0, -4.0], [2.0, 0.0]]), np.asarray([[1.0, -3.0], [2.0, 3.0]])
    errors = {name: error_of(name, [[made]], [[wanted]]) for name in METRICS}
    assert errors["largest"] == pytest.approx(3 / 4)
    assert errors["mean"] == pytest.approx(4 / 7)
    assert errors["cosine"] == pytest.approx(1 - 17 / (21 * 23) ** 0.5)
    assert errors["top1"] == pytest.approx(0.5)
    assert all(error_of(name, [[wanted]], [[wanted]]) <= 1e-12 for name in METRICS)


def test_a_result_that_is_no_number_is_an_infinite_error() -> None:
    assert error_of("largest", [[np.asarray([np.nan])]], [[np.asarray([1.0])]]) == np.inf


def test_a_function_of_the_user_is_a_metric() -> None:
    def distance(made: Any, wanted: Any) -> float:
        return abs(float(made[0] - wanted[0]))

    assert error_of(distance, [[3.0]], [[1.0]]) == 2.0  # type: ignore[list-item]
    assert error_of(lambda *_: np.asarray(0.25), [[3.0]], [[1.0]]) == 0.25  # type: ignore[list-item, arg-type]
    for result in ("far", None, -0.9, np.ones(2)):
        with pytest.raises(OptionError, match="must return a number of at least 0"):
            error_of(lambda *_, result=result: result, [[3.0]], [[1.0]])  # type: ignore[list-item]


def test_no_sample_without_a_finite_output_is_measured() -> None:
    nothing = np.full((2, 3), np.nan, "float32")
    with pytest.raises(OptionError, match="is NaN or infinite on the samples"):
        require_measurable("largest", [[np.ones((2, 3)), nothing]])
    require_measurable("largest", [[np.asarray([np.nan, 1.0]), np.zeros((0, 3))]])


def test_top1_needs_classes_and_integers_are_compared_by_element() -> None:
    with pytest.raises(OptionError, match="top1 needs scores of classes"):
        require_measurable("top1", [[np.ones((4, 1), "float32"), np.asarray(2.0)]])
    require_measurable("top1", [[np.ones((4, 1), "float32"), np.asarray(3)]])
    classes = np.asarray([[3], [4], [5], [6]])
    for name in METRICS:
        assert error_of(name, [[classes]], [[np.asarray([[3], [4], [5], [7]])]]) == 0.25


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_files_of_samples_are_one_sentence(tmp_path: Path, save: Any) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "a.npz"
    save(path, x=rng.standard_normal((4, 3)), i=np.zeros((4, 2), int))
    data = path.read_bytes()
    for _ in range(300):
        damaged = bytearray(data)
        damaged[rng.integers(len(data))] = rng.integers(256)
        path.write_bytes(damaged)
        with contextlib.suppress(OptionError):
            read_samples(path, INPUTS, 0)


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"x": [[1.0, 2.0], [3.0]], "i": [0, 1]}, "got no array"),
        ({"x": np.full((1, 3), 1e300), "i": [0, 1]}, "'x' has a NaN or an infinity"),
        ({"x": np.ones((1, 3)), "i": np.asarray([0, 2**63], "uint64")}, "a number that int64 has not"),
    ],
)
def test_what_an_input_cannot_hold_is_refused(sample: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        read_samples([sample], INPUTS, 0)


def test_ranges_are_those_of_finite_values() -> None:
    histogram, nothing = _Histogram(), _Histogram()
    for step in (_Histogram.widen, _Histogram.add):
        step(histogram, np.asarray([np.nan, -1.0, 2.0, np.inf], "float32"))
        step(nothing, np.asarray([np.nan], "float32"))
    assert histogram.range("min-max") == (-1.0, 2.0)
    assert all(nothing.range(method) == (0.0, 0.0) for method in METHODS)


def test_samples_of_a_file_have_one_axis_more(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones((4, 3)), i=np.zeros((4, 2), int))
    np.savez(tmp_path / "b.npz", x=np.ones((1, 3), "float32"), i=np.zeros(2, int))
    assert len(read_samples(tmp_path / "a.npz", INPUTS, 0)) == 4
    samples = read_samples(tmp_path, INPUTS, 0)
    assert len(samples) == 5
    assert all(sample["x"].shape == (1, 3) and sample["x"].dtype == np.float32 for sample in samples)
    assert len(hold_out(samples)[1]) == 1


GOOD = {"x": np.ones((1, 3), "float32"), "i": np.zeros(2, "int64")}


@pytest.mark.parametrize(
    ("calibrate", "message"),
    [
        ([{**GOOD, "x": np.ones((1, 4), "float32")}], r"x: float32\[1, 3\] got the shape \[1, 4\]"),
        ([{**GOOD, "x": np.full((1, 3), np.nan, "float32")}], "'x' has a NaN or an infinity"),
        ([{**GOOD, "k": np.ones(1)}], "no input 'k'; its inputs are x, i"),
        ([{"x": GOOD["x"]}], "no array for the input 'i'"),
        ([{**GOOD, "i": np.ones(2, "float32")}], r"i: int64\[2\] got float32"),
        ([{**GOOD, "x": np.asarray([["a", "b", "c"]])}], "got <U1"),
        ([np.ones((1, 3))], "has 1 array, and the network has 2 inputs"),
        ([{"x": np.ones((2, 1, 3)), "i": np.zeros((3, 2), int)}], "different numbers of samples"),
        ([], "there are no samples"),
        (3, "calibrate is a path or an iterable"),
        ("missing.npz", "cannot read samples from missing.npz"),
    ],
)
def test_samples_that_do_not_fit_are_one_sentence(calibrate: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        read_samples(calibrate, INPUTS, 0)
    assert "\n" not in str(caught.value)


def test_a_folder_without_samples_and_a_file_of_one_array_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"has no \.npz"):
        read_samples(tmp_path, INPUTS, 0)
    np.save(tmp_path / "one.npy", np.ones(3))
    with pytest.raises(OptionError, match=r"it is no \.npz"):
        read_samples(tmp_path / "one.npy", INPUTS, 0)
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(OptionError, match="cannot read samples"):
        read_samples(tmp_path / "text.npz", INPUTS, 0)


def test_ranges_clip_a_few_outliers() -> None:
    values = np.random.default_rng(0).standard_normal(200_000)
    values[0] = 1000.0
    histogram = _Histogram()
    histogram.widen(values)
    histogram.add(values)
    assert histogram.range("min-max") == (values.min(), 1000.0)
    assert histogram.range("percentile")[1] < 20.0
    uniform = _Histogram()
    for step in (uniform.widen, uniform.add):
        step(np.linspace(-1, 1, 10_000))
    assert uniform.range("least-error")[1] > 0.97
    assert histogram.range("least-error")[1] < 1000.0


def test_a_constant_has_a_range() -> None:
    histogram = _Histogram()
    for step in (histogram.widen, histogram.add):
        step(np.full(5, 2.0))
    assert histogram.range("least-error") == (2.0, 2.0)
