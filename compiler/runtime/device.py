"""In: the name of a kind of device and a number. Out: a `Device`, which says where a network is to run.

Always: a value; nothing is opened. Networks run on processors, all of which are device 0.
"""

from dataclasses import dataclass

from compiler.errors import OptionError

_TYPES = {"cpu": 1, "llvm": 1, "cuda": 2, "gpu": 2}
_CPU = 1


@dataclass(frozen=True, slots=True)
class Device:
    """A device by DLPack's numbers: `device_type` 1 is the processor, 2 a CUDA GPU."""

    device_type: int
    device_id: int = 0

    def __str__(self) -> str:
        names = {number: name for name, number in reversed(_TYPES.items())}
        return f"{names.get(self.device_type, f'device type {self.device_type}')}({self.device_id})"


def device(kind: str, index: int = 0) -> Device:
    """The device number `index` of a kind: cpu (or llvm), cuda (or gpu).

    Raises: OptionError for another kind.
    """
    if kind not in _TYPES:
        raise OptionError(f"no kind of device is called {kind!r}; there are {', '.join(_TYPES)}")
    return Device(_TYPES[kind], index)


def cpu(index: int = 0) -> Device:
    """This machine's processor."""
    return Device(_CPU, index)


def require_cpu(where: Device) -> None:
    """See that a network can run there.

    Raises: OptionError.
    """
    if where != cpu(0):
        raise OptionError(f"networks run on cpu(0), not on {where}: there is no executor for other devices yet")
