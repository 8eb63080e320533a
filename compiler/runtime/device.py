"""`Device`: the kind and number of a device that a network runs on.

A device is a value; nothing is opened. All CPUs together are device 0.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array

_TYPES = {"cpu": 1, "llvm": 1, "cuda": 2, "gpu": 2, "opencl": 4}
_CPU, _CUDA, _OPENCL = 1, 2, 4


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A device by DLPack's numbers: `device_type` 1 is the CPU, 2 a CUDA GPU, 4 an OpenCL device. It equals any object
    with the same numbers, such as devices that come back from the FFI.
    """

    device_type: int
    device_id: int = 0

    def __post_init__(self) -> None:
        """Reject other values than numbers. Raises: OptionError."""
        for number in (self.device_type, self.device_id):
            if not isinstance(number, int) or isinstance(number, bool):
                raise OptionError(f"the number of a device is an integer, not {number!r}")

    def __eq__(self, other: object) -> bool:
        return same_device(self, other)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, self.device_id

    @property
    def kind(self) -> str:
        """The name of `device_type`: cpu, cuda, opencl."""
        names = {number: name for name, number in reversed(_TYPES.items())}
        return names.get(self.device_type, f"device type {self.device_type}")

    def __str__(self) -> str:
        return f"{self.kind}({self.device_id})"


def device(kind: str, index: int | None = None) -> Device:
    """The device number `index` of a kind: cpu (or llvm), cuda (or gpu), opencl. Both may be one text, such as
    "cuda:1".

    Raises: OptionError for another kind or an invalid number.
    """
    match = re.fullmatch(r"(?P<kind>[a-z]+)(:(?P<number>\d{1,4}))?", kind) if isinstance(kind, str) else None
    if match is None or match["kind"] not in _TYPES:
        raise OptionError(f"no device is called {kind!r:.80}; there are {', '.join(_TYPES)}, and numbers as in cuda:1")
    if index is not None and match["number"] is not None:
        raise OptionError(f"{kind} names a number already, so {index!r:.80} is one too many")
    return Device(_TYPES[match["kind"]], int(match["number"] or 0) if index is None else index)


def cpu(index: int = 0) -> Device:
    """This machine's CPU."""
    return Device(_CPU, index)


def cuda(index: int = 0) -> Device:
    """A GPU by its number in CUDA."""
    return Device(_CUDA, index)


def opencl(index: int = 0) -> Device:
    return Device(_OPENCL, index)


def devices_in(selection: Device | Sequence[Device]) -> list[Device]:
    """A device, or a non-empty list of devices, as a list. Raises: OptionError for anything else."""
    devices = list(selection) if isinstance(selection, Sequence) else [selection]
    if not devices or not all(isinstance(entry, Device) for entry in devices):
        raise OptionError(f"a Device or a list of Devices is needed, such as cpu(0), not {selection!r:.80}")
    return devices


def same_device(left: object, right: object) -> bool:
    numbers = [(getattr(device, "device_type", None), getattr(device, "device_id", None)) for device in (left, right)]
    return numbers[0] == numbers[1] and None not in numbers[0]


class Located(Protocol):
    """An array with a device, such as arrays of PyTorch, CuPy and `DeviceArray`."""

    def __dlpack_device__(self) -> tuple[int, int]: ...


AnyArray = Array | Located
"""An array of NumPy, or of another device or library."""


def device_of(array: object) -> Device:
    """The device of an array, by DLPack; the CPU by default."""
    try:
        kind, number = array.__dlpack_device__()  # type: ignore[attr-defined]
        return Device(int(kind), int(number))
    except Exception:  # of another library, which may raise anything
        return cpu()


def on_gpu(array: object) -> bool:
    return device_of(array).device_type == _CUDA


def is_gpu(dev: Device) -> bool:
    return dev.device_type == _CUDA


def gpus_among(devices: Sequence[Device], what: str) -> list[Device]:
    """The CUDA GPUs among the devices that `what` ("networks") runs on, in order; the only other may be cpu(0).

    Raises: OptionError for any other device.
    """
    for device in devices:
        if not is_gpu(device) and not same_device(device, cpu()):
            raise OptionError(f"{what} run on cpu(0) and on GPUs such as cuda(0), not on {device}")
    return [device for device in devices if is_gpu(device)]


def require_cpu(where: Device, what: str) -> None:
    """Check that a device is the CPU, the only device for `what` ("programs run").

    Raises: OptionError.
    """
    if not same_device(where, cpu(0)):
        raise OptionError(f"{what} on cpu(0), not on {where}")
