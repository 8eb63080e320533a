"""Fake PyTorch on a GPU: arrays are NumPy's, and every operation takes its time on a simulated clock.

Work inside a graph capture takes no time then, and its time whenever the graph is replayed. Capturing before waiting,
or timing off the device, raises an error.
"""

# ruff: noqa: ARG001, ARG002, ARG005 - it has the names and the arguments of PyTorch

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from retune.compiler.core.dtype import BFLOAT16

OPERATION_SECONDS = 1e-4


class FakeTensor:
    """An array on a device."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def to(self, device: Any) -> "FakeTensor":
        return self

    def cpu(self) -> "FakeTensor":
        return self

    def view(self, dtype: Any) -> "FakeTensor":
        return FakeTensor(self.array.view(dtype))

    def float(self) -> "FakeTensor":
        return FakeTensor(self.array.astype(np.float32))

    def permute(self, *order: int) -> "FakeTensor":
        return FakeTensor(self.array.transpose(order))

    def contiguous(self, *, memory_format: str) -> "FakeTensor":
        assert memory_format == "channels_last"
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def numpy(self) -> Any:
        return self.array


class FakeModule:
    """A network that doubles its input on the clock of `torch`, and gives a tuple."""

    def __init__(self, torch: "FakeTorch", network: Callable[[Any], Any]) -> None:
        self._torch, self._network = torch, network

    def to(self, device: Any) -> "FakeModule":
        return self

    def eval(self) -> "FakeModule":
        return self

    def __call__(self, given: FakeTensor) -> tuple[FakeTensor]:
        return (self._torch.done(self._network(given.array)),)


class FakeTorch:
    """The module. Calls of what `torch.compile` made fail if `broken`."""

    def __init__(self, *, broken: bool = False) -> None:
        self.clock = 0.0
        self.broken = broken
        self.asked: list[str] = []
        self.capturing: list[float] | None = None
        self.channels_last = "channels_last"
        self.bfloat16 = np.dtype(BFLOAT16)
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
            Event=lambda enable_timing: FakeEvent(self),
            CUDAGraph=lambda: FakeGraph(self),
        )

    def device(self, kind: str, number: int) -> str:
        return f"{kind}:{number}"

    def from_numpy(self, array: Any) -> FakeTensor:
        return FakeTensor(array)

    def matmul(self, one: FakeTensor, other: FakeTensor) -> FakeTensor:
        return self.done((one.array.astype(np.float32) @ other.array.astype(np.float32)).astype(one.array.dtype))

    def softmax(self, x: FakeTensor, dim: int) -> FakeTensor:
        powers = np.exp(x.array - x.array.max(axis=dim, keepdims=True))
        return self.done(powers / powers.sum(axis=dim, keepdims=True))

    def conv2d(self, x: FakeTensor, w: FakeTensor, bias: None, stride: int, pad: int) -> FakeTensor:
        kernel, (high, wide) = w.array.astype("float64"), w.shape[2:]
        padded = np.pad(x.array.astype("float64"), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (high, wide), (2, 3))[:, :, ::stride, ::stride]
        return self.done(np.einsum("ncyxij,ocij->noyx", windows, kernel).astype(x.array.dtype))

    def layer_norm(
        self, x: FakeTensor, shape: tuple[int, ...], scale: FakeTensor, bias: FakeTensor, epsilon: float
    ) -> FakeTensor:
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

    def done(self, result: Any) -> FakeTensor:
        """What an operation gives, and the time that it takes."""
        if self.capturing is None:
            self.clock += OPERATION_SECONDS
        else:
            self.capturing.append(OPERATION_SECONDS)
        return FakeTensor(result)

    def _noted(self, what: str) -> Callable[[Any], Any]:
        @contextmanager
        def entered(which: Any) -> Iterator[None]:
            self.asked.append(what)
            yield

        return entered

    @contextmanager
    def _captured(self, graph: "FakeGraph") -> Iterator[None]:
        assert self.asked[-1] == "synchronize" or "synchronize" in self.asked
        self.capturing = []
        yield
        graph.seconds, self.capturing = sum(self.capturing), None


class FakeGraph:
    """What was captured."""

    def __init__(self, torch: FakeTorch) -> None:
        self._torch = torch
        self.seconds = 0.0

    def replay(self) -> None:
        self._torch.clock += self.seconds


class FakeEvent:
    """A moment."""

    def __init__(self, torch: FakeTorch) -> None:
        self._torch = torch
        self.moment = 0.0

    def record(self) -> None:
        self.moment = self._torch.clock

    def synchronize(self) -> None:
        return None

    def elapsed_time(self, end: "FakeEvent") -> float:
        return (end.moment - self.moment) * 1e3
