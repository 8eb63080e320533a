"""Exception classes of Retune. Every error that a user can cause derives from `RetuneError`.

A failed *candidate* is not an exception but a value: see `retune.compiler.measure.record.MeasureStatus`.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

HIDDEN = "***"
"""Shown in place of a password."""

# Greedy up to the last @ before the path: a password may hold an unescaped @, and must not show by half.
_PASSWORD = re.compile(r"(\b[A-Za-z][\w+.-]*://[^\s/?#:@]*:)[^\s/?#]*@")


def without_passwords(text: str) -> str:
    """The text with `***` for the password in every URL such as `sftp://name:password@host/folder`."""
    return _PASSWORD.sub(rf"\1{HIDDEN}@", text) if "://" in text else text


def install_hint(extra: str) -> str:
    """The command that installs an extra. By path: the package called retune on PyPI is another project's."""
    return f"pip install -e '.[{extra}]' in the root of Retune's clone"


class RetuneError(Exception):
    """Base of every error meant for the user; its text shows no password of a URL."""

    def __str__(self) -> str:
        return without_passwords(super().__str__())


class DefinitionError(RetuneError):
    """A tensor expression or compute graph is malformed."""


class WorkloadError(RetuneError):
    """A workload key or registration is wrong."""


# Second bases are Python's own classes: scripts written for TVM catch those.
class DuplicateWorkloadError(WorkloadError, RuntimeError):
    """The name of a workload is taken."""


class UnregisteredWorkloadError(WorkloadError, ValueError):
    """No key can be made of this function, because it is not registered, or of an argument."""


class UnknownWorkloadError(WorkloadError, KeyError):
    """No registered workload has this key."""

    def __str__(self) -> str:
        # `KeyError.__str__` would show the message as a literal, in quotes.
        return without_passwords(Exception.__str__(self))


class RegistryError(RetuneError, ValueError):
    """A function that kernels call is not registered, or its name is taken."""


class ScheduleError(RetuneError):
    """A transform step does not fit the state it is applied to."""


class LoweringError(RetuneError):
    """A schedule cannot be turned into code within the target's limits."""


class DeviceLimitError(LoweringError):
    """A kernel exceeds a limit of the GPU; `limit` names it."""

    def __init__(self, message: str, limit: str) -> None:
        super().__init__(message)
        self.limit = limit

    # An exception is pickled by its `args`, which lack `limit`: without this it could not cross to another process.
    def __reduce__(self) -> tuple[type["DeviceLimitError"], tuple[str, str]]:
        return type(self), (str(self), self.limit)


class TargetError(RetuneError, ValueError):
    """A target string names no machine Retune can compile for."""


class ModelError(RetuneError, RuntimeError):
    """A network cannot be imported."""


class ModelFormatError(ModelError):
    """The model file is missing, unreadable or not ONNX."""


class UnsupportedOperatorError(ModelError):
    """An operator, or an attribute, has no conversion."""


class UnknownValueError(UnsupportedOperatorError):
    """A shape, an axis or the like depends on the values of `inputs`, which are unknown before the network runs."""

    def __init__(self, message: str, inputs: tuple[str, ...]) -> None:
        super().__init__(message)
        self.inputs = inputs


class DynamicShapeError(ModelError):
    """A dimension of the network is not a number."""


class ShapeMismatchError(RetuneError, ValueError):
    """An array does not fit what a network says of its input."""


class StoreError(RetuneError):
    """The record store cannot be used."""


class SchemaError(StoreError):
    """A record file was written by a newer version of Retune."""


class CorruptRecordError(StoreError):
    """A record file cannot be read back."""


class UnknownFormError(CorruptRecordError):
    """A JSON object has other fields, or fields of other types, than this version knows."""


class LogFormatError(RetuneError, RuntimeError):
    """A tuning log in TVM's form cannot be read or written."""


class NoRecordError(RetuneError, RuntimeError):
    """There is no successful record of a workload."""


class NotYetError(RetuneError, NotImplementedError):
    """The feature is specified but not implemented yet."""


class ArtifactError(RetuneError):
    """A compiled network cannot be saved or loaded."""


class RowLengthError(ArtifactError):
    """A symbolic kernel keeps rows on the stack of a thread, and rows of these sizes are too long for it."""


class MachineError(RetuneError, RuntimeError):
    """The virtual machine cannot continue: a statement got a value that does not fit, or the arguments are invalid."""


class MismatchError(RetuneError, ValueError):
    """Two values that must have the same structure differ."""


class ServerError(RetuneError):
    """The Prefect server cannot be reached, or does not start."""


class MeasureError(RetuneError):
    """The measuring infrastructure itself failed."""


class DeviceError(RetuneError):
    """A GPU is missing, or an operation on it failed. After a `lasting` error this process cannot use the GPU."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class OptionError(RetuneError, ValueError):
    """An option has an invalid value."""


class PassOptionError(OptionError, AttributeError):
    """A pass context has no option of that name, or its type differs."""


@contextmanager
def refuse_depth(where: str, error: type[RetuneError]) -> Iterator[None]:
    """Turn a RecursionError of the block, from expressions nested too deep, into `error`."""
    try:
        yield
    except RecursionError:
        raise error(
            f"{where}: its expressions are nested too deep, perhaps by stages that are inlined into one another; "
            "compute some parts as tensors of their own, in loops of their own"
        ) from None
