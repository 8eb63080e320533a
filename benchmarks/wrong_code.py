"""Counts wrong results: random graphs, PyTorch functions and tuned programs against a reference.

    python -m benchmarks.wrong_code [--only REGEX] [--seed FIRST] [--count N] [--seconds S] [--out FILE] [--resume]

Kinds are graphs of NNSmith (`pip install nnsmith`), graphs with conditions, loops and scans inside each other, PyTorch
functions with views and writes in place, and operators tuned with random schedules, four programs each. Each
kind takes `--count` seeds from `--seed` on, for at most `--seconds`. Every 25 seeds a line says what came of them: how
many were right, wrong, refused, skipped, unstable (a rounding of the inputs changes as much) or differ from a reference
that is at fault. `--resume` goes on behind the last seed of each kind in `--out`; `--total` prints a table of the file.
Wrong results are printed with the command that repeats them, and the exit code is 1. `--plant` plants a fault in the
code generator: every kind must find it.
"""

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from benchmarks.correctness.compare import Outcome
from benchmarks.correctness.worker import KINDS
from benchmarks.harness import Figure, Run, parse
from retune.compiler.measure.processes.worker_process import WorkerFailedError, WorkerProcess

_SLICE = 25
"""Seeds of a line, and of a process: what ends a run costs at most so many."""
_LIMIT_SECONDS = 240.0
_REST = ("refused", "skipped", "unstable", "reference")
_NAMES = re.compile(r"'[^']*'|\"[^\"]*\"|\b\w*\d\w*\b")
"""What differs between the texts of one reason."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lines of every kind; 1 when a result was wrong."""
    options = {"seed": (0, "the first seed"), "count": (1000, "how many seeds of each kind")}
    flags = {
        "resume": "go on behind the seeds of --out",
        "plant": "with a fault in the code generator",
        "total": "print a table of --out, and run nothing",
    }
    run = parse(__doc__, argv, seconds=1e6, seconds_help="seconds of each kind", options=options, flags=flags)
    if run.options["total"]:
        sys.stdout.write(table(_lines(run)))
        return 0
    return int(sum(count(kind, run) for kind in KINDS if run.wants(kind) and _can_run(kind)) > 0)


def _can_run(kind: str) -> bool:
    missing = [package for package in KINDS[kind][2] if find_spec(package) is None]
    if missing:
        sys.stderr.write(f"{kind} is left out, it needs: pip install {' '.join(missing)}\n")
    return not missing


def count(kind: str, run: Run) -> int:
    """Try the seeds of a kind; how many results were wrong."""
    first, began, wrong = run.options["seed"], time.monotonic(), 0
    if run.options["resume"]:
        first = max([first, *(int(line["first"]) + int(line["seeds"]) for line in _lines(run) if line["case"] == kind)])
    last = first + run.options["count"]
    while first < last and time.monotonic() - began < run.seconds:
        stop = first + min(_SLICE, last - first)
        figure = _slice(kind, range(first, stop), run, began + run.seconds)
        run.write(figure)
        wrong += int(figure.value)
        first = stop
    return wrong


def _slice(kind: str, seeds: range, run: Run, until: float) -> Figure:
    counts, reasons = Counter[str](), {name: Counter[str]() for name in _REST}
    began, tried = time.monotonic(), 0
    with WorkerProcess() as worker:
        for seed in seeds:
            outcome = _outcome(worker, kind, seed, bool(run.options["plant"]))
            tried += 1
            counts["right"] += outcome.right
            counts["wrong"] += len(outcome.wrong)
            for name, texts in reasons.items():
                counts[name] += len(getattr(outcome, name))
                texts.update(_NAMES.sub("_", text.partition("\n")[0])[:120] for text in getattr(outcome, name))
            for text in (*outcome.wrong, *outcome.unstable):
                what = "WRONG" if text in outcome.wrong else "unstable"
                sys.stderr.write(
                    f"{what}: python -m benchmarks.wrong_code --only {kind} --seed {seed} --count 1\n{text}\n"
                )
            if time.monotonic() > until:
                break
    details: dict[str, object] = {"first": seeds.start, "seeds": tried, "against": KINDS[kind][1]}
    details |= {name: counts[name] for name in ("right", *_REST)}
    details |= {f"{name}_why": dict(texts.most_common(8)) for name, texts in reasons.items() if texts}
    details["seconds"] = round(time.monotonic() - began, 1)
    return Figure(kind, "retune", 2, "wrong results", counts["wrong"], "results", details=details)


def _outcome(worker: WorkerProcess, kind: str, seed: int, planted: bool) -> Outcome:
    try:
        found = worker.call("benchmarks.correctness.worker:outcome", kind, seed, planted, timeout_s=_LIMIT_SECONDS)
    except WorkerFailedError as error:  # a crash is wrong, and so is no end
        return Outcome(wrong=(f"{type(error).__name__}: {error}",))
    assert isinstance(found, Outcome)
    return found


def _lines(run: Run) -> Iterator[dict[str, Any]]:
    for text in run.out.read_text(encoding="utf-8").splitlines() if run.out and run.out.exists() else ():
        yield json.loads(text)


def table(lines: Iterator[dict[str, Any]]) -> str:
    """What all lines say together, kind by kind, in Markdown."""
    totals: dict[str, Counter[str]] = {}
    for line in lines:
        total = totals.setdefault(f"{line['case']} | {line['against']}", Counter())
        total.update({name: int(line[name]) for name in ("seeds", "right", *_REST)} | {"wrong": int(line["value"])})
    columns = ("seeds", "right", "wrong", *_REST)
    rows = [f"| {name} | {' | '.join(f'{total[column]:,}' for column in columns)} |" for name, total in totals.items()]
    return "\n".join(
        [f"| kind | compared with | {' | '.join(columns)} |", f"|---|---|{'---:|' * len(columns)}", *rows, ""]
    )


if __name__ == "__main__":
    sys.exit(main())
