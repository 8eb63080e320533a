"""PyTorch's times for an operator or a network on a GPU, eager and compiled.

Float32 products are strict unless tf32 is requested. Short calls run from a captured CUDA graph, as ours do, so the
time is the GPU's.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import onnx

from benchmarks.gpu_cases import Array, GpuCase
from retune.compiler.core.dtype import BFLOAT16

try:
    import torch

    from benchmarks.torch_network import torch_network
except ImportError:  # a large package that nothing else here needs
    torch = None

EAGER, COMPILED = "torch", "torch-compiled"
_IN_GRAPH, _LEAST_SECONDS, _MOST_ITERATIONS = 20, 3e-3, 1000
_PEAK_SIZE = 8192
_WARM_UP = 3


class TorchPeers:
    """PyTorch on the GPU number `number`; without PyTorch there are no peers."""

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def known(self) -> bool:
        """Whether PyTorch is there."""
        return torch is not None

    def makers(self, case: GpuCase, mode: str) -> dict[str, Callable[[], "TorchCall"]]:
        """PyTorch's ways to compute an operator, by backend; each is to be called to make it ready. A product is eager
        alone: the compiler leaves it to the same library.
        """
        if torch is None:
            return {}
        names = (EAGER,) if case.flops else (EAGER, COMPILED)
        return {name: partial(self._call, case, mode, compiled=name == COMPILED) for name in names}

    def product_speed(self, mode: str) -> float:
        """Operations a second of its largest product in a mode."""
        case = GpuCase("matmul", (_PEAK_SIZE,) * 3)
        return case.flops / self._call(case, mode, compiled=False).seconds()

    def _call(self, case: GpuCase, mode: str, *, compiled: bool) -> "TorchCall":
        device = torch.device("cuda", self._number)
        given = {name: _tensor(array).to(device) for name, array in case.arrays(mode).items()}
        plain = case.torch_call(torch, given)
        return TorchCall(_compiled(plain) if compiled else plain, tf32=mode == "tf32", device=device)


def network_makers(
    model: onnx.ModelProto, given: Sequence[Array], number: int, *, tf32: bool
) -> dict[str, Callable[[], "TorchCall"]]:
    """PyTorch's ways to run a network, of which the first output counts, as `TorchPeers.makers`."""
    if torch is None:
        return {}

    def made(*, compiled: bool) -> TorchCall:
        device = torch.device("cuda", number)
        module = torch_network(model).to(device).eval()
        run = _compiled(module) if compiled else module
        tensors = [torch.from_numpy(array).to(device) for array in given]

        def first() -> Any:
            found = run(*tensors)
            return found[0] if isinstance(found, (tuple, list)) else found

        return TorchCall(first, tf32=tf32, device=device)

    return {name: partial(made, compiled=name == COMPILED) for name in (EAGER, COMPILED)}


def _tensor(array: Array) -> Any:
    """PyTorch reads no NumPy array of bfloat16, but its bits."""
    if array.dtype == BFLOAT16:
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _compiled(what: Any) -> Any:
    """By `torch.compile`, for these very shapes: what it remembers of others would make it compile for any, or, after
    eight of them, not at all.
    """
    torch.compiler.reset()
    return torch.compile(what, dynamic=False)


class TorchCall:
    """One call of PyTorch, captured."""

    def __init__(self, call: Callable[[], Any], *, tf32: bool, device: Any) -> None:
        self._tf32 = tf32
        self._device = device
        self._call = call  # what it reads must live as long as the graph, which only knows addresses
        self._result: Any = None
        with torch.inference_mode(), torch.cuda.device(device):
            self._precision()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # what compiles or chooses does so before it is captured
                for _ in range(_WARM_UP):
                    self._result = call()
            torch.cuda.synchronize()
            roughly = self._between(call, 1)
            self._together = max(1, min(_IN_GRAPH, math.ceil(_LEAST_SECONDS / max(roughly, 1e-7))))
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                for _ in range(self._together):
                    self._result = call()

    def seconds(self) -> float:
        """How long a call takes, measured now."""
        with torch.cuda.device(self._device):
            iterations = 1
            while True:
                taken = self._between(self._graph.replay, iterations)
                if taken >= _LEAST_SECONDS or iterations >= _MOST_ITERATIONS:
                    return taken / (iterations * self._together)
                iterations = min(
                    _MOST_ITERATIONS, max(iterations + 1, int(iterations * _LEAST_SECONDS / max(taken, 1e-6)) + 1)
                )

    def result(self) -> Array:
        """What it computes."""
        with torch.inference_mode(), torch.cuda.device(self._device):
            self._graph.replay()
            torch.cuda.synchronize()
            found: Array = self._result.float().cpu().numpy()  # NumPy has no bfloat16
        return found

    @staticmethod
    def _between(work: Callable[[], object], iterations: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(iterations):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _precision(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self._tf32
        torch.backends.cudnn.allow_tf32 = self._tf32
        torch.backends.cudnn.benchmark = True
