"""Overhead of calling a compiled function from Python.

    python -m benchmarks.calls [--only REGEX] [--seconds S] [--out FILE]

The function adds 1 to one number, so a call consists of little more than passing two arrays, checking them in machine
code and returning. Lines: for arrays of the FFI, of NumPy and, where it is installed, of PyTorch; for the same kernel
called as a `KernelFunction` and bound; for a Python function called through the FFI. The time of an empty Python call
is subtracted. One thread.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.harness import Figure, Run, parse, seconds_of
from retune.compiler import nd, te
from retune.compiler.driver.build import build
from retune.compiler.driver.modules import build as build_module
from retune.compiler.runtime.ffi.bindings import convert
from retune.compiler.runtime.function import KernelFunction


def main(argv: Sequence[str] | None = None) -> None:
    """Print the lines."""
    run = parse(__doc__, argv, seconds=2, seconds_help="timing for each figure")
    run.write_all(figures(run))


def figures(run: Run) -> Iterator[Figure]:
    """The cost of every kind of call that is asked for."""
    empty = seconds_of(lambda: None, seconds=run.seconds)
    for case, call in calls():
        if run.wants(case):
            seconds = seconds_of(call, seconds=run.seconds) - empty
            yield Figure(case, "retune", 1, "call", seconds * 1e6, "µs")


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """The kinds of calls, each without arguments."""
    x = te.placeholder((1,), name="x")
    tensors = [x, te.compute((1,), lambda i: x[i] + 1.0, name="y")]
    module = build_module(tensors)
    function = module["main"]
    one, two = nd.array(np.zeros(1, np.float32)), nd.empty((1,))
    function(one, two)
    if two.numpy()[0] != 1:
        raise AssertionError("the function computes something else")
    yield "function, arrays of the FFI", lambda: function(one, two)
    yield "function, a number of threads too", lambda: function(one, two, 1)
    yield "module, arrays of the FFI", lambda: module(one, two)
    source, result = one.numpy(), two.numpy()
    yield "function, arrays of NumPy", lambda: function(source, result)
    if importlib.util.find_spec("torch") is not None:
        torch = importlib.import_module("torch")
        first, second = torch.zeros(1), torch.zeros(1)
        yield "function, tensors of PyTorch", lambda: function(first, second)
    plain = build(tensors)
    assert isinstance(plain, KernelFunction), "it is built for this machine's CPU"
    (out,) = plain.outputs()
    (given,) = plain.prepared(np.zeros(1, np.float32))
    yield "KernelFunction", lambda: plain(given, out)
    yield "bound kernel", plain.kernel.bind([given, out], 1)
    echo = convert(lambda value: value)
    yield "Python function through the FFI", lambda: echo(1)


if __name__ == "__main__":
    main()
