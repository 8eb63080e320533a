"""`Executable`: a program, its constants and kernels, which a `VirtualMachine` runs.

Program and constants are saved to bytes, kernels to a library, or all of them to one file; nothing is unpickled.
Loading verifies the program.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from retune.compiler.core.errors import ArtifactError, DefinitionError, MachineError, OptionError
from retune.compiler.graph.program import Function, Program
from retune.compiler.graph.region import Region
from retune.compiler.runtime.archive import Archive, archive_bytes, reject_damage, write_archive
from retune.compiler.runtime.arguments import path_of
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.buffers import constant_array
from retune.compiler.runtime.device import cpu
from retune.compiler.runtime.executor.params import load_param_dict_from_file, save_param_dict_to_file
from retune.compiler.runtime.kernel_row import KernelRow
from retune.compiler.vm.library import KIND, VERSION, VMLibrary
from retune.compiler.vm.plan_region import PlanRegion
from retune.compiler.vm.program_constants import stored_constants, with_stored
from retune.compiler.vm.saved_program import PROGRAM, LateBound, program_in, program_parts
from retune.compiler.vm.symbolic_plan import SymbolicPlanRegion
from retune.compiler.vm.values import argument

_CODE = "program"
"""The kind of an archive that is a program without a library."""
_ABSENT = np.zeros(0)


class Executable:
    """A program with all that it needs. Made by `retune.compiler.vm.compile` or `Executable.load_exec`.

    `late` are constants that are bound before the program runs.
    """

    def __init__(
        self, program: Program, library: VMLibrary | None = None, late: Mapping[str, LateBound] | None = None
    ) -> None:
        """Raises: ArtifactError when anything in the program does not fit."""
        if not isinstance(program, Program) or not isinstance(library, VMLibrary | None):
            raise ArtifactError("an executable is made of a Program and a VMLibrary; compile makes one of a network")
        if not isinstance(late, Mapping | None):
            raise ArtifactError(f"late-bound constants are facts by name, not {late!r:.80}")
        self.late = dict(late or {})
        try:
            stored = {**stored_constants(program.constants), **dict.fromkeys(self.late, _ABSENT)}
            replace(program, constants=with_stored(program.constants, stored)).verify()
        except DefinitionError as error:
            raise ArtifactError(str(error)) from error
        self.program = program
        self.library = library or VMLibrary()
        self._bound: set[str] = set()

    @property
    def lib(self) -> VMLibrary:
        """The library: kernels and tuned programs."""
        return self.library

    @property
    def globals(self) -> list[str]:
        """The names of the functions."""
        return list(self.program.functions)

    def function(self, name: str) -> Function:
        """A function. Raises: ArtifactError when there is none of that name."""
        if not isinstance(name, str) or name not in self.program.functions:
            raise ArtifactError(f"the executable has no function {name!r}; it has {', '.join(self.globals)}")
        return self.program.functions[name]

    def get_function_params(self, func_name: str) -> list[str]:
        """The parameters of a function. Raises: ArtifactError."""
        return [param.name for param in self.function(func_name).params]

    @property
    def bytecode(self) -> str:
        """All functions as text, and the plans of the regions of known shapes that they call."""
        plans = (str(region.plan) for region in self._regions if isinstance(region, PlanRegion))
        return "\n\n".join([*map(str, self.program.functions.values()), *plans]) + "\n"

    @property
    def _regions(self) -> tuple[Region, ...]:
        return self.program.regions()

    @property
    def per_shape(self) -> dict[str, str]:
        """The regions, and groups of their nodes, that are compiled for each shape that they meet, and why."""
        rows = self.library.about.get("per_shape", {})
        return dict(rows) if isinstance(rows, Mapping) else {}

    @property
    def limits(self) -> dict[str, str]:
        """The regions that are compiled for each shape that they meet unless its sizes fulfill this, such as `n > 6`.
        Of what no range says, sizes to 1024 were tried. That sizes must not be 0 is left out.
        """
        rows = self.library.about.get("limits", {})
        return dict(rows) if isinstance(rows, Mapping) else {}

    @property
    def coverage(self) -> tuple[KernelRow, ...]:
        """The kernels, and what they were made from. Raises: ArtifactError when the file is damaged."""
        with reject_damage("library of a virtual machine", self.program.name):
            return tuple(map(KernelRow.of, self.library.about.get("coverage", ())))

    @property
    def constants(self) -> str:
        """The constants as text: names and types, and which are bound late."""
        rows = [(name, array.dtype.name, array.shape, "") for name, array in self.program.constants.items()]
        rows += [(name, facts.dtype, facts.shape, ", bound late") for name, facts in self.late.items()]
        return "\n".join(f"VM Const {name}: {dtype}{list(shape)}{late}" for name, dtype, shape, late in rows)

    @property
    def virtual_devices(self) -> str:
        """The devices of the program's values as text."""
        return f"VM VirtualDevice[0]: {cpu(0)} (host)"

    @property
    def primitives(self) -> str:
        """The regions as text, those that are compiled with the kernels that they run."""
        lines = []
        for number, region in enumerate(self._regions):
            kernels = ""
            if isinstance(region, PlanRegion | SymbolicPlanRegion) and region.kernels:
                kernels = f" runs {', '.join(region.kernels)}"
            lines.append(f"VM Primitive[{number}]: {region.name} {{{region.kind}}}{kernels}")
        return "\n".join(lines)

    @property
    def primitive_ops(self) -> list[str]:
        """The names of the regions; of those of known shapes the names of the kernels that they run."""
        names: dict[str, None] = {}
        for region in self._regions:
            names |= dict.fromkeys(region.kernels if isinstance(region, PlanRegion) else (region.name,))
        return list(names)

    @property
    def stats(self) -> str:
        """How many functions, constants, regions and statements there are."""
        shapes = [list(array.shape) for array in self.program.constants.values()]
        shapes += [list(facts.shape) for facts in self.late.values()]
        count = sum(len(function.body) for function in self.program.functions.values())
        return (
            f"Executable: {len(self.globals)} functions ({', '.join(self.globals)}), {count} statements\n"
            f"  constants: {len(shapes)}, their shapes: {shapes}\n"
            f"  primitives: {len(self._regions)} ({', '.join(self.primitive_ops)})"
        )

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.primitives, self.constants, self.bytecode) if part)

    # Constants that are bound later

    def get_late_bound_consts(self, byte_limit: int) -> dict[str, Array]:
        """Remove the constants of at least `byte_limit` bytes and return them by name; they must be bound again before
        the executable runs.

        Raises: OptionError when `byte_limit` is no number of bytes.
        """
        if isinstance(byte_limit, bool) or not isinstance(byte_limit, int | np.integer) or byte_limit < 0:
            raise OptionError(f"byte_limit must be a number of bytes, not {byte_limit!r}")
        stored = stored_constants(self.program.constants)
        taken = {name: array for name, array in stored.items() if array.nbytes >= byte_limit}
        left = {name: array for name, array in stored.items() if name not in taken}
        self.program = replace(self.program, constants=with_stored(self.program.constants, left))
        self.late |= {name: LateBound.of(array) for name, array in taken.items()}
        self._bound -= set(taken)
        return taken

    def move_late_bound_consts(self, path: str | Path, byte_limit: int) -> None:
        """Move the constants of at least `byte_limit` bytes to a file. Raises: ArtifactError if that fails."""
        before = self.program, dict(self.late), set(self._bound)
        try:
            save_param_dict_to_file(self.get_late_bound_consts(byte_limit), path)
        except ArtifactError:
            # Constants that reached no file would be lost.
            self.program, self.late, self._bound = before
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
        again = sorted(set(constants) & self._bound)
        if again:
            raise ArtifactError(f"the constants {', '.join(again)} are bound already")
        missing, extra = sorted(set(self.late) - set(constants)), sorted(set(constants) - set(self.late))
        if missing:
            raise ArtifactError(f"no array is given for the constants {', '.join(missing)}, which are bound late")
        if extra:
            raise ArtifactError(f"the executable has no late-bound constants {', '.join(extra)}")
        arrays = {name: _bound(name, facts, constants[name]) for name, facts in self.late.items()}
        constants = self.program.constants
        stored = {**stored_constants(constants), **arrays}
        self.program = replace(self.program, constants=with_stored(constants, stored))
        self.late = {}
        self._bound |= set(arrays)

    # Files

    def save(self) -> tuple[bytearray, VMLibrary]:
        """The program as bytes, with the constants, and the library, whose `export_library` writes it to a file."""
        return bytearray(archive_bytes(_CODE, VERSION, program_parts(self.program, self.late))), self.library

    @classmethod
    def load_exec(cls, bytecode: bytes | bytearray, lib: VMLibrary | None = None) -> "Executable":
        """What `save` wrote. Raises: ArtifactError when the bytes are damaged, of another version, or inconsistent."""
        if not isinstance(bytecode, bytes | bytearray):
            raise ArtifactError(f"bytecode is bytes, as Executable.save gives them, not a {type(bytecode).__name__}")
        with reject_damage("program of a virtual machine", "the data"):
            program, late = program_in(Archive(bytes(bytecode), _CODE, VERSION))
            return cls(program, lib, late)

    def export_library(self, path: str | Path) -> Path:
        """Write program and library into one file, which `load` reads. Constants are arrays of it, which `load` maps.

        Raises: ArtifactError when it cannot be written.
        """
        path = path_of(path)
        write_archive(path, KIND, VERSION, {**self.library.parts(), **program_parts(self.program, self.late)})
        return path

    @classmethod
    def load(cls, path: str | Path) -> "Executable":
        """What `export_library` wrote. Raises: ArtifactError when the file is damaged or of another version."""
        path = path_of(path)
        with reject_damage("executable of a virtual machine", path):
            archive = Archive(path, KIND, VERSION)
            if PROGRAM not in archive:
                raise ArtifactError("a library without a program; load that with Executable.load_exec")
            program, late = program_in(archive)
            return cls(program, VMLibrary.read(archive), late)


def _bound(name: str, facts: LateBound, value: object) -> Array:
    """The array for a late-bound constant, read-only. Raises: ArtifactError when `value` is another one."""
    try:
        array = argument(value)
    except MachineError as error:
        raise ArtifactError(f"the constant {name}: {error}") from None
    if value is None or not isinstance(array, np.ndarray):
        raise ArtifactError(f"the constant {name} must be an array, not a {type(value).__name__}")
    facts.check(name, array)
    return constant_array(array)
