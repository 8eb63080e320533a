"""In: the name of a kind of device and a number. Out: a `Device`, which says where a network is to run.

Always: a value; nothing is opened. Networks run on processors, all of which are device 0.
"""

from dataclasses import dataclass

from compiler.errors import OptionError

_TYPES = {"cpu": 1, "llvm": 1, "cuda": 2, "gpu": 2, "opencl": 4}
_CPU, _CUDA, _OPENCL = 1, 2, 4


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """A device by DLPack's numbers: `device_type` 1 is the processor, 2 a CUDA GPU, 4 one of OpenCL. It equals whatever
    has the same numbers, such as devices that come back from the FFI.
    """

    device_type: int
    device_id: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no number. Raises: OptionError."""
        for number in (self.device_type, self.device_id):
            if not isinstance(number, int) or isinstance(number, bool):
                raise OptionError(f"the number of a device is a whole number, not {number!r}")

    def __eq__(self, other: object) -> bool:
        return same_device(self, other)

    def __hash__(self) -> int:
        return hash((self.device_type, self.device_id))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device_type, self.device_id

    def __str__(self) -> str:
        names = {number: name for name, number in reversed(_TYPES.items())}
        return f"{names.get(self.device_type, f'device type {self.device_type}')}({self.device_id})"


def device(kind: str, index: int = 0) -> Device:
    """The device number `index` of a kind: cpu (or llvm), cuda (or gpu), opencl.

    Raises: OptionError for another kind, or what is no number of a device.
    """
    if not isinstance(kind, str) or kind not in _TYPES:
        raise OptionError(f"no kind of device is called {kind!r}; there are {', '.join(_TYPES)}")
    return Device(_TYPES[kind], index)


def cpu(index: int = 0) -> Device:
    """This machine's processor."""
    return Device(_CPU, index)


def cuda(index: int = 0) -> Device:
    """A GPU by its number in CUDA."""
    return Device(_CUDA, index)


def opencl(index: int = 0) -> Device:
    """A device by its number in OpenCL."""
    return Device(_OPENCL, index)


def same_device(one: object, other: object) -> bool:
    """Whether two things have the same two numbers of a device."""
    numbers = [(getattr(each, "device_type", None), getattr(each, "device_id", None)) for each in (one, other)]
    return numbers[0] == numbers[1] and None not in numbers[0]


def require_cpu(where: Device) -> None:
    """See that a network can run there.

    Raises: OptionError.
    """
    if not same_device(where, cpu(0)):
        raise OptionError(
            f"this runs networks on cpu(0), not on {where}; compiler.executor.executors.executor_of runs one that was "
            "compiled for a GPU"
        )
