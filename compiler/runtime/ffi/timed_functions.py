"""Time evaluators for the functions of a module.

Options, their order and their meaning are those of TVM's time evaluators.
"""

from collections.abc import Callable

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.device import Device, require_cpu
from retune.compiler.runtime.ffi.registry import get_global_func
from retune.compiler.runtime.threads.machine import last_cache_bytes
from retune.compiler.runtime.timing import BenchmarkResult, TimeEvaluator

_FLUSH = "cache_flush"


class TimedFunctions:
    """A base of classes whose `self[name]` is a function."""

    def __getitem__(self, name: str) -> Callable[..., object]:
        raise NotImplementedError

    def check_device(self, where: Device) -> None:
        """Check that the functions run on a device: here, on the CPU. Raises: OptionError."""
        require_cpu(where, "functions run")

    def time_evaluator(
        self,
        func_name: str,
        dev: Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        limit_zero_time_iterations: int = 100,
        cooldown_interval_ms: float = 0,
        repeats_to_cooldown: int = 1,
        cache_flush_bytes: int = 0,
        f_preproc: str = "",
    ) -> Callable[..., BenchmarkResult]:
        """A function that takes the arguments of `func_name` and times calls of it: one untimed call, then `repeat`
        times `number` calls or more, until they take `min_repeat_ms`.

        `f_preproc` names a registered function to call before each repeat; "cache_flush" writes as much memory as the
        last cache has. `TimeEvaluator` describes the other options.
        Raises: OptionError for invalid options; errors of `self[func_name]`.
        """
        if dev is not None:
            self.check_device(dev)
        if not isinstance(f_preproc, str):
            raise OptionError(f"f_preproc is the name of a registered function, not {f_preproc!r:.80}")
        flush = last_cache_bytes() if f_preproc == _FLUSH and not cache_flush_bytes else cache_flush_bytes
        prepare = get_global_func(f_preproc) if f_preproc not in ("", _FLUSH) else None
        function = self[func_name]
        counts = (number, repeat, min_repeat_ms, limit_zero_time_iterations)
        evaluator = TimeEvaluator(*counts, cooldown_interval_ms, repeats_to_cooldown, flush)
        return lambda *args: evaluator(lambda: function(*args), prepare=prepare)
