"""A PyTorch on a GPU that is not there: arrays are NumPy's, every operation takes its time on a made-up clock.

Always: what is done inside a graph's capture costs nothing then, and its time whenever the graph is replayed; whoever
captures before he has waited, or times outside of the device, is told.
"""

# ruff: noqa: ARG001, ARG002, ARG005 - it has the names and the arguments of PyTorch

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

OPERATION_SECONDS = 1e-4


class TensorDouble:
    """An array on a device."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def to(self, device: Any) -> "TensorDouble":
        return self

    def cpu(self) -> "TensorDouble":
        return self

    def permute(self, *order: int) -> "TensorDouble":
        return TensorDouble(self.array.transpose(order))

    def contiguous(self, *, memory_format: str) -> "TensorDouble":
        assert memory_format == "channels_last"
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def numpy(self) -> Any:
        return self.array


class ModuleDouble:
    """A network that doubles its input on the clock of `torch`, and gives a tuple."""

    def __init__(self, torch: "TorchDouble", network: Callable[[Any], Any]) -> None:
        self._torch, self._network = torch, network

    def to(self, device: Any) -> "ModuleDouble":
        return self

    def eval(self) -> "ModuleDouble":
        return self

    def __call__(self, given: TensorDouble) -> tuple[TensorDouble]:
        return (self._torch.done(self._network(given.array)),)


class TorchDouble:
    """The module. Calls of what `torch.compile` made fail if `broken`."""

    def __init__(self, *, broken: bool = False) -> None:
        self.clock = 0.0
        self.broken = broken
        self.asked: list[str] = []
        self.capturing: list[float] | None = None
        self.channels_last = "channels_last"
        self.nn = SimpleNamespace(functional=SimpleNamespace(conv2d=self.conv2d, layer_norm=self.layer_norm))
        switch = SimpleNamespace(allow_tf32=None, benchmark=False)
        self.backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(allow_tf32=None)), cudnn=switch)
        self.compiler = SimpleNamespace(reset=lambda: self.asked.append("reset"))
        self.cuda = SimpleNamespace(
            device=self._noted("device"),
            stream=self._noted("stream"),
            graph=self._captured,
            Stream=lambda: SimpleNamespace(wait_stream=lambda _: self.asked.append("wait for the stream before")),
            current_stream=lambda: "current",
            synchronize=lambda: self.asked.append("synchronize"),
            Event=lambda enable_timing: EventDouble(self),
            CUDAGraph=lambda: GraphDouble(self),
        )

    def device(self, kind: str, number: int) -> str:
        return f"{kind}:{number}"

    def from_numpy(self, array: Any) -> TensorDouble:
        return TensorDouble(array)

    def matmul(self, one: TensorDouble, other: TensorDouble) -> TensorDouble:
        return self.done((one.array.astype(np.float32) @ other.array.astype(np.float32)).astype(one.array.dtype))

    def softmax(self, x: TensorDouble, dim: int) -> TensorDouble:
        powers = np.exp(x.array - x.array.max(axis=dim, keepdims=True))
        return self.done(powers / powers.sum(axis=dim, keepdims=True))

    def conv2d(self, x: TensorDouble, w: TensorDouble, bias: None, stride: int, pad: int) -> TensorDouble:
        kernel, (high, wide) = w.array.astype("float64"), w.shape[2:]
        padded = np.pad(x.array.astype("float64"), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (high, wide), (2, 3))[:, :, ::stride, ::stride]
        return self.done(np.einsum("ncyxij,ocij->noyx", windows, kernel).astype(x.array.dtype))

    def layer_norm(
        self, x: TensorDouble, shape: tuple[int, ...], scale: TensorDouble, bias: TensorDouble, epsilon: float
    ) -> TensorDouble:
        assert shape == x.shape[1:]
        apart = x.array - x.array.mean(axis=1, keepdims=True, dtype="float64")
        wide = apart / np.sqrt((apart * apart).mean(axis=1, keepdims=True) + epsilon) * scale.array + bias.array
        return self.done(wide.astype(x.array.dtype))

    def compile(self, call: Callable[..., Any], *, dynamic: bool) -> Callable[..., Any]:
        assert not dynamic
        assert self.asked[-1] == "reset"

        def compiled(*given: Any) -> Any:
            if self.broken:
                raise RuntimeError("no\ncompiler here")
            return call(*given)

        return compiled

    @contextmanager
    def inference_mode(self) -> Iterator[None]:
        yield

    def done(self, result: Any) -> TensorDouble:
        """What an operation gives, and the time that it takes."""
        if self.capturing is None:
            self.clock += OPERATION_SECONDS
        else:
            self.capturing.append(OPERATION_SECONDS)
        return TensorDouble(result)

    def _noted(self, what: str) -> Callable[[Any], Any]:
        @contextmanager
        def entered(which: Any) -> Iterator[None]:
            self.asked.append(what)
            yield

        return entered

    @contextmanager
    def _captured(self, graph: "GraphDouble") -> Iterator[None]:
        assert self.asked[-1] == "synchronize" or "synchronize" in self.asked
        self.capturing = []
        yield
        graph.seconds, self.capturing = sum(self.capturing), None


class GraphDouble:
    """What was captured."""

    def __init__(self, torch: TorchDouble) -> None:
        self._torch = torch
        self.seconds = 0.0

    def replay(self) -> None:
        self._torch.clock += self.seconds


class EventDouble:
    """A moment."""

    def __init__(self, torch: TorchDouble) -> None:
        self._torch = torch
        self.moment = 0.0

    def record(self) -> None:
        self.moment = self._torch.clock

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: "EventDouble") -> float:
        return (end.moment - self.moment) * 1e3
