"""In: what measures programs on other machines. Out: for this machine a runner; for others, that this is not there yet.

Always: programs run in a process of their own, here too, so a measurement never harms the one who asks for it.
"""

from typing import Any

from compiler.errors import NotYetError
from compiler.measure.runner import LocalRunner


class RPCRunner:
    """Times programs on machines that a tracker knows. The parameters are known, the machines cannot be reached yet.

    Raises: NotYetError.
    """

    def __init__(
        self,
        key: str,
        host: str,
        port: int,
        priority: int = 1,
        n_parallel: int = 1,
        timeout: float = 10,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 100,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        device: int = 0,
    ) -> None:
        del priority, n_parallel, timeout, number, repeat, min_repeat_ms, cooldown_interval
        del enable_cpu_cache_flush, device
        raise NotYetError(
            f"programs cannot be measured on other machines yet, so not on {key} through {host}:{port}; "
            f"LocalRPCMeasureContext and LocalRunner measure on this one"
        )


class LocalRPCMeasureContext:
    """A `runner` for this machine, in a process of its own, which ends with the context or its `with` block.

    `device` must be 0, the processor. `priority` and `n_parallel` are those of a tracker: here programs are timed one
    after the other. The other parameters are those of `LocalRunner`.
    """

    def __init__(
        self,
        priority: int = 1,
        n_parallel: int = 1,
        timeout: float = 10,
        number: int = 3,
        repeat: int = 1,
        min_repeat_ms: float = 0,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        device: int = 0,
    ) -> None:
        """Raises: NotYetError for another device."""
        del priority, n_parallel
        if device:
            raise NotYetError(f"programs cannot be measured on device {device} yet, only on the processor, which is 0")
        self.runner = LocalRunner(timeout, number, repeat, min_repeat_ms, cooldown_interval, enable_cpu_cache_flush)

    def __enter__(self) -> "LocalRPCMeasureContext":
        return self

    def __exit__(self, *_: Any) -> None:
        self.runner.close()

    def __del__(self) -> None:
        if hasattr(self, "runner"):
            self.runner.close()
