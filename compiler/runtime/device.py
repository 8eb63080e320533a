"""`Device`: the kind and number of a device that a network runs on.

A device is a value; nothing is opened. All CPUs together are device 0.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from retune.compiler.errors import OptionError
from retune.compiler.runtime.artifact import Array

_TYPES = {"cpu": 1, "llvm": 1, "cuda": 2, "gpu": 2, "opencl": 4}
_CPU, _CUDA, _OPENCL = 1, 2, 4


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A device by DLPack's numbers: `device_type` 1 is the CPU, 2 a CUDA GPU, 4 one of OpenCL. It equals whatever
    has the same numbers, such as devices that come back from the FFI.
    """

    device_type: int
    device_id: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no number. Raises: OptionError."""
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
        """What `device_type` is called: cpu, cuda, opencl."""
        names = {number: name for name, number in reversed(_TYPES.items())}
        return names.get(self.device_type, f"device type {self.device_type}")

    def __str__(self) -> str:
        return f"{self.kind}({self.device_id})"


def device(kind: str, index: int | None = None) -> Device:
    """The device number `index` of a kind: cpu (or llvm), cuda (or gpu), opencl. Both may be one text, as "cuda:1".

    Raises: OptionError for another kind, or what is no number of a device.
    """
    found = re.fullmatch(r"(?P<kind>[a-z]+)(:(?P<number>\d{1,4}))?", kind) if isinstance(kind, str) else None
    if found is None or found["kind"] not in _TYPES:
        raise OptionError(f"no device is called {kind!r:.80}; there are {', '.join(_TYPES)}, and numbers as in cuda:1")
    if index is not None and found["number"] is not None:
        raise OptionError(f"{kind} names a number already, so {index!r:.80} is one too many")
    return Device(_TYPES[found["kind"]], int(found["number"] or 0) if index is None else index)


def cpu(index: int = 0) -> Device:
    """This machine's CPU."""
    return Device(_CPU, index)


def cuda(index: int = 0) -> Device:
    """A GPU by its number in CUDA."""
    return Device(_CUDA, index)


def opencl(index: int = 0) -> Device:
    """A device by its number in OpenCL."""
    return Device(_OPENCL, index)


def devices_in(given: Device | Sequence[Device]) -> list[Device]:
    """A device, or those of a list that is not empty, as a list. Raises: OptionError for anything else."""
    devices: list[Any] = list(given) if isinstance(given, list | tuple) else [given]
    if not devices or not all(isinstance(each, Device) for each in devices):
        raise OptionError(f"a Device or a list of Devices is needed, such as cpu(0), not {given!r:.80}")
    return devices


def same_device(one: object, other: object) -> bool:
    """Whether two things have the same two numbers of a device."""
    numbers = [(getattr(each, "device_type", None), getattr(each, "device_id", None)) for each in (one, other)]
    return numbers[0] == numbers[1] and None not in numbers[0]


class Located(Protocol):
    """An array that says where it lies, as those of PyTorch, CuPy and this package's `DeviceArray` do."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Kind and number of its device."""


AnyArray = Array | Located
"""An array of NumPy, or one that lies elsewhere."""


def device_of(array: object) -> Device:
    """Where an array lies, by DLPack; on the CPU, where it does not say."""
    try:
        kind, number = array.__dlpack_device__()  # type: ignore[attr-defined]
        return Device(int(kind), int(number))
    except Exception:  # of another library, which may raise anything
        return cpu()


def on_gpu(array: object) -> bool:
    """Whether an array lies in the memory of a CUDA device."""
    return device_of(array).device_type == _CUDA


def is_gpu(where: Device) -> bool:
    """Whether a device is a CUDA GPU."""
    return where.device_type == _CUDA


def gpus_among(devices: Sequence[Device], what: str) -> list[Device]:
    """The CUDA GPUs among devices on which `what` runs ("networks"), in order; the only other may be cpu(0).

    Raises: OptionError for any other device.
    """
    for device in devices:
        if not is_gpu(device) and not same_device(device, cpu()):
            raise OptionError(f"{what} run on cpu(0) and on GPUs such as cuda(0), not on {device}")
    return [device for device in devices if is_gpu(device)]


def require_cpu(where: Device, what: str) -> None:
    """Check that a device is the CPU, where alone `what` can be done ("programs run").

    Raises: OptionError.
    """
    if not same_device(where, cpu(0)):
        raise OptionError(f"{what} on cpu(0), not on {where}")
