"""The flow for a network of dynamic shapes: rounds, records, report, resumption, and the later use of its records."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from prefect.settings import PREFECT_API_URL

import retune
from retune.compiler.measure.record import MeasureStatus
from retune.compiler.tune.report import Report
from retune.flows.cli.kernel_explainer import KernelExplainer
from retune.flows.tune_network import tune_network
from retune.storage.parquet import ParquetRecordStore
from retune.storage.query import run_query
from retune.storage.runs import RunLedger
from retune.tasks.find_programs import symbolic_programs
from tests.support.dynamic_models import floats, model, node, tensor
from tests.support.flows.runs import PATIENCE_SECONDS, kill_when, started, stored

pytestmark = pytest.mark.usefixtures("prefect_api")

WEIGHT = floats(64, 32)
SHAPES = ["x=0..2,1..40,64"]


def write_dense(path: Path) -> Path:
    """A product and a softmax of two symbols."""
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("Softmax", ["h"], ["y"])]
    inputs = [tensor("x", ["batch", "tokens", 64])]
    onnx.save(model(nodes, inputs, [tensor("y", ["batch", "tokens", 32])], {"w": WEIGHT}), path)
    return path


def computes(path: str | Path, *shape: int) -> None:
    x = floats(*shape)
    product = np.exp(x @ WEIGHT - (x @ WEIGHT).max(-1, keepdims=True, initial=-np.inf))
    expected = product / product.sum(-1, keepdims=True)
    np.testing.assert_allclose(retune.load(path)(x), expected, rtol=1e-4, atol=1e-5)


def test_a_dynamic_network_is_tuned_by_the_flow(tmp_path: Path) -> None:
    network, home, lengths = write_dense(tmp_path / "dense.onnx"), tmp_path / "state", tmp_path / "lengths.json"
    lengths.write_text('[{"shapes": {"x": [1, 7, 64]}, "weight": 3}, {"shapes": {"x": [2, 40, 64]}}]')

    def tune(trials: int) -> Report:
        options = {"threads": 1, "sample": str(lengths), "batch": 4, "trials": trials}
        return tune_network(str(network), shapes=SHAPES, home=str(home), **options)

    report = tune(12)
    assert report.is_right
    assert report.trials == 12
    assert {"untuned", "tuned"} <= {contender.name for contender in report.comparison.contenders}
    assert "means over 2 shapes" in report.comparison.note
    for shape in ((1, 1, 64), (0, 3, 64), (2, 37, 64)):
        computes(report.artifact, *shape)

    records = [record for record in ParquetRecordStore(home).records() if not record.is_unsearched]
    assert len(records) == 12
    good = [record for record in records if record.status is MeasureStatus.OK]
    assert good
    for record in good:
        assert sorted(shape.weight for shape in record.shapes) == [0.25, 0.75]
        assert record.seconds == pytest.approx(sum(shape.weight * min(shape.costs) for shape in record.shapes))
    _, rows = run_query(home, "SELECT record_id, count(*) FROM shapes WHERE status = 0 GROUP BY ALL")
    assert {row[1] for row in rows} == {2}
    assert {record.record_id for record in good} <= {row[0] for row in rows}

    # A run for other shapes learns what was timed at these, and measures nothing of it again.
    lengths.write_text('[{"shapes": {"x": [1, 7, 64]}}]')
    again = tune(6)
    assert again.run_id != report.run_id
    both = [record for record in ParquetRecordStore(home).records() if not record.is_unsearched]
    assert max(Counter((record.task_key, record.steps) for record in both).values()) == 1

    confirmed = symbolic_programs(home, str(report.request["target"]), 1)
    assert {task.task_key for task in report.tuned} == set(confirmed)
    explainer = KernelExplainer.of(report.run_id, home, None, None, ())
    (name, *_) = [row.name for row in explainer.rows() if "dense" in row.name]
    text = str(explainer.explain(name))
    assert "Hot loop" in text
    assert "programs measured" in text


@pytest.mark.long
def test_a_killed_run_of_a_dynamic_network_goes_on(tmp_path: Path) -> None:
    network, home, log = write_dense(tmp_path / "dense.onnx"), tmp_path / "state", tmp_path / "log.txt"
    api, more = PREFECT_API_URL.value(), ("--shape", SHAPES[0], "--batch", "4")
    acknowledged = kill_when(network, home, log, api, wanted=2, delay=0.3, more=more)
    assert acknowledged
    with started(network, home, log, api, more) as process:
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    records = [record for record in stored(home) if not record.is_unsearched]
    (run,) = RunLedger(home).list()
    assert acknowledged <= {record.record_id for record in records}
    assert {record.run_id for record in records} == {run.run_id}
    assert max(Counter((record.task_key, record.steps) for record in records).values()) == 1
    assert run.is_complete
    assert run.resumed
    report = json.loads((home / "runs" / run.run_id / "report.json").read_text())
    assert report["is_right"]
