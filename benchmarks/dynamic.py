"""Networks whose shapes change from request to request, and recurrent ones, next to ONNX Runtime, OpenVINO and PyTorch.

    python -m benchmarks.dynamic [--only REGEX] [--quick] [--threads N] [--seconds S] [--out FILE] [--compiled 0]
        [--requests N] [--shapes N] [--passes N] [--seed N]

Three parts for each network of `benchmarks.dynamic_networks`:

- `compile`: seconds in which we compile it for all shapes, and for the middle one alone (`retune-fixed`).
- `stream`: each contender loads its file in a fresh process and answers random shapes, ten in turn: all seconds,
  loading included and imports not (`import_seconds`); the median and the 99th percentile of a request; the first call
  of a shape over its later ones (the median, and the largest in `details`); growth of memory in the second half.
- `steady`: milliseconds on `--shapes` of these shapes, interleaved, the geometric mean. `retune-fixed` is our network
  compiled for the shape, and tuned where `--seconds` is at least 1.

Peers load what they load fastest: ONNX Runtime the graph that it has optimized, OpenVINO (in float32) its own format,
`torch.compile(dynamic=True)` with a warm cache. Every output of every request is compared with ONNX Runtime's: what
differs by more than 0.1% of the largest has no time but a `failure`, as has what cannot run. Parts whose lines are in
`--out` are left out, so a run goes on. `--quick` takes small networks, few requests, and no `torch.compile`.
"""

import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.dynamic_networks import CASES, Case, Sizes, draw, shapes_of
from benchmarks.dynamic_peers import installed
from benchmarks.dynamic_stream import COMPILED, FIXED, OURS, SESSION, Arrays, Timed
from benchmarks.harness import Figure, Run, parse, percentile
from retune.compiler.core.errors import MeasureError, RetuneError
from retune.compiler.measure.processes.worker_process import WorkerProcess

TOLERANCE = 1e-3
"""Of the largest output."""
_ROUND, _REVISITED = 10, 24
"""Requests of a contender before those of the next; shapes that are called again."""
_QUICK = {"requests": 12, "shapes": 2, "passes": 1, "compiled": 0}


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines of each part of each network."""
    options = {
        "compiled": (1, "whether PyTorch's compiler, which takes minutes a network, takes part"),
        "requests": (200, "requests of a stream"),
        "shapes": (12, "shapes of the steady part"),
        "passes": (7, "timed passes of each shape of it"),
        "seed": (0, "of the shapes"),
    }
    run = parse(
        __doc__,
        argv,
        seconds=1e-9,
        seconds_help="seconds of tuning for each fixed shape; less than 1: none",
        threads=(1, 2),
        options=options,
        flags={"quick": "small networks, few requests"},
    )
    for threads in run.threads:
        for name in filter(run.wants, CASES):
            with tempfile.TemporaryDirectory(prefix="retune-dynamic-") as folder:
                bench = Bench(name, CASES[name], threads, run, Path(folder))
                for part, figures in PARTS.items():
                    if part not in _done(run.out, name, threads):
                        run.write_all(figures(bench))


def _done(out: Path | None, name: str, threads: int) -> set[str]:
    """The parts of a network whose lines a file has."""
    if out is None or not out.exists():
        return set()
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {line["metric"] for line in lines if (line["case"], line["threads"]) == (name, threads)}


@dataclass
class Bench:
    """A network, its requests, and the contenders' files, written when they are first needed."""

    name: str
    case: Case
    threads: int
    run: Run
    folder: Path
    compile_seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def option(self, name: str) -> int:
        """An option of the command line, or that of a quick run."""
        return _QUICK.get(name, self.run.options[name]) if self.run.options["quick"] else self.run.options[name]

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The network, with weights."""
        return self.case.build(bool(self.run.options["quick"]))

    @cached_property
    def path(self) -> str:
        """Its ONNX file."""
        path = str(self.folder / f"{self.name}.onnx")
        onnx.save_model(self.model, path)
        return path

    @cached_property
    def requests(self) -> list[Sizes]:
        """The extents of each request."""
        return self.case.stream(self.option("requests"), self.option("seed"))

    @cached_property
    def files(self) -> dict[str, str]:
        """The file of each contender that takes the network; the others are in `failures`."""
        files: dict[str, str] = {}
        self._add(files, OURS, lambda: self.compile(None)[0])
        samples = [self.inputs(sizes) for sizes in self.case.spread(self.requests, 3)]
        for backend in installed():
            if backend != COMPILED or self.option("compiled"):
                arguments = backend, self.path, str(self.folder), self.threads, samples if backend == COMPILED else []
                self._add(files, backend, lambda values=arguments: self.call("prepare", *values))  # type: ignore[misc]
        return files

    def _add(self, files: dict[str, str], backend: str, make: Callable[[], str]) -> None:
        try:
            files[backend] = make()
        except (MeasureError, RetuneError) as error:
            self.failures[backend] = " ".join(str(error).split())

    def inputs(self, sizes: Sizes) -> Arrays:
        """Inputs of these extents."""
        return draw(self.model, sizes, seed=self.option("seed"))

    def worker(self) -> WorkerProcess:
        """A process, in which PyTorch's compiler has a cache in our folder."""
        return WorkerProcess(environment={"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")})

    def call(self, function: str, *args: object) -> Any:
        """The result of a function of `dynamic_peers` in a process of its own."""
        with self.worker() as worker:
            return worker.call(f"benchmarks.dynamic_peers:{function}", *args)

    def compile(self, sizes: Sizes | None, tuning: float = 0.0) -> tuple[str, float]:
        """Compile our network for all shapes, or for one; its file, and seconds."""
        label = "all" if sizes is None else "x".join(map(str, sizes.values()))
        out = str(self.folder / f"{label}.retune")
        shapes = None if sizes is None else shapes_of(self.model, sizes)
        return out, self.call("compile_ours", self.path, shapes, self.threads, tuning, out)

    def failed(self, backend: str, metric: str, unit: str, failure: str) -> Figure:
        """The line of what has no figure."""
        return Figure(self.name, backend, self.threads, metric, math.nan, unit, details={"failure": failure})

    def figure(self, backend: str, metric: str, value: float, unit: str, **details: object) -> Figure:
        """A line."""
        return Figure(self.name, backend, self.threads, metric, value, unit, details=details)


def compiles(bench: Bench) -> Iterator[Figure]:
    """Seconds to compile the network for all shapes, and for one."""
    (middle,) = bench.case.spread(bench.requests, 3)[1:2] or bench.requests[:1]
    for backend, sizes in ((OURS, None), (FIXED, middle)):
        try:
            seconds = bench.compile(sizes)[1]
        except (MeasureError, RetuneError) as error:
            yield bench.failed(backend, "compile", "s", " ".join(str(error).split()))
        else:
            yield bench.figure(backend, "compile", seconds, "s", **({"sizes": dict(sizes)} if sizes else {}))


@dataclass
class Stream:
    """What one contender answered. `error` is the largest of all requests; `failure` ends it."""

    worker: WorkerProcess
    import_seconds: float = 0.0
    load_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list)
    revisited: list[float] = field(default_factory=list)
    error: float = 0.0
    memory: list[float] = field(default_factory=list)
    failure: str = ""


def streams(bench: Bench) -> Iterator[Figure]:
    """All contenders, each in its process, on the same requests."""
    requests = bench.requests
    marked = _first_of_shape(requests, _REVISITED)
    with ExitStack() as stack:
        contenders = {backend: Stream(stack.enter_context(bench.worker())) for backend in bench.files}
        for backend, stream in contenders.items():
            _attempt(stream, lambda: _start(bench, backend, stream))  # noqa: B023 (called at once)
        for first in range(0, len(requests), _ROUND):
            batch = [
                (bench.inputs(requests[at]), at in marked) for at in range(first, min(first + _ROUND, len(requests)))
            ]
            _answer_round(contenders, batch)
    for backend, stream in contenders.items():
        yield from summary(bench, backend, stream, len(requests))
    for backend, failure in bench.failures.items():
        yield bench.failed(backend, "stream", "s", failure)


def _first_of_shape(requests: Sequence[Sizes], count: int) -> set[int]:
    """The numbers of the requests, `count` or fewer, that are the first of their shape; the very first is left out, as
    it does more than that.
    """
    seen: dict[tuple[int, ...], int] = {}
    for number, sizes in enumerate(requests):
        seen.setdefault(tuple(sizes.values()), number)
    firsts = [number for number in seen.values() if number] or [0]
    return {firsts[number * len(firsts) // count] for number in range(count)}


def _attempt(stream: Stream, work: Callable[[], object]) -> None:
    """Do this, or note why it cannot be done."""
    try:
        if not stream.failure:
            work()
    except (MeasureError, RetuneError) as error:
        stream.failure = " ".join(str(error).split())


def _start(bench: Bench, backend: str, stream: Stream) -> None:
    arguments = backend, bench.files[backend], bench.threads
    stream.import_seconds, stream.load_seconds = stream.worker.call("benchmarks.dynamic_stream:start", *arguments)
    stream.memory.append(stream.worker.call("benchmarks.dynamic_stream:memory"))


def _answer_round(contenders: Mapping[str, Stream], batch: Sequence[tuple[Arrays, bool]]) -> None:
    """Let each contender answer, and compare it with ONNX Runtime."""
    answers: dict[str, list[Timed]] = {}

    def ask(backend: str, stream: Stream) -> None:
        answers[backend] = stream.worker.call("benchmarks.dynamic_stream:answer", batch)
        stream.memory.append(stream.worker.call("benchmarks.dynamic_stream:memory"))

    for backend, stream in contenders.items():
        _attempt(stream, lambda: ask(backend, stream))  # noqa: B023 (called at once)
    for backend, answer in answers.items():
        stream = contenders[backend]
        for number, (seconds, later, outputs) in enumerate(answer):
            stream.seconds.append(seconds)
            stream.revisited += [] if later is None else [seconds / later]
            if backend != SESSION and SESSION in answers:
                # Not `max`, which ignores a NaN.
                stream.error = float(np.maximum(stream.error, _difference(outputs, answers[SESSION][number][2])))
        if not stream.error <= TOLERANCE:
            stream.failure = f"the outputs differ from ONNX Runtime's by {stream.error:.2g} of the largest"


def _difference(made: Sequence[NDArray[Any]], wanted: Sequence[NDArray[Any]]) -> float:
    """The largest difference, relative to the largest value of each output; infinite for other shapes."""
    if [array.shape for array in made] != [array.shape for array in wanted]:
        return math.inf
    worst = 0.0
    for ours, theirs in zip(made, wanted, strict=True):
        apart = np.abs(ours.astype(np.float64) - theirs).max(initial=0)
        worst = float(np.maximum(worst, apart / (np.abs(theirs).max(initial=0) + 1e-30)))
    return worst


def summary(bench: Bench, backend: str, stream: Stream, count: int) -> Iterator[Figure]:
    """The lines of one contender."""
    if stream.failure:
        yield bench.failed(backend, "stream", "s", stream.failure)
        return
    known = {"requests": count, "shapes": len({tuple(sizes.values()) for sizes in bench.requests})}
    load, imports = round(stream.load_seconds, 4), round(stream.import_seconds, 4)
    whole = stream.load_seconds + sum(stream.seconds)
    details = {**known, "load_seconds": load, "import_seconds": imports, "first_request_ms": stream.seconds[0] * 1e3}
    error = None if backend == SESSION else stream.error
    yield Figure(bench.name, backend, bench.threads, "stream", whole, "s", error=error, details=details)
    yield bench.figure(backend, "request p50", statistics.median(stream.seconds) * 1e3, "ms", **known)
    yield bench.figure(backend, "request p99", percentile(stream.seconds, 0.99) * 1e3, "ms", **known)
    ratios = {"largest": round(max(stream.revisited), 3), "p90": round(percentile(stream.revisited, 0.9), 3)}
    yield bench.figure(backend, "first / later call", statistics.median(stream.revisited), "", **ratios)
    half = stream.memory[len(stream.memory) // 2]
    grown = {"since_loading": round(stream.memory[-1] - stream.memory[0], 1), "at_end": round(stream.memory[-1], 1)}
    yield bench.figure(backend, "memory growth", stream.memory[-1] - half, "MiB", **grown)


def steadies(bench: Bench) -> Iterator[Figure]:
    """Times of single shapes: the dynamic network, one compiled for the shape, and the peers."""
    times: dict[str, list[float]] = {}
    shapes = bench.case.spread(bench.requests, bench.option("shapes"))
    tuning = bench.run.seconds if bench.run.seconds >= 1 else 0.0
    files = dict(bench.files)
    for sizes in shapes:
        try:
            files[FIXED] = bench.compile(sizes, tuning)[0]
            measured = bench.call("steady", files, bench.inputs(sizes), bench.threads, bench.option("passes"))
        except (MeasureError, RetuneError) as error:
            yield bench.failed(OURS, "steady", "ms", f"at {dict(sizes)}: {' '.join(str(error).split())}")
            return
        for backend, seconds in measured.items():
            times.setdefault(backend, []).append(seconds)
    peers = [seconds for backend, seconds in times.items() if backend not in (OURS, FIXED)]
    best = [min(of_shape) for of_shape in zip(*peers, strict=True)]
    for backend, seconds in times.items():
        details: dict[str, object] = {"sizes": [dict(sizes) for sizes in shapes], "tuning_seconds": tuning}
        details["ms"] = [float(f"{of_shape * 1e3:.4g}") for of_shape in seconds]
        if backend in (OURS, FIXED) and best:
            details |= _ratios("times_as_fast_as_the_best_peer", best, seconds)
        if backend == OURS:
            details |= _ratios("times_as_fast_as_fixed", times[FIXED], seconds)
        yield bench.figure(backend, "steady", statistics.geometric_mean(seconds) * 1e3, "ms", **details)


def _ratios(name: str, others: Sequence[float], seconds: Sequence[float]) -> dict[str, object]:
    """How many times as fast, the geometric mean and the least."""
    ratios = [other / ours for other, ours in zip(others, seconds, strict=True)]
    return {name: round(statistics.geometric_mean(ratios), 3), f"{name}_least": round(min(ratios), 3)}


PARTS: Mapping[str, Callable[[Bench], Iterator[Figure]]] = {"compile": compiles, "stream": streams, "steady": steadies}
"""The parts by the metric of their lines."""


if __name__ == "__main__":
    main()
