"""How much of PyTorch's architectures `torch.compile(model, backend="retune")` compiles, and whether it is right.

    python -m benchmarks.torch_suite [--list] [--only REGEX] [--no-timing] [--seconds S] [--threads N] [--out FILE]
                                     [--tune SECONDS] [--zentorch PYTHON]

Models of torchvision, timm and transformers (`benchmarks.torch_models`) run on random weights, untuned or after
`--tune` seconds, each in a process of its own, whose time and memory are limited. A line per model says whether all
outputs are those of eager PyTorch: `error` is the largest difference, relative to the largest value of the output;
`tolerance` is 1e-4, or twice the error of eager PyTorch in float32 against itself in float64 where that is more, at
most 0.3. It names the operators that stay with PyTorch and their share of the FLOPs. Unless `--no-timing`, up to four
more lines give the median latency of ours, eager PyTorch, its default compiler, which is left out without a C++
compiler, and zentorch, interleaved. `--zentorch` names an interpreter of an environment of its own (`pip install
zentorch==2.12.0.1 torch==2.12.0 torchvision timm transformers`); the first line has its version and error, or why it
failed. Where a run has several models, the line `all` has the share of right ones.
"""

import contextlib
import copy
import logging
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.harness import Figure, Run, interleaved, parse
from benchmarks.peer_process import PeerProcess
from benchmarks.torch_models import ARCHITECTURES, TorchModel, make, versions
from retune.compiler.core.errors import MeasureError

TOLERANCE, MOST_TOLERANCE = 1e-4, 0.3
EAGER, COMPILED, ZENTORCH = "torch", "torch-compiled", "zentorch"
MOST_SECONDS = 240.0
"""Of CPU time, for which a model may compile and run, without its timing: the load of the machine decides nothing."""
MOST_WAIT = 4
"""Times as long a model may take by the clock."""
MOST_BYTES = 10 << 30
"""Of private memory of a model's process."""

_PASS_SECONDS = 0.03


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a model's process found. `verdict` is right, wrong or failed; `reason` says why it failed; `declined` are
    the operators that PyTorch runs, which do `declined_flops` of `flops`. `seconds` are latencies by backend.
    """

    verdict: str
    reason: str = ""
    error: float | None = None
    tolerance: float = TOLERANCE
    graphs: int = 0
    declined: tuple[str, ...] = ()
    declined_flops: int = 0
    flops: int = 0
    compile_seconds: float = 0.0
    seconds: Mapping[str, float] = field(default_factory=dict)
    zentorch: Mapping[str, object] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines, or the names of the models."""
    flags = {"list": "print the names of the models", "no-timing": "only say what is right and what falls back"}
    budget = {"tune": (0, "seconds of tuning for each model")}
    help_ = "timing for each model"
    texts = {"zentorch": ("PYTHON", "an interpreter with zentorch")}
    run = parse(__doc__, argv, seconds=3, seconds_help=help_, threads=(2,), flags=flags, options=budget, texts=texts)
    names = [name for name in ARCHITECTURES if run.wants(name)]
    if run.options["list"]:
        print("\n".join(names))
        return
    if not run.options["no-timing"] and not has_compiler():
        print("no C++ compiler: torch.compile's default is left out", file=sys.stderr)
    for threads in run.threads:
        outcomes = {}
        for name in names:
            outcomes[name] = outcome = run_apart(name, threads, run)
            run.write_all(figures(name, threads, outcome, run.options["tune"]))
        if len(outcomes) > 1:
            run.write(_summary(threads, outcomes))


def has_compiler() -> bool:
    """Whether PyTorch's default compiler can work here."""
    return shutil.which(os.environ.get("CXX", "g++")) is not None


def figures(name: str, threads: int, outcome: Outcome, budget: int = 0) -> Iterator[Figure]:
    """The lines of a model."""
    share = outcome.declined_flops / outcome.flops if outcome.flops else 0.0
    details = {
        key: value
        for key, value in asdict(outcome).items()
        if key not in ("error", "seconds", "declined_flops", "flops")
    }
    if not outcome.zentorch:
        del details["zentorch"]
    details |= {"tuning_seconds": budget} if budget else {}
    details |= {"declined_share": round(share, 6), "gflop": round(outcome.flops / 1e9, 4), "packages": versions()}
    is_right = float(outcome.verdict == "right")
    yield Figure(name, "retune", threads, "right", is_right, "", error=outcome.error, details=details)
    for backend, seconds in outcome.seconds.items():
        yield Figure(name, backend, threads, "latency", seconds * 1e3, "ms")


def _summary(threads: int, outcomes: Mapping[str, Outcome]) -> Figure:
    verdicts = [outcome.verdict for outcome in outcomes.values()]
    whole = sum(outcome.verdict == "right" and not outcome.declined for outcome in outcomes.values())
    details: dict[str, object] = {"models": len(outcomes), "right_without_fallback": whole, "packages": versions()}
    details |= {
        kind: [name for name, outcome in outcomes.items() if outcome.verdict == kind] for kind in ("wrong", "failed")
    }
    return Figure(
        "all", "retune", threads, "right", verdicts.count("right") / max(1, len(verdicts)), "", details=details
    )


def run_apart(name: str, threads: int, run: Run) -> Outcome:
    """Judge a model in a fresh process. One that is killed, or takes too long, has failed."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    timing = None if run.options["no-timing"] else run.seconds
    budget = run.options["tune"]
    limit = MOST_SECONDS + 10 * (timing or 0.0) + threads * budget
    with tempfile.TemporaryDirectory(prefix="retune-torch-") as folder:
        asked = name, threads, timing, budget, run.texts["zentorch"]
        process = context.Process(target=_child, args=(theirs, folder, math.ceil(limit), *asked))
        process.start()
        theirs.close()
        try:
            if not ours.poll(MOST_WAIT * limit):
                return Outcome("failed", f"took more than {MOST_WAIT * limit:g} s")
            outcome: Outcome = ours.recv()
        except EOFError:
            process.join(5)
            if process.exitcode == -signal.SIGXCPU:
                return Outcome("failed", f"took more than {limit:g} s of CPU time")
            return Outcome("failed", f"its process ended with code {process.exitcode}")
        else:
            return outcome
        finally:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            ours.close()


def _child(
    answer: Connection, folder: str, limit: int, name: str, threads: int, timing: float | None, budget: int, peer: str
) -> None:
    """The process of a model, which may use `limit` seconds of CPU time."""
    os.dup2(2, 1)  # what libraries print is no line of ours
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    os.environ.update(RETUNE_HOME=folder, HF_HUB_OFFLINE="1")
    try:
        outcome = judge(make(name), threads, timing, budget, _opener(peer, name, threads))
    except Exception as error:
        text = " ".join(str(error).split())
        outcome = Outcome("failed", f"{type(error).__name__}: {text}"[:400])
    answer.send(outcome)


def _opener(interpreter: str, name: str, threads: int) -> Callable[[], PeerProcess] | None:
    """What starts a model in zentorch; None without an interpreter."""
    asked = {"model": name, "threads": threads}
    arguments = interpreter, "zentorch_peer.py", asked, ZENTORCH, {"OMP_NUM_THREADS": str(threads)}
    return partial(PeerProcess, *arguments) if interpreter else None


def judge(
    model: TorchModel,
    threads: int,
    timing: float | None = None,
    budget: int = 0,
    open_peer: Callable[[], PeerProcess] | None = None,
) -> Outcome:
    """Compile a model, tuned for `budget` seconds, and compare it with eager PyTorch; with `timing`, time it for about
    so many seconds, beside the peer that `open_peer` starts.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.set_num_threads(threads)
    module = model.module
    with torch.inference_mode():
        with FlopCounterMode(display=False) as counter:
            wanted = _tensors(model(module))
        search = {"minutes": budget / 60} if budget else {"tune": False}
        fast = torch.compile(module, backend="retune", options={**search, "threads": threads})
        with _fallbacks() as fallbacks:
            began = time.perf_counter()
            found = _tensors(model(fast))
            compile_seconds = time.perf_counter() - began
        graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        again = _tensors(model(fast))
        outcome = Outcome(
            "right",
            graphs=graphs,
            declined=tuple(sorted({name for fallback in fallbacks for name in fallback.operators})),
            declined_flops=sum(fallback.flops for fallback in fallbacks),
            flops=counter.get_total_flops(),
            compile_seconds=round(compile_seconds, 2),
        )
        try:
            error = max(largest_error(found, wanted), largest_error(again, wanted))
        except ValueError as difference:
            return replace(outcome, verdict="wrong", reason=str(difference))
        tolerance = TOLERANCE
        if error > tolerance:
            with contextlib.suppress(RuntimeError, TypeError):  # not every model computes in float64
                tolerance = max(tolerance, min(2 * largest_error(wanted, _in_float64(model)), MOST_TOLERANCE))
        outcome = replace(outcome, error=error, tolerance=tolerance)
        if not error <= tolerance:
            return replace(outcome, verdict="wrong", reason="the results differ")
        return _timed(outcome, model, fast, timing, open_peer) if timing else outcome


def _in_float64(model: TorchModel) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    def wide(one: Any) -> Any:
        return one.double() if isinstance(one, torch.Tensor) and one.is_floating_point() else one

    args, kwargs = pytree.tree_map(wide, (model.args, dict(model.kwargs or {})))
    return _tensors(TorchModel(None, args, kwargs)(copy.deepcopy(model.module).double()))


def largest_error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest difference of all tensors, each relative to the largest finite value of what is wanted.

    Raises: ValueError when they differ in their number, shapes, or where they are not finite.
    """
    if len(found) != len(wanted):
        raise ValueError(f"{len(found)} tensors instead of {len(wanted)}")
    error = 0.0
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one.shape != other.shape:
            raise ValueError(f"output {place} has shape {tuple(one.shape)}, not {tuple(other.shape)}")
        finite = other.isfinite()
        if not bool((one.isfinite() == finite).all()):
            raise ValueError(f"output {place} is not finite at other places")
        ours, theirs = one[finite].double(), other[finite].double()
        if theirs.numel():
            scale = float(theirs.abs().max())
            difference = float((ours - theirs).abs().max())
            error = max(error, difference / scale if scale else difference)
    return error


def _tensors(result: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    values = result.to_tuple() if hasattr(result, "to_tuple") else result
    return [one.clone() for one in pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


@contextlib.contextmanager
def _fallbacks() -> Iterator[list[Any]]:
    """What the backend leaves to PyTorch meanwhile: the `Fallback` of its warnings."""
    found: list[Any] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (one := getattr(record, "fallback", None)) is not None:
                found.append(one)

    log, handler = logging.getLogger("retune.torch_backend"), Keep()
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)


def _timed(
    outcome: Outcome, model: TorchModel, fast: Any, seconds: float, open_peer: Callable[[], PeerProcess] | None
) -> Outcome:
    """The outcome with latencies."""
    import torch

    contenders: dict[str, Callable[[], object] | PeerProcess] = {
        "retune": lambda: model(fast),
        EAGER: lambda: model(model.module),
    }
    if has_compiler():
        other = torch.compile(model.module)
        with contextlib.suppress(Exception):  # of PyTorch, which may raise anything: then there is no figure
            model(other)
            contenders[COMPILED] = lambda: model(other)
    with contextlib.ExitStack() as peers:
        if open_peer is not None:
            try:
                peer = peers.enter_context(open_peer())
                contenders[ZENTORCH] = peer
                outcome = replace(outcome, zentorch=peer.ready)
            except MeasureError as error:
                lines = str(error).strip().splitlines()
                outcome = replace(outcome, zentorch={"failure": lines[-1]})
        passes = max(3, round(seconds / len(contenders) / _PASS_SECONDS))
        return replace(outcome, seconds=interleaved(contenders, passes=passes, pass_seconds=_PASS_SECONDS))


if __name__ == "__main__":
    main()
