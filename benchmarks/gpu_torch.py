"""In: an operator on a GPU. Out: PyTorch's times for it, eager and compiled.

Always: float32 products are strict unless tf32 is asked for; short calls run from a captured graph, as ours do, so that
what is timed is the GPU.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx

from benchmarks.gpu_cases import Array, GpuCase

try:
    import torch

    from benchmarks.torch_network import torch_network
except ImportError:  # a large package that nothing else here needs
    torch = None

EAGER, COMPILED = "torch", "torch-compiled"
_IN_GRAPH, _LEAST_SECONDS, _MOST_TURNS = 20, 3e-3, 1000
_PEAK_SIZE = 8192


class TorchPeers:
    """PyTorch on the GPU number `number`; without PyTorch there are no peers."""

    def __init__(self, number: int) -> None:
        self._number = number

    def contenders(self, case: GpuCase, mode: str) -> Mapping[str, "TorchCall"]:
        """PyTorch's ways to compute an operator."""
        if torch is None:
            return {}
        return {EAGER: self._call(case, mode, compiled=False), COMPILED: self._call(case, mode, compiled=True)}

    def product_speeds(self) -> dict[str, float]:
        """Operations a second of its largest product where tensor cores are used, by mode."""
        if torch is None:
            return {}
        case = GpuCase("matmul", (_PEAK_SIZE,) * 3)
        return {mode: case.flops / self._call(case, mode, compiled=False).seconds() for mode in ("tf32", "f16")}

    def _call(self, case: GpuCase, mode: str, *, compiled: bool) -> "TorchCall":
        device = torch.device("cuda", self._number)
        given = {name: torch.from_numpy(array).to(device) for name, array in case.arrays(mode).items()}
        plain = case.torch_call(torch, given)
        return TorchCall(torch.compile(plain) if compiled else plain, tf32=mode == "tf32", device=device)


def on_device(
    model: onnx.ModelProto, given: Sequence[Array], number: int
) -> tuple[Callable[[], Any], Callable[[], Any], Any] | None:
    """A network as calls of PyTorch, eager and compiled, that give its first output; and the device. None without
    PyTorch.
    """
    if torch is None:
        return None
    device = torch.device("cuda", number)
    module = torch_network(model).to(device).eval()
    compiled = torch.compile(module)
    tensors = [torch.from_numpy(array).to(device) for array in given]

    def first(run: Callable[..., Any]) -> Any:
        found = run(*tensors)
        return found[0] if isinstance(found, (tuple, list)) else found

    return lambda: first(module), lambda: first(compiled), device


class TorchCall:
    """One call of PyTorch, captured."""

    def __init__(self, call: Callable[[], Any], *, tf32: bool, device: Any) -> None:
        self._call = call
        self._tf32 = tf32
        self._device = device
        self._graph: Any = None
        with torch.inference_mode(), torch.cuda.device(device):
            self._precision()
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):  # what compiles or chooses does so before it is captured
                for _ in range(3):
                    self._result = call()
            torch.cuda.synchronize()
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                for _ in range(_IN_GRAPH):
                    self._result = call()

    def seconds(self) -> float:
        """How long a call takes, measured now."""
        self._precision()
        turns = 1
        while True:
            taken = self._between(turns)
            if taken >= _LEAST_SECONDS or turns >= _MOST_TURNS:
                return taken / (turns * _IN_GRAPH)
            turns = min(_MOST_TURNS, max(turns + 1, int(turns * _LEAST_SECONDS / max(taken, 1e-6)) + 1))

    def result(self) -> Array:
        """What it computes."""
        self._graph.replay()
        torch.cuda.synchronize()
        found: Array = self._result.cpu().numpy()
        return found

    def _between(self, turns: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(turns):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def _precision(self) -> None:
        torch.backends.cuda.matmul.allow_tf32 = self._tf32
        torch.backends.cudnn.allow_tf32 = self._tf32
        torch.backends.cudnn.benchmark = True
