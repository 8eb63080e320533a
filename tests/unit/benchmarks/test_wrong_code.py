"""The count of wrong results: how results are judged, and that every kind finds a fault of the code generator."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from benchmarks import wrong_code
from benchmarks.correctness.compare import ROUNDOFF, Outcome, judged, mismatch, nudged, tolerance
from benchmarks.correctness.worker import KINDS

NAN, INF = np.nan, np.inf
SINGLE = np.array([1, -300, 2], np.float32)


@pytest.mark.parametrize("dtype", ROUNDOFF, ids=str)
@pytest.mark.parametrize("depth", [0, 10, 1000])
def test_zeros_and_the_negated_result_never_pass(dtype: "np.dtype[np.generic]", depth: int) -> None:
    wanted = SINGLE.astype(dtype)
    allowed = tolerance([dtype], depth)
    assert mismatch([wanted], [wanted], allowed) == ""
    assert "of 3 elements" in mismatch([-wanted], [wanted], allowed)
    assert "of 3 elements" in mismatch([np.zeros_like(wanted)], [wanted], allowed)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        ([1.0, NAN], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, NAN]),
        ([1.0, INF], [1.0, -INF]),
        ([1.0, 1e9], [1.0, INF]),
        ([1, 2], [1, 3]),
        ([2**62 + 1], [2**62]),
        ([True], [False]),
    ],
)
def test_other_numbers_are_wrong(found: list[float], wanted: list[float]) -> None:
    assert "1 of" in mismatch([np.array(found)], [np.array(wanted)], 0.1)


def test_another_type_or_shape_is_wrong() -> None:
    assert "is float64[3], expected float32[3]" in mismatch([SINGLE.astype(float)], [SINGLE], 0.1)
    assert "is float32[1, 3]" in mismatch([SINGLE[None]], [SINGLE], 0.1)
    assert "0 results" in mismatch([], [SINGLE], 0.1)


def _judge(ours: Callable[[float], float], theirs: Callable[[float], float], second: float) -> Outcome:
    x = np.array([0.3, 1.0], np.float32)

    def run(number: int) -> list[np.ndarray]:
        return [np.vectorize(theirs)(nudged(x, np.random.default_rng(number))).astype(np.float32)]

    found, wanted = (np.vectorize(function)(x).astype(np.float32) for function in (ours, theirs))
    return judged([found], [wanted], 1e-5, lambda: [np.full(2, second, np.float32)], run)


def test_a_difference_is_ours_unless_a_rounding_or_the_reference_explains_it() -> None:
    assert _judge(np.exp, np.exp, 0.0).right
    assert _judge(lambda x: x + 1, lambda x: x, 7.0).wrong
    assert _judge(lambda _: 5.0, lambda x: x, 5.0).reference
    # At 1 the smallest change takes the floor from 1 to 0: which it is says nothing about ours.
    assert _judge(lambda _: 0.0, np.floor, 7.0).unstable


def test_bfloat16_counts_as_a_float() -> None:
    one = np.ones(2, ml_dtypes.bfloat16)
    assert mismatch([one], [one * ml_dtypes.bfloat16(1.01)], tolerance([one.dtype], 1)) == ""


def _count(tmp_path: Path, *argv: str) -> tuple[int, list[dict[str, object]]]:
    out = tmp_path / "out.jsonl"
    code = wrong_code.main([*argv, "--out", str(out)])
    return code, [json.loads(line) for line in out.read_text().splitlines()]


def test_a_kind_without_its_packages_is_left_out_with_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wrong_code, "find_spec", lambda package: None if package == "nnsmith" else package)
    assert wrong_code.main(["--only", "nnsmith", "--out", str(tmp_path / "out.jsonl")]) == 0
    assert "nnsmith is left out, it needs: pip install nnsmith" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "seeds"), [("nnsmith", 8), ("nodes", 12), ("nested", 4), ("torch", 8), ("programs", 2)]
)
def test_every_kind_finds_a_planted_fault(
    kind: str, seeds: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if missing := [package for package in KINDS[kind][2] if find_spec(package) is None]:
        pytest.skip(f"{', '.join(missing)} is not installed")
    code, (line,) = _count(tmp_path, "--only", kind, "--count", str(seeds), "--plant")
    assert code == 1
    assert line["value"] != 0
    assert f"WRONG: python -m benchmarks.wrong_code --only {kind} --seed" in capfd.readouterr().err
    code, lines = _count(tmp_path, "--only", kind, "--count", "2", "--resume")
    assert code == 0
    assert (lines[1]["first"], lines[1]["value"]) == (seeds, 0)
    assert wrong_code.table(iter(lines)).count(f"| {kind} |") == 1
