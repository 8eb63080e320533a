"""In: LLVM text and a target. Out: object code.

Always: a target machine is made for each module, because LLVM frees it with its owner.
"""

from functools import lru_cache

import llvmlite.binding as llvm

from compiler.errors import LoweringError, TargetError
from compiler.target import Target


@lru_cache(maxsize=1)
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def llvm_version() -> str:
    """LLVM's version, for records and artifacts."""
    return ".".join(str(part) for part in llvm.llvm_version_info)


@lru_cache(maxsize=16)
def describe(target: Target) -> tuple[str, str, str]:
    """(triple, CPU name, features) with the host's own filled in."""
    _initialize()
    if target.triple or target.cpu:
        return target.triple or llvm.get_process_triple(), target.cpu or "generic", target.features
    features = llvm.get_host_cpu_features().flatten()
    # LLVM prefers half-width vectors on some AVX-512 machines; our kernels are written for full ones.
    features = ",".join(part for part in (features, "-prefer-256-bit", target.features) if part)
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), features


def make_target_machine(target: Target) -> llvm.TargetMachine:
    """A fresh target machine.

    Raises: TargetError when LLVM does not know the triple.
    """
    triple, cpu, features = describe(target)
    try:
        found = llvm.Target.from_triple(triple)
    except RuntimeError as error:
        raise TargetError(f"target {str(target)!r}: {error}") from None
    return found.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small")


def function_attributes(vector_bytes: int) -> str:
    """Attributes that make LLVM use the whole vector register."""
    width = vector_bytes * 8
    return f'"prefer-vector-width"="{width}" "min-legal-vector-width"="{width}"'


def compile_module(text: str, target: Target) -> bytes:
    """Optimise a module and emit its object code.

    Raises: LoweringError when the text is not valid LLVM; that is a defect of the code generator.
    """
    machine = make_target_machine(target)
    code: bytes = machine.emit_object(_optimized(text, target, machine))
    return code


def assembly(text: str, target: Target) -> str:
    """The assembly of a module, for people."""
    machine = make_target_machine(target)
    listing: str = machine.emit_assembly(_optimized(text, target, machine))
    return listing


def _optimized(text: str, target: Target, machine: llvm.TargetMachine) -> llvm.ModuleRef:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise LoweringError(f"the generated code is not valid LLVM: {error}") from None
    module.triple = describe(target)[0]
    module.data_layout = str(machine.target_data)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes = llvm.create_new_module_pass_manager()
    # The generator has unrolled, vectorised and hoisted already: what is left is to put accumulators into registers and
    # tidy up. The full -O2 pipeline takes five times as long and its kernels are no faster.
    passes.add_sroa_pass()
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    passes.run(module, builder)
    return module
