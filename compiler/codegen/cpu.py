"""Compiles LLVM text to object code for a CPU.

Each module gets its own target machine, because LLVM frees the machine with its owner.
"""

import os
import re
import tempfile
from functools import lru_cache
from threading import Lock

import llvmlite.binding as llvm

from retune.compiler.core.errors import LoweringError, TargetError
from retune.compiler.core.target import Target


@lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()  # of modules with assembly


def llvm_version() -> str:
    """LLVM's version, for records and artifacts."""
    return ".".join(str(part) for part in llvm.llvm_version_info)


@lru_cache(maxsize=16)
def describe(target: Target) -> tuple[str, str, str]:
    """(triple, CPU name, features), completed from the host.

    Raises: TargetError when the target is no CPU, or LLVM does not know the triple, the CPU or a feature.
    """
    if target.kind != "llvm":
        raise TargetError(f"target {str(target)!r}: code can be generated for CPUs only; use an llvm target")
    _initialize()
    if target.triple or target.cpu:
        described = target.triple or llvm.get_process_triple(), target.cpu or "generic", target.features
    else:
        features = llvm.get_host_cpu_features().flatten()
        # LLVM prefers half-width vectors on some AVX-512 machines; these kernels are written for full vectors.
        features = ",".join(part for part in (features, "-prefer-256-bit", target.features) if part)
        described = llvm.get_process_triple(), llvm.get_host_cpu_name(), features
    if target != Target.host():
        check_names(target, described)
    return described


_UNKNOWN = re.compile(r"'([^']+)' is not a recognized (processor|feature) for this target")
_UNKNOWN_LINE = re.compile(rb".* is not a recognized (processor|feature) for this target.*\n?")
_STDERR = 2
_stderr_lock = Lock()


def check_names(target: Target, described: tuple[str, str, str]) -> None:
    """Raise an error for names that LLVM does not know: it ignores them with a note on the error stream."""
    triple, cpu, features = described
    try:
        llvm_target = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise TargetError(f"target {str(target)!r}: {error}") from None
    # LLVM writes to file descriptor 2 itself, which replacing `sys.stderr` would not catch. The descriptor belongs to
    # the whole process, hence the lock.
    with _stderr_lock, tempfile.TemporaryFile() as captured:
        saved = os.dup(_STDERR)
        os.dup2(captured.fileno(), _STDERR)
        try:
            llvm_target.create_target_machine(cpu=cpu, features=features)
        finally:
            os.dup2(saved, _STDERR)
            os.close(saved)
        captured.seek(0)
        output = captured.read()
    if others := _UNKNOWN_LINE.sub(b"", output):  # of other threads
        os.write(_STDERR, others)
    unknown = _UNKNOWN.search(output.decode(errors="replace"))
    if unknown is not None:
        name, kind = unknown.groups()
        what = kind if kind == "feature" else "CPU"
        raise TargetError(f"target {str(target)!r}: LLVM knows no {what} {name!r} of {triple}")


def make_target_machine(target: Target) -> llvm.TargetMachine:
    """A fresh target machine.

    Raises: TargetError, see `describe`.
    """
    triple, cpu, features = describe(target)
    llvm_target = llvm.Target.from_triple(triple)
    # Objects also become shared libraries: position-independent, with offsets of 32 bits (the small code model).
    return llvm_target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")


_PROBE = """
define void @probe(ptr %a) #0 {{
  %x = load <16 x float>, ptr %a, align 4
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %a, align 4
  ret void
}}
attributes #0 = {{ {attributes} }}
"""
"""Adds 64 bytes of numbers; the registers in its assembly show the width of the target's."""


@lru_cache(maxsize=16)
def vector_bytes(target: Target) -> int:
    """The width of a vector register that LLVM uses for an x86 `target`.

    Raises: TargetError, see `describe`.
    """
    listing = assembly(_PROBE.format(attributes=function_attributes(64)), target)
    return 64 if "%zmm" in listing else 32 if "%ymm" in listing else 16


def function_attributes(vector_bytes: int) -> str:
    """Attributes that make LLVM use the whole vector register."""
    # The preference alone is a hint that CPU tuning overrides; the legal width makes LLVM keep wide vectors whole.
    width = vector_bytes * 8
    return f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'


def compile_module(text: str, target: Target) -> bytes:
    """Optimize a module and emit its object code.

    Raises: LoweringError when the text is not valid LLVM; that is a defect of the code generator.
    """
    machine = make_target_machine(target)
    return emit_module(optimized_module(parse_module(text), target, machine), machine)


def assembly(text: str, target: Target) -> str:
    """The assembly of a module, for people."""
    machine = make_target_machine(target)
    listing: str = machine.emit_assembly(optimized_module(parse_module(text), target, machine))
    return listing


def parse_module(text: str) -> llvm.ModuleRef:
    """The module that a string describes, verified. Raises: LoweringError when it is not valid LLVM."""
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise LoweringError(f"the generated code is not valid LLVM: {error}") from None
    return module


def optimized_module(module: llvm.ModuleRef, target: Target, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    """The same module, changed in place."""
    module.triple = describe(target)[0]
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_module_pass_manager()
    # The generator has unrolled, vectorized and hoisted already: these passes put accumulators into registers and clean
    # up. The full -O2 pipeline takes five times as long and its kernels are no faster.
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return module


def emit_module(module: llvm.ModuleRef, machine: llvm.TargetMachine) -> bytes:
    code: bytes = machine.emit_object(module)
    return code
