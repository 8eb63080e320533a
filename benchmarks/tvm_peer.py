"""Runs TVM's MetaSchedule on an operator given as JSON, and reports as lines of JSON.

    PYTHON benchmarks/tvm_peer.py '{"problem": {...}, "threads": N, "trials": N, "seed": N, "cores": N}'

Runs in an interpreter that has TVM and nothing of Retune, with TVM_NUM_THREADS in its environment. The first line is
{"curve": [[trials, seconds of tuning, seconds of the best program's call], ...], "seconds": of all tuning, "failed":
programs, "version": of TVM}. Then every line read from stdin, a number of seconds, is answered by {"times": [seconds of
a call, ...]} of the best program, timed for about as long; the list is empty if there is none. Search and measuring are
MetaSchedule's own, with its defaults; weights are constants that it may pack, layouts are channels-last.
"""

import contextlib
import json
import math
import os
import sys
import tempfile
import time
from typing import Any

import numpy as np
import tvm
from tvm import te, topi
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule
from tvm.s_tir.meta_schedule.arg_info import ArgInfo
from tvm.s_tir.meta_schedule.builder.local_builder import default_build
from tvm.s_tir.meta_schedule.testing.te_workload import conv2d_transpose_nhwc

SAMPLES = 1000
"""Calls timed in one pass at the most."""


class Answers:
    """Writes lines of JSON to the original stdout; whatever libraries print goes to stderr from then on."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)

    def write(self, answer: dict[str, object]) -> None:
        """One line."""
        self._file.write(json.dumps(answer) + "\n")
        self._file.flush()


def main() -> None:
    """Tune, then time until stdin ends."""
    asked = json.loads(sys.argv[1])
    answers = Answers()
    best, tuned = tune(definition(asked["problem"]), asked)
    answers.write(tuned)
    for line in sys.stdin:
        answers.write({"times": best(float(line)) if best else []})


def tune(function: Any, asked: dict[str, Any]) -> tuple[Any, dict[str, object]]:
    """How to time the best program (None without one), and how the search went."""
    cpu = tvm.get_global_func("target.llvm_get_system_cpu")()
    target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": asked["threads"]})
    curve: list[tuple[int, float, float]] = []
    failed = 0
    began = time.monotonic()

    @derived_object
    class Watch(meta_schedule.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        """Follows the search."""

        def apply(self, _scheduler: Any, _task: int, _candidates: Any, _builds: Any, runs: Any) -> None:
            nonlocal failed
            trials, _, best = curve[-1] if curve else (0, 0.0, math.inf)
            costs = [[float(cost) for cost in run.run_secs] for run in runs if run.error_msg is None]
            failed += len(runs) - len(costs)
            fastest = min([best, *(sum(each) / len(each) for each in costs)])
            curve.append((trials + len(runs), time.monotonic() - began, fastest))

    with tempfile.TemporaryDirectory(prefix="retune-tvm-") as folder:
        database = meta_schedule.tir_integration.tune_tir(
            mod=function,
            target=target,
            work_dir=folder,
            max_trials_global=asked["trials"],
            num_trials_per_iter=min(64, asked["trials"]),
            num_tuning_cores=asked["cores"],
            measure_callbacks=[*meta_schedule.measure_callback.MeasureCallback.create("default"), Watch()],
            seed=asked["seed"],
        )
        seconds = time.monotonic() - began
        schedule = meta_schedule.tir_integration.compile_tir(database, function, target)
    points = [[trials, spent, best if math.isfinite(best) else None] for trials, spent, best in curve]
    tuned: dict[str, object] = {"curve": points, "seconds": seconds, "failed": failed, "version": tvm.__version__}
    return (None if schedule is None else stopwatch(schedule.mod, target)), tuned


def stopwatch(module: Any, target: Any) -> Any:
    """A function from seconds to the seconds of single calls, on random numbers."""
    shapes = [tuple(int(size) for size in one.shape) for one in ArgInfo.from_entry_func(module, remove_preproc=True)]
    rng = np.random.default_rng(0)
    arguments = [tvm.runtime.tensor(rng.standard_normal(shape, dtype=np.float32)) for shape in shapes]
    built = default_build(module, target, None)

    def times(seconds: float) -> list[float]:
        found: list[float] = []
        began = time.monotonic()
        while time.monotonic() - began < seconds and len(found) < SAMPLES:
            run = built.time_evaluator("main", tvm.cpu(), number=1, repeat=8)
            found += run(*arguments).results
        return found

    return times


def definition(problem: dict[str, Any]) -> Any:
    """The operator as a function for MetaSchedule. `problem` has the fields of one class of `benchmarks.problems`, and
    its name as `kind`.
    """
    kind = problem["kind"]
    if kind == "Convolution":
        tensors = convolution(problem)
    elif kind == "TransposedConvolution":
        height, width = (size // problem["stride"] for size in problem["output"])
        sizes = (problem["kernel"], problem["stride"], problem["pad"])
        tensors = conv2d_transpose_nhwc(1, height, width, *problem["channels"], *sizes)
    elif kind == "Product":
        tensors = product(problem)
    elif kind == "Softmax":
        x = te.placeholder(problem["shape"], name="x")
        tensors = [x, topi.nn.softmax(x, axis=1)]
    else:
        x = te.placeholder(problem["shape"], name="x")
        scale, bias = (te.placeholder(problem["shape"][1:], name=name) for name in ("scale", "bias"))
        tensors = [x, scale, bias, topi.nn.layer_norm(x, scale, bias, axis=[1], epsilon=problem["epsilon"])]
    return te.create_prim_func(list(tensors))


def product(problem: dict[str, Any]) -> list[Any]:
    """A matrix product; without a batch its second operand is a constant."""
    first = (problem["batch"],) if problem["batch"] else ()
    x = te.placeholder((*first, problem["rows"], problem["inner"]), name="x")
    w = te.placeholder((*first, problem["inner"], problem["columns"]), name="w")
    k = te.reduce_axis((0, problem["inner"]), name="k")

    def element(*at: Any) -> Any:
        *batch, row, column = at
        return te.sum(x(*batch, row, k) * w(*batch, k, column), axis=[k])

    attributes = {} if first else {"layout_free_placeholders": [w]}
    return [x, w, te.compute((*first, problem["rows"], problem["columns"]), element, name="product", attrs=attributes)]


def convolution(problem: dict[str, Any]) -> list[Any]:
    """A channels-last convolution of any rank, with what follows it."""
    taken, made = problem["channels"]
    rank = len(problem["output"])
    groups, stride, dilation = (problem[name] for name in ("groups", "stride", "dilation"))
    depthwise = groups == taken == made
    window = (problem["kernel"],) * rank
    x = te.placeholder((1, *(size * stride for size in problem["output"]), taken), name="x")
    w = te.placeholder((*window, made) if depthwise else (*window, taken // groups, made), name="w")
    pad = (problem["kernel"] - 1) * dilation // 2
    padded = topi.nn.pad(x, [0, *(pad,) * rank, 0]) if pad else x
    taps = [te.reduce_axis((0, size), name=f"r{place}") for place, size in enumerate(window)]
    rc = te.reduce_axis((0, taken // groups), name="rc")

    def element(n: Any, *at: Any) -> Any:
        *place, c = at
        where = [one * stride + tap * dilation for one, tap in zip(place, taps, strict=True)]
        if depthwise:
            return te.sum(padded(n, *where, c) * w(*taps, c), axis=taps)
        channel = rc if groups == 1 else c // (made // groups) * (taken // groups) + rc
        return te.sum(padded(n, *where, channel) * w(*taps, rc, c), axis=[*taps, rc])

    shape = (1, *problem["output"], made)
    y = te.compute(shape, element, name="conv", attrs={"layout_free_placeholders": [w]})
    if not problem["epilogue"]:
        return [x, w, y]
    scale, bias = (te.placeholder((made,), name=name) for name in ("scale", "bias"))
    scaled = te.compute(shape, lambda *at: y(*at) * scale(at[-1]), name="scaled") if problem["norm"] else y
    biased = te.compute(shape, lambda *at: scaled(*at) + bias(at[-1]), name="biased")
    relu = te.compute(shape, lambda *at: te.max(biased(*at), 0.0), name="relu")
    return [x, w, *((scale,) if problem["norm"] else ()), bias, relu]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        main()
