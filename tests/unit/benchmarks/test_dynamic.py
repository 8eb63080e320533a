"""The benchmark of changing shapes draws the shapes that it says, and notices what is slow or false."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks import dynamic, dynamic_peers, zoo
from benchmarks.dynamic import Bench, Stream, streams, summary
from benchmarks.dynamic_networks import CASES, Case, Symbol, draw, shapes_of
from benchmarks.dynamic_stream import OURS, SESSION
from benchmarks.harness import Run
from retune.compiler.measure.processes.worker_process import WorkerProcess

GRU = CASES["gru_128"]


def _bench(folder: Path, case: Case = GRU, **options: int) -> Bench:
    known = {"quick": 0, "requests": 4, "shapes": 2, "passes": 1, "compiled": 0, "seed": 0}
    return Bench("gru", case, 1, Run("", (1,), 0.0, None, {**known, **options}), folder)


@pytest.mark.parametrize("name", CASES)
def test_streams_have_the_extents_of_the_case(name: str) -> None:
    case = CASES[name]
    requests = case.stream(300, seed=1)
    assert requests == case.stream(300, seed=1)
    for symbol, bounds in case.symbols.items():
        extents = [sizes[symbol] for sizes in requests]
        assert min(extents) >= bounds.least
        assert max(extents) <= bounds.most
        assert all(extent % bounds.step == 0 for extent in extents)
        assert bounds.grows == (extents == sorted(extents))


def test_streams_are_uniform_in_the_logarithm() -> None:
    extents = [sizes["n"] for sizes in Case("gru", {}, {}, {"n": Symbol(1, 1023)}).stream(4000, seed=0)]
    shares = [np.mean([2**low <= extent < 2 ** (low + 1) for extent in extents]) for low in range(10)]
    np.testing.assert_allclose(shares, 0.1, atol=0.03)


def test_a_spread_reaches_from_the_smallest_to_the_largest_shape() -> None:
    requests = CASES["minilm_l6"].stream(50, seed=0)
    spread = CASES["minilm_l6"].spread(requests, 12)
    areas = [sizes["batch"] * sizes["tokens"] for sizes in spread]
    assert areas == sorted(areas)
    everywhere = [sizes["batch"] * sizes["tokens"] for sizes in requests]
    assert (areas[0], areas[-1], len(areas)) == (min(everywhere), max(everywhere), 12)
    assert len(GRU.spread(GRU.stream(1, 0), 12)) == 1


@pytest.mark.parametrize("name", ["gru_128", "lstm_2x128", "vad", "minilm_l6", "smollm2_135m_step"])
def test_a_symbolic_model_takes_inputs_of_the_drawn_extents(name: str) -> None:
    case = CASES[name]
    model = case.build(True)
    sizes = case.stream(1, seed=3)[0]
    shapes = shapes_of(model, sizes)
    inputs = draw(model, sizes, seed=0)
    assert {key: array.shape for key, array in inputs.items()} == shapes
    assert any(dim.dim_param for entry in model.graph.input for dim in entry.type.tensor_type.shape.dim)


def test_the_first_calls_of_shapes_are_marked() -> None:
    requests = [{"n": extent} for extent in (5, 7, 5, 7, 9, 9, 11)]
    assert dynamic._first_of_shape(requests, 24) == {1, 4, 6}
    assert dynamic._first_of_shape(requests, 1) == {1}
    assert dynamic._first_of_shape(requests[:1], 24) == {0}


def test_a_planted_slow_first_call_is_in_the_lines(tmp_path: Path) -> None:
    stream = Stream(WorkerProcess(), load_seconds=1.0, memory=[10.0, 20.0, 25.0, 40.0])
    stream.seconds = [0.01] * 98 + [0.5] * 2
    stream.revisited = [1.0] * 20 + [50.0] * 3
    lines = {figure.metric: figure for figure in summary(_bench(tmp_path), OURS, stream, 100)}
    assert lines["stream"].value == pytest.approx(1.0 + 98 * 0.01 + 2 * 0.5)
    assert lines["request p50"].value == pytest.approx(10)
    assert lines["request p99"].value == pytest.approx(500)
    assert lines["first / later call"].value == 1.0
    assert lines["first / later call"].details == {"largest": 50.0, "p90": 50.0}
    assert lines["memory growth"].value == 15.0
    assert lines["memory growth"].details["since_loading"] == 30.0


def test_a_planted_false_network_has_no_time_but_says_why(tmp_path: Path) -> None:
    bench = _bench(tmp_path)
    other = tmp_path / "other.onnx"
    onnx.save_model(zoo.build("gru", steps="steps", seed=1), str(other))
    right = bench.compile(None)[0]
    wrong = tmp_path / "wrong.retune"
    dynamic_peers.compile_ours(str(other), None, 1, 0.0, str(wrong))
    session = dynamic_peers.prepare(SESSION, bench.path, str(tmp_path), 1, [])

    def failures(ours: str) -> Mapping[str, object]:
        bench.files = {OURS: ours, SESSION: session}
        return {line.backend: line.details.get("failure") for line in streams(bench) if line.metric == "stream"}

    assert failures(right) == {OURS: None, SESSION: None}
    found = failures(str(wrong))
    assert found[SESSION] is None
    assert "differ from ONNX Runtime's by" in str(found[OURS])


def test_a_contender_that_cannot_load_says_why(tmp_path: Path) -> None:
    bench = _bench(tmp_path)
    broken = tmp_path / "broken.retune"
    broken.write_bytes(b"no archive")
    bench.files = {OURS: str(broken)}
    (line,) = streams(bench)
    assert np.isnan(line.value)
    assert "broken.retune" in str(line.details["failure"])


def test_a_run_goes_on_behind_the_parts_in_its_file(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert dynamic._done(out, "gru_128", 1) == set()
    lines = [
        {"case": case, "threads": 1, "metric": metric} for case, metric in (("gru_128", "stream"), ("crnn", "compile"))
    ]
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert dynamic._done(out, "gru_128", 1) == {"stream"}
    assert dynamic._done(out, "gru_128", 2) == set()
