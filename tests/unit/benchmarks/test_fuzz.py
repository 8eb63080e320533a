"""Every loader takes or refuses what is a little wrong; 100,000 inputs of each are in `benchmarks/results`."""

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fuzz
from benchmarks.fuzzing import mutations
from benchmarks.fuzzing.case import FuzzCase
from benchmarks.fuzzing.rehearsal import ENDS
from benchmarks.fuzzing.worker import CASES, input_of, samples_of
from tests.support.tiers import long_except

EXAMPLES = 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where samples are kept from test to test."""
    return tmp_path_factory.mktemp("fuzz")


def _loads(case: FuzzCase, folder: Path, data: bytes) -> bool:
    """Whether an input is loaded; what refuses it must be the loader's error."""
    path = folder / f"{case.name}-{abs(hash(data))}{case.suffix}"
    path.write_bytes(data)
    try:
        case.load(path)
    except case.refusals:
        return False
    finally:
        path.unlink()
    return True


@pytest.mark.parametrize("name", fuzz.LOADERS)
def test_valid_files_are_loaded(name: str, folder: Path) -> None:
    case = CASES[name]
    samples = samples_of(case, folder)
    assert samples == samples_of(case, folder)
    assert all(_loads(case, folder, sample) for sample in samples)


@pytest.mark.parametrize("name", long_except(["graph", "network", "records"], fuzz.LOADERS))
def test_changed_files_are_loaded_or_refused(name: str, folder: Path) -> None:
    case = CASES[name]
    samples = samples_of(case, folder)

    @settings(max_examples=EXAMPLES, deadline=None, database=None)
    @given(number=st.integers(0, 2**63))
    def each(number: int) -> None:
        _loads(case, folder, input_of(case, samples, 1, number))

    each()


@pytest.mark.parametrize("name", fuzz.LOADERS)
def test_some_are_refused_and_all_can_be_made_again(name: str, folder: Path) -> None:
    case = CASES[name]
    samples = samples_of(case, folder)
    inputs = [input_of(case, samples, 7, number) for number in range(40)]
    assert inputs == [input_of(case, samples, 7, number) for number in range(40)]
    assert len(set(inputs)) > 30
    assert not all(_loads(case, folder, data) for data in inputs)


@pytest.mark.long
def test_every_way_to_fail_is_counted(tmp_path: Path) -> None:
    case, number, seed = CASES["rehearsal"], 6, 136
    made = [input_of(case, ENDS, seed, each) for each in range(number)]
    assert set(made) == set(ENDS)
    tally = fuzz.fuzz("rehearsal", number, seed, 20.0, tmp_path)  # a busy machine is slow
    counts = (tally.loaded, tally.refused, tally.other, tally.dead, tally.hung)
    greedy = made.count(b"greedy")
    other = made.count(b"other") + greedy
    assert counts == (*map(made.count, (b"loaded", b"refused")), other, *map(made.count, (b"dead", b"hung")))
    assert tally.failures == other + tally.dead + tally.hung
    kept = {path.name for path in (tmp_path / "failures").glob("*.bin")}
    assert kept == {f"rehearsal-{each}.bin" for each, end in enumerate(made) if end not in (b"loaded", b"refused")}


@pytest.mark.long
def test_it_prints_a_line_for_a_loader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "fuzz.jsonl"
    assert fuzz.main(["--loader", "values", "--inputs", "20", "--seed", "5", "--out", str(out)]) == 0
    line = json.loads(capsys.readouterr().out)
    assert out.read_text() == json.dumps(line) + "\n"
    assert line["loaded"] + line["refused"] == line["inputs"] == 20
    assert (line["loader"], line["seed"], line["other"], line["dead"], line["hung"]) == ("values", 5, 0, 0, 0)


@settings(max_examples=300, deadline=None)
@given(number=st.integers(0, 2**63))
def test_changed_json_is_bytes_whatever_it_says(number: int) -> None:
    text = b'{"a": [1, 2.5, {"b": "x"}], "c": [[1, 2], [3, 4]], "d": null}'
    assert isinstance(mutations.mutated_json(text, Random(number)), bytes)
    assert isinstance(mutations.mutated_bytes(b"", Random(number)), bytes)
