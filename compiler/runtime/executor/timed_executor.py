"""Times runs and calls of an executor, and gives its functions by name, as modules of functions do."""

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature

import numpy as np

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import AnyArray
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.timing import BenchmarkResult, TimedFunctions, TimeEvaluator

_FUNCTIONS = (
    "set_input", "set_input_zero_copy", "set_output_zero_copy", "run", "get_output", "get_input", "get_num_outputs",
    "get_num_inputs", "get_input_index", "get_input_info", "load_params", "share_params",
)  # fmt: skip
"""The functions of an executor as a module."""


@dataclass(frozen=True, slots=True)
class CallTime:
    """Time of one kernel call within a run: `seconds` is the median."""

    kernel: str
    label: str
    seconds: float


class TimedExecutor(TimedFunctions):
    """Base of `GraphExecutor`."""

    lock: threading.RLock
    network: CompiledNetwork

    @abstractmethod
    def set_input(self, key: str | int | None = None, value: AnyArray | None = None, /, **inputs: AnyArray) -> None:
        """Copy arrays into inputs."""

    @abstractmethod
    def run(self, /, **inputs: AnyArray) -> None:
        """Set the given inputs and compute all outputs."""

    @abstractmethod
    def get_num_outputs(self) -> int:
        """How many outputs the network has."""

    @abstractmethod
    def get_output(self, index: int | str, out: AnyArray | None = None) -> Array:
        """A copy of an output."""

    @abstractmethod
    def single_call(self, index: int) -> Callable[[], object]:
        """A call of the plan, done when it returns."""

    def __getitem__(self, name: str) -> Callable[..., object]:
        """The method of that name, as modules of functions give theirs.

        Raises: AttributeError when there is none.
        """
        if not isinstance(name, str) or name not in _FUNCTIONS:
            raise AttributeError(f"a graph executor has no function {name!r}; it has {', '.join(_FUNCTIONS)}")
        method: Callable[..., object] = getattr(self, name)
        return method

    def benchmark(
        self,
        evaluator: TimeEvaluator,
        *,
        function: str = "run",
        end_to_end: bool = False,
        inputs: Mapping[str, Array] | None = None,
    ) -> BenchmarkResult:
        """Seconds per run, one entry per repeat of `evaluator`.

        Inputs are set once and not timed, unless `end_to_end` asks to copy inputs in and outputs out with every run.
        `function` is what is timed, by the name it has as a function of a module.
        Raises: OptionError for inputs that do not fit, or a function that cannot be called without arguments;
        AttributeError when there is no such function.
        """
        if not isinstance(evaluator, TimeEvaluator):
            raise OptionError(f"a TimeEvaluator is needed, such as TimeEvaluator(repeat=5), not {evaluator!r:.80}")
        if inputs is not None and not (isinstance(inputs, Mapping) and all(isinstance(each, str) for each in inputs)):
            raise OptionError(f"inputs must map names to arrays, not be {inputs!r:.80}")
        given = dict(inputs or {})
        self.set_input(**given)
        if not end_to_end:
            return evaluator(_without_arguments(self[function]))
        outputs = [self.get_output(index) for index in range(self.get_num_outputs())]

        def whole() -> None:
            self.run(**given)
            for index, out in enumerate(outputs):
                self.get_output(index, out)

        return evaluator(whole)

    def profile(self, repeat: int = 10) -> tuple[CallTime, ...]:
        """Time of every kernel call, in running order: the median of `repeat` runs after one that is not timed."""
        if not isinstance(repeat, int) or isinstance(repeat, bool) or repeat < 1:
            raise OptionError(f"repeat must be an integer of at least 1, not {repeat!r}")
        samples = np.empty((repeat, len(self.network.plan.calls)), np.int64)
        with self.lock:
            self.run()
            calls = [self.single_call(index) for index in range(len(self.network.plan.calls))]
            # Runs outside, calls inside: each call finds the caches as its predecessors leave them in a real run.
            for row in samples:
                for index, call in enumerate(calls):
                    start = time.perf_counter_ns()
                    call()
                    row[index] = time.perf_counter_ns() - start
        # The median: one interrupt in ten runs must not show as a slow kernel.
        medians = np.median(samples, axis=0) / 1e9
        return tuple(
            CallTime(call.kernel, call.label, float(seconds))
            for call, seconds in zip(self.network.plan.calls, medians, strict=True)
        )


def _without_arguments(function: Callable[..., object]) -> Callable[[], object]:
    """The function, which needs no arguments. Raises: OptionError when it does."""
    try:
        signature(function).bind()
    except TypeError as error:
        raise OptionError(f"{function.__name__} cannot be timed, {error}; time_evaluator passes arguments") from None
    return function
