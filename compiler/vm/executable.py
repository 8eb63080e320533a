"""`Executable`: bytecode, constants and kernels that a `VirtualMachine` runs.

Bytecode and constants are serialized to bytes or a file, kernels to a library; nothing is unpickled. Loading verifies
the image.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from retune.compiler.errors import ArtifactError, MachineError, OptionError
from retune.compiler.executor.params import load_param_dict_from_file, save_param_dict_to_file
from retune.compiler.executor.plan import Plan
from retune.compiler.runtime.archive import Archive, refusing_damage, write_archive
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import constant_array
from retune.compiler.runtime.paths import path_of
from retune.compiler.vm.bytecode import decode_image, encode_image
from retune.compiler.vm.library import KIND, VERSION, VMLibrary
from retune.compiler.vm.plan_text import plan_lines
from retune.compiler.vm.program_image import PLAN, Constant, LateBound, Primitive, ProgramImage, plan_constants
from retune.compiler.vm.values import argument

_CODE, _PART = "bytecode", "constants/{}.npy"


class Executable:
    """Bytecode with all that it needs. Made by `retune.compiler.vm.compile` or `Executable.load_exec`."""

    def __init__(self, image: ProgramImage, library: VMLibrary | None = None) -> None:
        """Raises: ArtifactError when anything in the image does not fit."""
        if not isinstance(image, ProgramImage) or not isinstance(library, VMLibrary | None):
            raise ArtifactError("an executable is made of ProgramImage and a VMLibrary; compile makes one of a network")
        image.verify()
        self.image = image
        self.library = library or VMLibrary()
        names = [one.name for one, _ in self._late_bound()]
        if len(set(names)) != len(names):
            raise ArtifactError("two late-bound constants have one name")
        self._index = {function.name: number for number, function in enumerate(image.functions)}
        self._bound: set[str] = set()

    @property
    def contents(self) -> ProgramImage:
        """The image, by its name of earlier versions; deprecated."""
        warnings.warn("Executable.contents is deprecated; use Executable.image", DeprecationWarning, stacklevel=2)
        return self.image

    @property
    def lib(self) -> VMLibrary:
        """The library: kernels and whatever else primitives need."""
        return self.library

    @property
    def globals(self) -> list[str]:
        """The names of the functions, by number."""
        return [function.name for function in self.image.functions]

    def function_index(self, name: str) -> int:
        """The number of a function. Raises: ArtifactError when there is none of that name."""
        if not isinstance(name, str) or name not in self._index:
            raise ArtifactError(f"the executable has no function {name!r}; it has {', '.join(self.globals)}")
        return self._index[name]

    def get_function_params(self, func_name: str) -> list[str]:
        """The parameters of a function. Raises: ArtifactError."""
        return list(self.image.functions[self.function_index(func_name)].params)

    @property
    def bytecode(self) -> str:
        """All functions as text, and the networks of known shapes that they run, as TVM's instructions."""
        texts = [f"VM Function[{number}]: {each}" for number, each in enumerate(self.image.functions)]
        return "\n\n".join([*texts, *self._plans()]) + "\n"

    def _plan_of(self, primitive: Primitive) -> Plan | None:
        """The plan of a network of known shapes; None for another primitive, or without the library.

        Raises: ArtifactError when it is damaged.
        """
        stored = self.library.regions.get(primitive.attrs.get("region", ""))
        if primitive.attrs.get("kind") != PLAN or stored is None:
            return None
        plan = Plan.loads(stored.data.decode(errors="replace"))
        plan.verify({}, {call.kernel for call in plan.calls})
        return plan

    def _kernels_of(self, primitive: Primitive) -> list[str]:
        plan = self._plan_of(primitive)
        return [] if plan is None else list(dict.fromkeys(call.kernel for call in plan.calls))

    def _plans(self) -> Iterator[str]:
        kernels = {kernel.name: kernel for kernel in self.library.kernels}
        for number, each in enumerate(self.image.primitives):
            plan = self._plan_of(each)
            if plan is not None:
                lines = plan_lines(plan, kernels, plan_constants(each.attrs))
                inputs = ", ".join(f"%{buffer}" for buffer in plan.inputs)
                yield "\n".join([f"VM Plan[{number}]: {each.name}({inputs})", *(f"  {line}" for line in lines)])

    @property
    def constants(self) -> str:
        """The constants as text: types, and names of those that are bound later."""
        texts = (f"VM Const[{number}]: {_constant(each)}" for number, each in enumerate(self.image.constants))
        return "\n".join(texts)

    @property
    def virtual_devices(self) -> str:
        """The devices as text."""
        return "\n".join(
            f"VM VirtualDevice[{number}]: {device}{' (host)' if not number else ''}"
            for number, device in enumerate(self.image.devices)
        )

    @property
    def primitives(self) -> str:
        """The primitives as text."""
        lines = []
        for number, each in enumerate(self.image.primitives):
            attrs = " ".join(f"{key}={value}" for key, value in sorted(each.attrs.items()))
            kernels = f" runs {', '.join(self._kernels_of(each))}" if each.attrs.get("kind") == PLAN else ""
            lines.append(f"VM Primitive[{number}]: {each.name}{f' {{{attrs}}}' if attrs else ''}{kernels}")
        return "\n".join(lines)

    @property
    def primitive_ops(self) -> list[str]:
        """The names of the primitives; of a network of known shapes those of the kernels that it runs."""
        names = [
            name
            for each in self.image.primitives
            for name in (self._kernels_of(each) if each.attrs.get("kind") == PLAN else (each.name,))
        ]
        return list(dict.fromkeys(names))

    @property
    def stats(self) -> str:
        """How many functions, constants, primitives and instructions there are."""
        table = self.image.constants
        shapes = [each.name if isinstance(each, LateBound) else list(each.shape) for each in table]
        count = sum(len(function.instructions) for function in self.image.functions)
        return (
            f"Executable: {len(self.image.functions)} functions ({', '.join(self.globals)}), {count} instructions\n"
            f"  constants: {len(table)}, their shapes: {shapes}\n"
            f"  primitives: {len(self.image.primitives)} ({', '.join(self.primitive_ops)})"
        )

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.primitives, self.constants, self.bytecode) if part)

    # Constants that are bound later

    def get_late_bound_consts(self, byte_limit: int) -> dict[str, Array]:
        """Take the constants of at least so many bytes out, and give them by their names: `const_0` and so on those of
        the bytecode, `array_` and their own names those of regions that are compiled when they run. They must be bound
        again before the executable runs.

        Raises: OptionError when `byte_limit` is no number of bytes.
        """
        if isinstance(byte_limit, bool) or not isinstance(byte_limit, int | np.integer) or byte_limit < 0:
            raise OptionError(f"byte_limit must be a number of bytes, not {byte_limit!r}")
        constants = dict(enumerate(self.image.constants))
        large = {number: one for number, one in constants.items() if _is_large(one, byte_limit)}
        arrays = {name: one for name, one in self.library.arrays.items() if _is_large(one, byte_limit)}
        stand_ins = {number: LateBound.of(f"const_{number}", one) for number, one in large.items()}
        late = {name: LateBound.of(f"array_{name}", one) for name, one in arrays.items()}
        left = {name: one for name, one in self.library.arrays.items() if name not in arrays}
        self.image = replace(self.image, constants=tuple((constants | stand_ins).values()))
        self.library = replace(self.library, arrays=left, late={**self.library.late, **late})
        taken = {stand_ins[number].name: one for number, one in large.items()}
        taken |= {late[name].name: one for name, one in arrays.items()}
        self._bound -= set(taken)
        return taken

    def move_late_bound_consts(self, path: str | Path, byte_limit: int) -> None:
        """Move the constants of at least so many bytes to a file. Raises: ArtifactError when it cannot be written."""
        before = self.image, self.library
        try:
            save_param_dict_to_file(self.get_late_bound_consts(byte_limit), path)
        except ArtifactError:
            # Constants that reached no file would be lost.
            self.image, self.library = before
            raise

    def load_late_bound_consts(self, path: str | Path) -> None:
        """Bind the constants in a file. Raises: ArtifactError as `load_late_bound_consts_from_map`, or for the file."""
        self.load_late_bound_consts_from_map(load_param_dict_from_file(path, copy=False))

    def load_late_bound_consts_from_map(self, constants: Mapping[str, Array]) -> None:
        """Bind constants by name: all that are missing, and no others.

        Arrays that can be written are copied.
        Raises: ArtifactError that names what is missing, was bound before, unknown, no array of numbers, or not the one
        that was taken out; then nothing has changed.
        """
        if not isinstance(constants, Mapping) or not all(isinstance(name, str) for name in constants):
            raise ArtifactError(f"constants are bound by their names, not from {constants!r:.80}")
        wanted = {one.name: (one, place) for one, place in self._late_bound()}
        again = sorted(set(constants) & self._bound)
        if again:
            raise ArtifactError(f"the constants {', '.join(again)} are bound already")
        missing, extra = sorted(set(wanted) - set(constants)), sorted(set(constants) - set(wanted))
        if missing:
            raise ArtifactError(f"no array is given for the constants {', '.join(missing)}, which are bound late")
        if extra:
            raise ArtifactError(f"the executable has no late-bound constants {', '.join(extra)}")
        filled, arrays = list(self.image.constants), dict(self.library.arrays)
        for name, (one, place) in wanted.items():
            array = _bound(one, constants[name])
            if isinstance(place, int):
                filled[place] = array
            else:
                arrays[place] = array
        self.image = replace(self.image, constants=tuple(filled))
        self.library = replace(self.library, arrays=arrays, late={})
        self._bound |= set(wanted)

    def _late_bound(self) -> Iterator[tuple[LateBound, int | str]]:
        """What is bound late, and where it goes: the number of a constant, or the name of an array of regions."""
        yield from ((one, place) for place, one in enumerate(self.image.constants) if isinstance(one, LateBound))
        yield from ((one, name) for name, one in self.library.late.items())

    # Files

    def save(self) -> tuple[bytearray, VMLibrary]:
        """The bytecode as bytes, with the constants, and the library, whose `export_library` writes it to a file.

        Raises: ArtifactError when a constant is of a type that the bytes cannot hold.
        """
        return encode_image(self.image), self.library

    @classmethod
    def load_exec(cls, bytecode: bytes | bytearray, lib: VMLibrary | None = None) -> "Executable":
        """What `save` wrote. Raises: ArtifactError when the bytes are damaged, of another version, or inconsistent."""
        if not isinstance(bytecode, bytes | bytearray):
            raise ArtifactError(f"bytecode is bytes, as Executable.save gives them, not a {type(bytecode).__name__}")
        return cls(decode_image(bytes(bytecode)), lib)

    def export_library(self, path: str | Path) -> Path:
        """Write bytecode and library into one file, which `load` reads. Constants are arrays of it, which `load` maps.

        Raises: ArtifactError when it cannot be written, or as `save`.
        """
        path, constants = path_of(path), self.image.constants
        arrays = {_PART.format(number): one for number, one in enumerate(constants) if not isinstance(one, LateBound)}
        # In the file each constant stands in the bytecode as a late-bound name, and as an array that can be mapped.
        names = (LateBound(_PART.format(number)) for number in range(len(constants)))
        stored = tuple(one if isinstance(one, LateBound) else name for one, name in zip(constants, names, strict=True))
        code = encode_image(replace(self.image, constants=stored))
        write_archive(path, KIND, VERSION, {**self.library.parts(), _CODE: bytes(code), **arrays})
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Executable":
        """What `export_library` wrote. Raises: ArtifactError when the file is damaged or of another version."""
        path = path_of(path)
        with refusing_damage("executable of a virtual machine", path):
            archive = Archive(path, KIND, VERSION)
            if _CODE not in archive:
                raise ArtifactError("a library without bytecode; load that with Executable.load_exec")
            image = decode_image(archive.blob(_CODE))
            constants = tuple(
                archive.array(_PART.format(number)) if _PART.format(number) in archive else one
                for number, one in enumerate(image.constants)
            )
            return cls(replace(image, constants=constants), VMLibrary.read(archive))


def _is_large(one: Constant, byte_limit: int) -> TypeGuard[Array]:
    return not isinstance(one, LateBound) and one.nbytes >= byte_limit


def _bound(one: LateBound, given: Any) -> Array:
    """What a late-bound constant is given, read-only. Raises: ArtifactError when that is another array."""
    try:
        array = argument(given)
    except MachineError as error:
        raise ArtifactError(f"the constant {one.name}: {error}") from None
    if given is None or not isinstance(array, np.ndarray):
        raise ArtifactError(f"the constant {one.name} must be an array, not a {type(given).__name__}")
    one.check(array)
    return constant_array(array)


def _constant(each: Constant) -> str:
    if isinstance(each, LateBound):
        return f"{each.name}, bound late"
    return f"{each.dtype.name}{list(each.shape)}"
