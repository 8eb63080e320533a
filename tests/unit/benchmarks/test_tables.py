"""Tables of documents, from lines of benchmarks."""

import json
from pathlib import Path

import pytest

from benchmarks import tables

CPU = "Xeon, 2 cores"


def line(case: str, backend: str, value: float | None, **more: object) -> str:
    machine = {"cpu": more.pop("cpu", CPU), "date": more.pop("date", "2026-11-28")}
    metric = more.pop("metric", "latency")
    fields = {"case": case, "backend": backend, "threads": 2, "metric": metric, "value": value, **more}
    return json.dumps({**fields, "machine": machine}) + "\n"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    backends = {"retune-untuned": 4.0, "retune": 2.0, "onnxruntime": 5.0, "openvino": 3.0, "openvino-default": 1.5}
    old = line("resnet50", "retune", 9.0, date="2026-11-01") + line("resnet50", "retune", 1.0, cpu="EPYC")
    costs = line("resnet50", "retune", 123.4, metric="peak memory") + line(
        "resnet50", "retune", 7.0, metric="file size"
    )
    lines = "".join(line("resnet50", backend, value) for backend, value in backends.items())
    (tmp_path / "networks.jsonl").write_text(old + lines + costs, encoding="utf-8")
    forms = {"retune-float32": (4.0, 0.0), "retune-auto-1%": (0.8, 0.008), "onnxruntime-qdq": (0.5, 0.3)}
    more = {"openvino-qdq": (None, 0.0), "openvino-default": (1.25, 0.004)}
    texts = [line("resnet50", backend, value, error=error) for backend, (value, error) in {**forms, **more}.items()]
    (tmp_path / "precision.jsonl").write_text("".join(texts), encoding="utf-8")
    return tmp_path


def test_a_row_has_the_newest_lines_of_one_cpu(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables.main(["--results", str(results), "--cpu", "Xeon"])
    printed = capsys.readouterr().out
    assert "| `resnet50` | 4.00 | 2.00 | 5.00 | 3.00 | – | 1.50 | 0.800 | 1.25 |" in printed
    assert "| `resnet50` | 123 | – | – | 7.00 |" in printed
    assert "| `resnet50` | 4.00 | – | – | – | 0.800 | 0.80% | 1.25 | 1.56 |" in printed
    assert "| geometric mean |  |  |  |  |  |  |  | 1.56 |" in printed


def test_a_peer_with_a_larger_error_is_not_the_best(results: Path) -> None:
    lines = tables._newest(tables._read(results / "precision.jsonl", 2), CPU)
    assert tables.best_peer("resnet50", {}, lines) == 1.25
    allowed = {key: {**fields, "error": 0.0} for key, fields in lines.items()}
    assert tables.best_peer("resnet50", {}, allowed) == 0.5


def test_a_table_replaces_the_one_with_its_heading() -> None:
    text = "# T\n\n| network | untuned | x |\n|---|---|---|\n| `a` | 1 | 2 |\n\n| network | other |\n|---|---|\n"
    table = "| network | untuned | y |\n|---|---|---|\n| `b` | 3 | 4 |\n"
    assert tables.replaced(text, table) == f"# T\n\n{table}\n| network | other |\n|---|---|\n"
    assert tables.replaced("# T\n", table) == f"# T\n\n{table}"
