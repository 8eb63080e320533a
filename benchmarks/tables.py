"""Writes the tables of README and docs/explanation/benchmarks.md from the lines of `networks` and `precision`.

    python -m benchmarks.tables [--cpu REGEX] [--threads N] [--results FOLDER] [--write]

A table has the newest lines of each network on one CPU model, by default that of the newest line of `networks.jsonl`.
The first table, of README, is in float32, but for the columns of `precision.jsonl`: `auto` at 1%, untuned, and the best
peer in any precision, int8 of the same QDQ file included, whose error is no larger than 1% or than that of `auto`. The
second one is peak memory and the size of the file (MiB), and load plus first run (ms); the third one has the networks
of `precision.jsonl` in every form (ms) and the error of `auto` at 1%. Without `--write` the tables are printed; with
it they replace those in the documents that begin with the same heading.
"""

import argparse
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

NETWORKS = (
    "resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "segformer_b0", "swin_tiny", "yolov8n", "unet",
    "bert_base", "minilm_l6", "vit_small", "smollm2_135m", "whisper_tiny_encoder",
)  # fmt: skip
README, BENCHMARKS = Path("README.md"), Path("docs/explanation/benchmarks.md")
FLOAT32 = {"untuned": "retune-untuned", "tuned": "retune", "ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}
COLUMNS = (*FLOAT32, "PyTorch eager", "speedup", "auto at 1%", "best peer in any precision")
_ALL = {"Retune": "retune", "ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}
COSTS = {
    "peak memory": _ALL,
    "file size": {"Retune": "retune", "ONNX": "onnxruntime"},
    "load and first run": _ALL,
}
"""Columns of each metric, and their backends: MiB, MiB, ms."""
FORMS = ("float32", "bfloat16", "int8", "auto-0.5%", "auto-1%")
_PEERS = ("onnxruntime", "openvino", "torch")
_TOLERANCE = 0.01

Lines = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""The newest line by network, backend and metric."""


def main(argv: Sequence[str] | None = None) -> None:
    """Print the tables, or write them into the documents."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", default="", metavar="REGEX", help="the CPU model of the lines")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="the threads of the lines; 2")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), metavar="FOLDER")
    parser.add_argument("--write", action="store_true", help="replace the tables in the documents")
    options = parser.parse_args(argv)
    lines = {name: _read(options.results / f"{name}.jsonl", options.threads) for name in ("networks", "precision")}
    newest = max((line for line in lines["networks"] if re.search(options.cpu, line["machine"]["cpu"])), key=_date)
    cpu = newest["machine"]["cpu"]
    networks, precision = (_newest(lines[name], cpu) for name in ("networks", "precision"))
    tables = (
        (README, table_of_latencies(networks, precision)),
        (BENCHMARKS, table_of_costs(networks)),
        (BENCHMARKS, table_of_precisions(precision)),
    )
    for path, table in tables:
        if options.write:
            path.write_text(replaced(path.read_text(encoding="utf-8"), table), encoding="utf-8")
        else:
            print(f"{cpu}\n\n{table}")


def table_of_latencies(networks: Lines, precision: Lines) -> str:
    """The table of README."""
    rows = []
    for name in NETWORKS:
        values = {column: _latency(networks, name, backend) for column, backend in FLOAT32.items()}
        values["PyTorch eager"] = _latency(networks, name, "torch")
        peers = [value for peer in _PEERS if not math.isnan(value := _latency(networks, name, peer))]
        if not peers or math.isnan(values["tuned"]):
            continue
        values["speedup"] = min(peers) / values["tuned"]
        auto = precision.get((name, "retune-auto-1%", "latency"), {})
        values["auto at 1%"] = _number(auto.get("value"))
        values["best peer in any precision"] = best_peer(name, networks, precision)
        rows.append([f"`{name}`", *(_text(values[column], column == "speedup") for column in COLUMNS)])
    return _table(("network", *COLUMNS), rows)


def best_peer(name: str, networks: Lines, precision: Lines) -> float:
    """Milliseconds of the fastest peer of a network whose error is no larger than 1%, or than that of `auto`."""
    auto = precision.get((name, "retune-auto-1%", "latency"), {})
    allowed = max(_TOLERANCE, auto.get("error") or 0.0)
    values = [
        _number(line["value"])
        for source in (networks, precision)
        for (case, backend, metric), line in source.items()
        if (case, metric) == (name, "latency") and backend.startswith(("onnxruntime", "openvino", "torch"))
        if (line.get("error") or 0.0) <= allowed
    ]
    return min((value for value in values if not math.isnan(value)), default=math.nan) if auto else math.nan


def table_of_precisions(precision: Lines) -> str:
    """Milliseconds of our forms and of the best peer whose error is no larger than allowed, and the geometric means."""
    heading = ("network", "float32", "bfloat16", "int8", "auto at 0.5%", "auto at 1%", "error", "best peer", "speedup")
    rows, speedups = [], []
    for name in dict.fromkeys(case for case, _, _ in precision):
        forms = [_latency(precision, name, f"retune-{form}") for form in FORMS]
        peer, error = (
            best_peer(name, {}, precision),
            precision.get((name, "retune-auto-1%", "latency"), {}).get("error"),
        )
        speedups += [] if math.isnan(peer) else [peer / forms[-1]]
        share = "–" if error is None else f"{error:.2%}"
        rows.append([f"`{name}`", *map(_text, forms), share, _text(peer), _text(peer / forms[-1], True)])
    if speedups:
        mean = _text(math.exp(sum(map(math.log, speedups)) / len(speedups)), True)
        rows.append(["geometric mean", *[""] * 7, mean])
    return _table(heading, rows)


def table_of_costs(networks: Lines) -> str:
    """Peak memory, size of the file and first run of ours, and of ONNX Runtime and OpenVINO, which read one file."""
    rows = []
    for name in NETWORKS:
        values = [
            _number(networks.get((name, backend, metric), {}).get("value"))
            for metric, backends in COSTS.items()
            for backend in backends.values()
        ]
        if not all(map(math.isnan, values)):
            rows.append([f"`{name}`", *(_text(value) for value in values)])
    return _table(
        ("network", *(f"{metric}: {whose}" for metric, backends in COSTS.items() for whose in backends)), rows
    )


def replaced(text: str, table: str) -> str:
    """A document with the table in place of that whose heading begins with the same two columns; at the end where it
    has none.
    """
    start = " | ".join(table.splitlines()[0].split(" | ")[:2])
    pattern = re.compile(rf"^{re.escape(start)}.*\n(?:\|.*\n)*", re.MULTILINE)
    if not pattern.search(text):
        return f"{text.rstrip()}\n\n{table}"
    return pattern.sub(lambda _: table, text, count=1)


def _latency(lines: Lines, name: str, backend: str) -> float:
    return _number(lines.get((name, backend, "latency"), {}).get("value"))


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _text(value: float, is_ratio: bool = False) -> str:
    """Three digits, as in the documents."""
    if math.isnan(value):
        return "–"
    if is_ratio:
        return f"{value:.2f}"
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{round(value, digits):,.{min(digits, 3)}f}"


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines).replace("| --- ", "|---").replace("---|", "---|")


def _read(path: Path, threads: int) -> list[dict[str, Any]]:
    """The lines of a file for a number of threads; none where there is no file."""
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line["threads"] == threads]


def _newest(lines: Sequence[dict[str, Any]], cpu: str) -> Lines:
    here = sorted((line for line in lines if line["machine"]["cpu"] == cpu), key=_date)
    return {(line["case"], line["backend"], line["metric"]): line for line in here}


def _date(line: Mapping[str, Any]) -> str:
    return str(line["machine"]["date"])


if __name__ == "__main__":
    main()
