"""Architectures of timm that nobody chose, tuned by `retune.tune`, beside ONNX Runtime and OpenVINO.

    python -m benchmarks.unseen [--only REGEX] [--threads N] [--seconds S] [--count N] [--seed N] [--out FILE]

`--count` architectures are drawn by `--seed` from timm's list, without those of `benchmarks.torch_models` and those
with more than 100 million parameters. Each runs on seeded random weights and one image of its own size. `--seconds` is
what a command may take, the comparison at its end included. A line per contender: its latency in ms; one for the
seconds of the command. The best peer is that of float32. What fails gets a line with the reason (`failure`).
"""

import json
import math
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import retune
from benchmarks.harness import Figure, Run, parse
from benchmarks.torch_models import ARCHITECTURES, declare_operators, make_timm
from retune.compiler.tune.compare import OPENVINO, REFERENCE

_MOST_PARAMETERS = 100_000_000
_OURS = ("untuned", "tuned")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines of every architecture that was drawn."""
    options = {"count": (12, "how many architectures are drawn"), "seed": (0, "what they are drawn by")}
    run = parse(__doc__, argv, seconds=120, seconds_help="seconds of each command", threads=(1, 2), options=options)
    for name in drawn(run.options["count"], run.options["seed"]):
        for threads in run.threads if run.wants(name) else ():
            run.write_all(figures(name, threads, run))


def drawn(count: int, seed: int) -> list[str]:
    """So many architectures, by their names in timm."""
    declare_operators()
    import timm
    import torch

    names = [name for name in timm.list_models() if f"timm/{name}" not in ARCHITECTURES]
    Random(seed).shuffle(names)
    found: list[str] = []
    for name in names:
        if len(found) < count:
            with torch.device("meta"):  # no memory for the weights
                module = timm.create_model(name, pretrained=False)
            if sum(parameter.numel() for parameter in module.parameters()) <= _MOST_PARAMETERS:
                found.append(name)
    return found


def figures(name: str, threads: int, run: Run) -> Iterator[Figure]:
    """Tune one architecture and take the latencies from the report of its run."""
    case = f"timm/{name}"
    details: dict[str, object] = {"seed": run.options["seed"], "budget_seconds": run.seconds}
    with tempfile.TemporaryDirectory(prefix="retune-unseen-") as folder:
        began = time.perf_counter()
        try:
            comparison = _tuned(name, threads, run.seconds, Path(folder))
        except Exception as error:  # a model that fails is a result
            failure = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            yield Figure(case, "retune", threads, "latency", math.nan, "ms", details={**details, "failure": failure})
            return
        seconds = time.perf_counter() - began
    times = {one["name"]: one["seconds"] for one in comparison["contenders"]}
    # Those that compute in float32, as ours does.
    peers = [latency for contender, latency in times.items() if contender in (REFERENCE, OPENVINO)]
    if peers:
        details |= {f"{ours}_of_best_peer": round(min(peers) / times[ours], 3) for ours in _OURS}
    for one in comparison["contenders"]:
        backend = {"untuned": "retune-untuned", "tuned": "retune"}.get(one["name"], one["name"])
        yield Figure(case, backend, threads, "latency", one["seconds"] * 1e3, "ms", error=one["error"], details=details)
    yield Figure(case, "retune", threads, "export and command", seconds, "s", details=details)


def _tuned(name: str, threads: int, seconds: float, folder: Path) -> Any:
    """The comparison at the end of a run."""
    model = make_timm(name)
    retune.tune(
        model.module, *model.args, minutes=seconds / 60, store=folder, progress=False, options={"threads": threads}
    )
    (report,) = folder.glob("runs/*/report.json")
    return json.loads(report.read_text(encoding="utf-8"))["comparison"]


if __name__ == "__main__":
    main()
