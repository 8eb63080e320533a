"""Registry of arrays for task inputs that must not be random, such as indices.

There is one table per process, by workload key and name of the placeholder; later processes find saved arrays. Every
registered array is used, otherwise measuring raises an error with the reason.

    <state folder>/inputs/<hash of the workload key>/<name>.npy

Differences from TVM's table: files are real `.npy` files in the state folder, not text in the working folder;
registering an equal array again is no error; a saved array is never silently replaced.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, overload

import numpy as np

from retune.compiler.core import config
from retune.compiler.core.errors import OptionError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.ffi.registry import registration
from retune.compiler.schedule.task import SearchTask
from retune.compiler.te.tensor import Tensor

DEFAULT = "default"
"""The fallback table: inputs that belong to no particular workload."""

CheckFunction = Callable[[Sequence[Tensor]], Mapping[Tensor, str]]
"""Takes a task's inputs and outputs and returns which inputs to fill with which registered arrays."""

F = TypeVar("F", bound=CheckFunction)

_TABLES: dict[str, dict[str, Array | None]] = {}
_REVISIONS: dict[str, int] = {}
_CHECKS: dict[str, CheckFunction] = {}


def register_task_input_buffer(
    workload_key: str, input_name: str, input_data: Array, overwrite: bool = False, save_to_file: bool = False
) -> Array:
    """Fill the input `input_name` of a workload with `input_data` whenever it is measured, also in later processes when
    it is saved. Returns the array.

    Raises: OptionError when another array is registered or saved under that name, unless `overwrite`; or for a name to
    save that cannot be a file's.
    """
    array = np.array(input_data)
    registered = _TABLES.get(workload_key, {}).get(input_name)
    if save_to_file and (not input_name or input_name != Path(input_name).name):
        raise OptionError(f"the input's name {input_name!r} cannot be that of a file")
    path = _path(workload_key, input_name)
    saved = _load(path) if save_to_file else None
    for existing, place_text in ((registered, "registered"), (saved, f"saved in {path}")):
        if existing is not None and not overwrite and not _equal(existing, array):
            raise OptionError(f"another array is {place_text} for input {input_name}; use overwrite to replace it")
    if save_to_file:
        _save(path, array)
    _TABLES.setdefault(workload_key, {})[input_name] = array
    _REVISIONS[workload_key] = _REVISIONS.get(workload_key, 0) + 1
    return array


def register_task_inputs(
    workload_key: str, inputs: Mapping[str, Array] | Sequence[str], overwrite: bool = False, save_to_file: bool = False
) -> tuple[str, ...]:
    """Register arrays by name; or only names, whose arrays `get_task_input_buffer` looks up. Returns the names. Raises:
    OptionError as `register_task_input_buffer` does.
    """
    if isinstance(inputs, Mapping):
        for name, array in inputs.items():
            register_task_input_buffer(workload_key, name, array, overwrite, save_to_file)
    else:
        table = _TABLES.setdefault(workload_key, {})
        for name in inputs:
            table.setdefault(name, None)
    return tuple(inputs)


def get_task_input_buffer(workload_key: str, input_name: str) -> Array:
    """The array for an input: from the workload's table, its saved file, or the table `DEFAULT`, in that order.

    Raises: OptionError when it is in none of them.
    """
    path = _path(workload_key, input_name)
    for array in (_TABLES.get(workload_key, {}).get(input_name), _load(path)):
        if array is not None:
            return array
    fallback = _TABLES.get(DEFAULT, {}).get(input_name)
    if fallback is None:
        raise OptionError(
            f"no array is registered for input {input_name} of workload {workload_key}, and none is saved in {path}"
        )
    return fallback


@overload
def register_task_input_check_func(func_name: F, f: None = None, override: bool = False) -> F: ...
@overload
def register_task_input_check_func(func_name: str, f: None = None, override: bool = False) -> Callable[[F], F]: ...
@overload
def register_task_input_check_func(func_name: str, f: F, override: bool = False) -> F: ...
def register_task_input_check_func(
    func_name: F | str, f: F | None = None, override: bool = False
) -> F | Callable[[F], F]:
    """Register a function that returns the inputs to fill in a computation, for placeholders whose names are not known
    beforehand. Used as `register_workload` is. Returns the function.

    Raises: OptionError when the name is taken, unless `override`.
    """
    return registration(_register, func_name, f, override)


def special_inputs(task: SearchTask) -> dict[int, Array]:
    """The arrays for a task's inputs by their numbers; other inputs are random.

    Raises: OptionError when an array is registered for a name that no input has, or a named array is missing.
    """
    key, tensors = task.workload_key, task.dag.inputs
    numbers = {tensor.name: number for number, tensor in enumerate(tensors)}
    names = {*_TABLES.get(key, {}), *(path.stem for path in _folder(key).glob("*.npy"))}
    names_by_number = {numbers[name]: name for name in names if name in numbers}
    for check in _CHECKS.values():
        for tensor, name in check((*tensors, *task.dag.outputs)).items():
            matches = [number for number, candidate in enumerate(tensors) if candidate is tensor]
            if not matches:
                raise OptionError(f"{tensor.name}, which is to be filled with {name}, is no input of {task.name}")
            names_by_number.setdefault(matches[0], name)
    unused = names - set(names_by_number.values())
    if unused:
        raise OptionError(
            f"{task.name} has no input called {', '.join(sorted(unused))}, for which an array is registered; "
            f"its inputs are {', '.join(numbers)}"
        )
    return {number: get_task_input_buffer(key, name) for number, name in names_by_number.items()}


def revision(workload_key: str) -> int:
    """A number that changes when an array of the workload, or of the table `DEFAULT`, does."""
    return _REVISIONS.get(workload_key, 0) + _REVISIONS.get(DEFAULT, 0)


def _register(name: str, function: F, override: bool) -> F:
    if name in _CHECKS and not override:
        raise OptionError(f"the function {name} is registered already; use another name, or override it")
    _CHECKS[name] = function
    return function


def _folder(workload_key: str) -> Path:
    # Keys hold JSON of any length: a hash fits into a file name (255 bytes) and needs no escaping.
    digest = hashlib.sha256(workload_key.encode()).hexdigest()[:32]
    return config.load().home / "inputs" / digest


def _path(workload_key: str, name: str) -> Path:
    return _folder(workload_key) / f"{name}.npy"


def _load(path: Path) -> Array | None:
    """The saved array, None without a file. Raises: OptionError when the file cannot be read."""
    try:
        # No pickles: they would run code that the writer of the file chose.
        loaded: Array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise OptionError(f"the array saved in {path} cannot be read: {error}") from error
    return loaded


def _save(path: Path, array: Array) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise OptionError(f"the array cannot be saved as {path}: {error}") from error


def _equal(lhs: Array, rhs: Array) -> bool:
    return lhs.dtype == rhs.dtype and np.array_equal(lhs, rhs, equal_nan=lhs.dtype.kind == "f")
