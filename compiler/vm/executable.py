"""In: bytecode and what it needs. Out: an `Executable`, which a `VirtualMachine` runs. Always: its contents fit.

Bytecode and constants go into bytes or a file, kernels into a library; nothing is unpickled.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import ArtifactError, MachineError
from compiler.executor.params import load_param_dict_from_file, save_param_dict_to_file
from compiler.runtime.artifact import Array
from compiler.runtime.buffers import constant_array
from compiler.vm.bytecode import decode_contents, encode_contents
from compiler.vm.contents import Constant, Contents, LateBound
from compiler.vm.library import VMLibrary
from compiler.vm.values import argument


class Executable:
    """Bytecode with all that it needs. Made by `compiler.vm.compile` or `Executable.load_exec`."""

    def __init__(self, contents: Contents, library: VMLibrary | None = None) -> None:
        """Raises: ArtifactError when anything in the contents does not fit."""
        contents.verify()
        self.contents = contents
        self.library = library or VMLibrary()
        self._index = {function.name: number for number, function in enumerate(contents.functions)}
        self._bound: set[str] = set()

    @property
    def lib(self) -> VMLibrary:
        """The library: kernels and whatever else primitives need."""
        return self.library

    @property
    def globals(self) -> list[str]:
        """The names of the functions, by number."""
        return [function.name for function in self.contents.functions]

    def function_index(self, name: str) -> int:
        """The number of a function. Raises: ArtifactError when there is none of that name."""
        if name not in self._index:
            raise ArtifactError(f"the executable has no function {name!r}; it has {', '.join(self.globals)}")
        return self._index[name]

    def get_function_params(self, func_name: str) -> list[str]:
        """The parameters of a function. Raises: ArtifactError."""
        return list(self.contents.functions[self.function_index(func_name)].params)

    @property
    def bytecode(self) -> str:
        """All functions as text."""
        texts = (f"VM Function[{number}]: {each}" for number, each in enumerate(self.contents.functions))
        return "\n\n".join(texts) + "\n"

    @property
    def constants(self) -> str:
        """The constants as text: types, and names of those that are bound later."""
        texts = (f"VM Const[{number}]: {_constant(each)}" for number, each in enumerate(self.contents.constants))
        return "\n".join(texts)

    @property
    def virtual_devices(self) -> str:
        """The devices as text."""
        return "\n".join(
            f"VM VirtualDevice[{number}]: {device}{' (host)' if not number else ''}"
            for number, device in enumerate(self.contents.devices)
        )

    @property
    def primitives(self) -> str:
        """The primitives as text."""
        lines = []
        for number, each in enumerate(self.contents.primitives):
            attrs = " ".join(f"{key}={value}" for key, value in sorted(each.attrs.items()))
            lines.append(f"VM Primitive[{number}]: {each.name}{f' {{{attrs}}}' if attrs else ''}")
        return "\n".join(lines)

    @property
    def primitive_ops(self) -> list[str]:
        """The names of the primitives."""
        return [each.name for each in self.contents.primitives]

    @property
    def stats(self) -> str:
        """How many functions, constants, primitives and instructions there are."""
        table = self.contents.constants
        shapes = [each.name if isinstance(each, LateBound) else list(each.shape) for each in table]
        count = sum(len(function.instructions) for function in self.contents.functions)
        return (
            f"Executable: {len(self.contents.functions)} functions ({', '.join(self.globals)}), {count} instructions\n"
            f"  constants: {len(table)}, their shapes: {shapes}\n"
            f"  primitives: {len(self.contents.primitives)} ({', '.join(self.primitive_ops)})"
        )

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.primitives, self.constants, self.bytecode) if part)

    # Constants that are bound later

    def get_late_bound_consts(self, byte_limit: int) -> dict[str, Array]:
        """Take the constants of at least so many bytes out, and give them by their names, `const_0` and so on. They
        must be bound again before the executable runs.
        """
        taken: dict[str, Array] = {}
        left: list[Constant] = []
        for number, each in enumerate(self.contents.constants):
            if isinstance(each, LateBound) or each.nbytes < byte_limit:
                left.append(each)
            else:
                left.append(LateBound(f"const_{number}"))
                taken[f"const_{number}"] = each
        self.contents = replace(self.contents, constants=tuple(left))
        self._bound -= set(taken)
        return taken

    def move_late_bound_consts(self, path: str | Path, byte_limit: int) -> None:
        """Move the constants of at least so many bytes to a file. Raises: ArtifactError when it cannot be written."""
        before = self.contents
        try:
            save_param_dict_to_file(self.get_late_bound_consts(byte_limit), path)
        except ArtifactError:
            self.contents = before
            raise

    def load_late_bound_consts(self, path: str | Path) -> None:
        """Bind the constants in a file. Raises: ArtifactError as `load_late_bound_consts_from_map`, or for the file."""
        self.load_late_bound_consts_from_map(load_param_dict_from_file(path))

    def load_late_bound_consts_from_map(self, constants: Mapping[str, Array]) -> None:
        """Bind constants by name: all that are missing, and no others.

        Arrays that can be written are copied.
        Raises: ArtifactError that names what is missing, was bound before, unknown or no array of numbers; then nothing
        has changed.
        """
        wanted = dict(self._late_bound())
        again = sorted(set(constants) & self._bound)
        if again:
            raise ArtifactError(f"the constants {', '.join(again)} are bound already")
        missing, extra = sorted(set(wanted) - set(constants)), sorted(set(constants) - set(wanted))
        if missing:
            raise ArtifactError(f"no array is given for the constants {', '.join(missing)}, which are bound late")
        if extra:
            raise ArtifactError(f"the executable has no late-bound constants {', '.join(extra)}")
        filled = list(self.contents.constants)
        for name, number in wanted.items():
            filled[number] = _bound(name, constants[name])
        self.contents = replace(self.contents, constants=tuple(filled))
        self._bound |= set(wanted)

    def _late_bound(self) -> Iterator[tuple[str, int]]:
        table = enumerate(self.contents.constants)
        return ((each.name, number) for number, each in table if isinstance(each, LateBound))

    # Files

    def save(self) -> tuple[bytearray, VMLibrary]:
        """The bytecode as bytes, with the constants, and the library, whose `export_library` writes it to a file.

        Raises: ArtifactError when a constant is of a type that the bytes cannot hold.
        """
        return encode_contents(self.contents), self.library

    @classmethod
    def load_exec(cls, bytecode: bytes | bytearray, lib: VMLibrary | None = None) -> "Executable":
        """What `save` wrote. Raises: ArtifactError when the bytes are damaged, of another version, or inconsistent."""
        return cls(decode_contents(bytes(bytecode)), lib)

    def export_library(self, path: str | Path) -> Path:
        """Write bytecode and library into one file, which `load` reads.

        Raises: ArtifactError when it cannot be written, or as `save`.
        """
        return self.library.export_library(path, bytes(self.save()[0]))

    @classmethod
    def load(cls, path: str | Path) -> "Executable":
        """What `export_library` wrote. Raises: ArtifactError when the file is damaged or of another version."""
        library, code = VMLibrary.load_with_code(path)
        if code is None:
            raise ArtifactError(f"{path} is a library without bytecode; load that with Executable.load_exec")
        return cls.load_exec(code, library)


def _bound(name: str, given: Any) -> Array:
    """What a late-bound constant is given, as nobody writes to it. Raises: ArtifactError when that is no array."""
    try:
        array = argument(given)
    except MachineError as error:
        raise ArtifactError(f"the constant {name}: {error}") from None
    if given is None or not isinstance(array, np.ndarray):
        raise ArtifactError(f"the constant {name} must be an array, not a {type(given).__name__}")
    return constant_array(array)


def _constant(each: Constant) -> str:
    if isinstance(each, LateBound):
        return f"{each.name}, bound late"
    return f"{each.dtype.name}{list(each.shape)}"
