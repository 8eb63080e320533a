"""Registry of workloads: maps functions or tensors to keys that identify a computation in records and other processes.

There is one registry per process. A key is the JSON text `[name, arguments …]` of a registered function, or any string
under which tensors were registered.
"""

import json
import pickle
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar, overload

from retune.compiler.core.errors import DuplicateWorkloadError, UnknownWorkloadError, UnregisteredWorkloadError
from retune.compiler.runtime.ffi.registry import register_when_loaded, registration
from retune.compiler.te.compute import placeholder
from retune.compiler.te.tensor import Tensor

Workload = Callable[..., Iterable[Tensor]]
Entry = Workload | list[Tensor]
F = TypeVar("F", bound=Workload)

# As in TVM's workload keys, where it marks a tensor among the arguments.
_TENSOR = "TENSOR"
WORKLOAD_FUNC_REGISTRY: dict[str, Entry] = {}
"""Functions by name, and tensors by workload key."""


@overload
def register_workload(func_name: F, f: None = None, override: bool = False) -> F: ...
@overload
def register_workload(func_name: str, f: None = None, override: bool = False) -> Callable[[F], F]: ...
@overload
def register_workload(func_name: str, f: F, override: bool = False) -> F: ...
def register_workload(func_name: F | str, f: F | None = None, override: bool = False) -> F | Callable[[F], F]:
    """Register a function that returns the input and output tensors of a computation.

    Used as `@register_workload`, as `@register_workload("name")`, or as `register_workload("name", function)`; the
    default name is the function's. Returns the function.
    Raises: DuplicateWorkloadError when the name is taken, unless `override`; UnregisteredWorkloadError for a name that
    is no text.
    """
    if not callable(func_name) and not isinstance(func_name, str):
        raise UnregisteredWorkloadError(f"a workload is registered under a string, not {func_name!r}")
    return registration(_register, func_name, f, override)


def _register(name: str, function: F, override: bool) -> F:
    if name in WORKLOAD_FUNC_REGISTRY and not override:
        raise DuplicateWorkloadError(f"the workload {name} is registered already; use another name, or override it")
    WORKLOAD_FUNC_REGISTRY[name] = function
    return function


def register_workload_tensors(workload_key: str, tensors: Sequence[Tensor], override: bool = True) -> str:
    """Register the input and output tensors of a computation under `workload_key`, which is returned.

    Raises: DuplicateWorkloadError when the key is taken and `override` is False.
    """
    if workload_key in WORKLOAD_FUNC_REGISTRY and not override:
        raise DuplicateWorkloadError(
            f"the workload {workload_key} is registered already; use another key, or override it"
        )
    WORKLOAD_FUNC_REGISTRY[workload_key] = list(tensors)
    return workload_key


def make_workload_key(func: Workload | str, args: Sequence[object]) -> str:
    """The key of a registered function, or its name, with arguments: JSON text.

    Arguments are numbers, strings, None, tensors (only shape and type count) and sequences of these.
    Raises: UnregisteredWorkloadError for an unknown function, or an argument of another type.
    """
    if not callable(func) and not isinstance(func, str):
        raise UnregisteredWorkloadError(f"a workload is a registered function or its name, not {func!r:.80}")
    if callable(func):
        # By identity: another function may have the same name, and one function several names.
        names = [name for name, entry in WORKLOAD_FUNC_REGISTRY.items() if entry is func]
        name = names[0] if names else getattr(func, "__name__", repr(func))
    else:
        name = func
    if not callable(WORKLOAD_FUNC_REGISTRY.get(name)) or (callable(func) and WORKLOAD_FUNC_REGISTRY[name] is not func):
        raise UnregisteredWorkloadError(f"the workload {name} is not registered; decorate it with @register_workload")
    return json.dumps([name, *(_encode(argument) for argument in args)])


def _encode(argument: object) -> object:
    if argument is None or isinstance(argument, (bool, int, float, str)):
        return argument
    if isinstance(argument, Tensor):
        return [_TENSOR, list(argument.shape), argument.dtype]
    if isinstance(argument, (list, tuple)):
        return [_encode(item) for item in argument]
    raise UnregisteredWorkloadError(
        f"the workload argument {argument!r} cannot be part of a key; use numbers, strings, tensors or lists"
    )


def _decode(argument: object) -> object:
    if not isinstance(argument, list):
        return argument
    if len(argument) == 3 and argument[0] == _TENSOR:
        return placeholder(argument[1], argument[2])
    return tuple(_decode(item) for item in argument)


def workload_key_to_tensors(workload_key: str) -> list[Tensor]:
    """The input and output tensors of a key.

    Raises: UnknownWorkloadError when neither the key nor the function it names is registered.
    """
    entry = WORKLOAD_FUNC_REGISTRY.get(workload_key)
    if entry is None:
        name, args = _parse(workload_key)
        entry = WORKLOAD_FUNC_REGISTRY.get(name) if name is not None else None
        if not callable(entry):
            raise UnknownWorkloadError(f"the workload {workload_key} is not registered in this process")
        return list(entry(*args))
    return list(entry()) if callable(entry) else list(entry)


register_when_loaded("auto_scheduler.workload_key_to_tensors", workload_key_to_tensors)


def _parse(key: str) -> tuple[str | None, tuple[object, ...]]:
    try:
        decoded = json.loads(key)
    # A key may be any text, also JSON nested too deep for Python's recursion.
    except (ValueError, RecursionError):
        return None, ()
    if not isinstance(decoded, list) or not decoded or not isinstance(decoded[0], str):
        return None, ()
    return decoded[0], tuple(_decode(argument) for argument in decoded[1:])


def is_registered(key: str) -> bool:
    """Whether `workload_key_to_tensors` knows the key, or the function it names."""
    return key in WORKLOAD_FUNC_REGISTRY or _parse(key)[0] in WORKLOAD_FUNC_REGISTRY


def serialize_workload_registry_entry(workload_key: str) -> tuple[str, Workload | bytes]:
    """The entry of a key in a form that another process takes: a function itself, or pickled tensors.

    Raises: UnknownWorkloadError when the key is not registered.
    """
    name = workload_key if workload_key in WORKLOAD_FUNC_REGISTRY else _parse(workload_key)[0]
    if name is None or name not in WORKLOAD_FUNC_REGISTRY:
        raise UnknownWorkloadError(f"the workload {workload_key} is not registered in this process")
    entry = WORKLOAD_FUNC_REGISTRY[name]
    # Processes import functions by name; tensors travel by value.
    return name, entry if callable(entry) else pickle.dumps(entry)


def deserialize_workload_registry_entry(data: tuple[str, Workload | bytes]) -> None:
    """Register what `serialize_workload_registry_entry` made; an existing entry is kept."""
    name, entry = data
    if name not in WORKLOAD_FUNC_REGISTRY:
        WORKLOAD_FUNC_REGISTRY[name] = pickle.loads(entry) if isinstance(entry, bytes) else entry


def save_workload_func_registry(filename: str | Path) -> None:
    """Write the whole registry to a file. Functions are saved by name, so they must be importable."""
    Path(filename).write_bytes(
        pickle.dumps([serialize_workload_registry_entry(name) for name in WORKLOAD_FUNC_REGISTRY])
    )


def load_workload_func_registry(filename: str | Path) -> None:
    """Add the entries of a saved registry; existing entries are kept."""
    for entry in pickle.loads(Path(filename).read_bytes()):
        deserialize_workload_registry_entry(entry)
