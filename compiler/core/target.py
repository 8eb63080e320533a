"""Targets, such as `llvm -mcpu=znver4`, their kinds, and the hardware parameters that steer the search.

`str(target)` is stable and parses back to an equal target.
"""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from retune.compiler.core.dtype import BFLOAT16, HALVES
from retune.compiler.core.errors import TargetError
from retune.compiler.core.gpu_facts import GpuFacts, facts_of
from retune.compiler.core.json_reader import JsonObject


@dataclass(frozen=True, slots=True)
class TargetKind:
    """The common properties of all targets of a kind."""

    noun: str
    """The device in a sentence."""
    options: Mapping[str, str]
    """The options of a target string and the fields they set, in the order in which they are printed."""
    device: str = "cpu"
    """The kind of device that kernels run on, as in `retune.compiler.runtime.device`."""
    uses_threads: bool = True
    """Whether kernels run on threads of the CPU, so that a time depends on their number."""
    uses_host_memory: bool = True
    """Whether kernels read and write the host's arrays."""
    rewrites_layouts: bool = False
    """Whether a schedule may choose the layout of constants: kernels of a GPU read them through shared memory."""
    has_winograd: bool = False
    """Whether the search has sketches of Winograd's transforms."""


TARGET_KINDS = {
    "llvm": TargetKind(
        "a CPU",
        {"-mtriple": "triple", "-mcpu": "cpu", "-mattr": "features", "-device": "device"},
        rewrites_layouts=True,
        has_winograd=True,
    ),
    "cuda": TargetKind(
        "a GPU", {"-arch": "arch", "-math": "math"}, device="cuda", uses_threads=False, uses_host_memory=False
    ),
}
"""Every kind of target, by the first word of its string."""

_WITHOUT_EFFECT = frozenset(
    f"-{name}"
    for name in (
        "keys", "libs", "model", "tag", "runtime", "system-lib", "link-params", "opt-level", "mfloat-abi", "mabi",
        "max_num_threads", "max_threads_per_block", "max_shared_memory_per_block", "max_block_size_x",
        "max_block_size_y", "max_block_size_z", "shared_memory_per_block", "registers_per_block", "thread_warp_size",
        "from_device", "unpacked-api", "interface-api", "workspace-byte-alignment", "constants-byte-alignment",
    )
)  # fmt: skip
"""Options of TVM's targets that decide no code here: they are read, but not printed."""

_NUM_CORES = "-num-cores"

_GPU_TAGS = {
    "sm_70": "nvidia-v100 nvidia-titan-v quadro-gv100",
    "sm_72": "jetson-agx-xavier",
    "sm_75": "nvidia-t4 nvidia-titan-rtx geforce-rtx-2080-ti geforce-rtx-2080 geforce-rtx-2070 geforce-rtx-2060 "
    "quadro-rtx-8000 quadro-rtx-6000 quadro-rtx-5000 quadro-rtx-4000",
    "sm_80": "nvidia-a100 nvidia-a30",
    "sm_86": "nvidia-a40 nvidia-a16 nvidia-a10 nvidia-a10g nvidia-a2 rtx-a6000 geforce-rtx-3090-ti geforce-rtx-3090 "
    "geforce-rtx-3080-ti geforce-rtx-3080 geforce-rtx-3070-ti geforce-rtx-3070 geforce-rtx-3060",
    "sm_87": "jetson-orin-nano jetson-agx-orin-32gb jetson-agx-orin-64gb",
    "sm_89": "geforce-rtx-4090 geforce-rtx-4070-ti nvidia-l4",
    "sm_90a": "nvidia-h100",
}
_TAGS = {
    **{f"nvidia/{gpu}": f"cuda -arch={arch}" for arch, gpus in _GPU_TAGS.items() for gpu in gpus.split()},
    "raspberry-pi/4b-aarch64": "llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a72 -mattr=+neon -num-cores=4",
}
"""Tags of machines that TVM's scripts use."""

_VALUES = {
    "features": (re.compile(r"[+-][\w.-]+(,[+-][\w.-]+)*"), "features are written +name or -name, with commas between"),
    "arch": (re.compile(r"sm_\d+[af]?"), "a GPU architecture is written sm_90"),
    "math": (re.compile(r"strict|tf32"), "it is strict, which rounds to the type that is written, or tf32"),
}
"""The form of a field's value; fields without an entry take one word."""

_WORD = (re.compile(r"[^\s=]+"), "it must be one word")


@dataclass(frozen=True, slots=True, init=False)
class Target:
    """A machine that code is generated for.

    `kind` is llvm (CPUs: LLVM triple, CPU name and features; empty fields mean the host's own) or cuda (an NVIDIA
    GPU: `arch`, such as sm_90; `math` tf32 lets tensor cores round the factors of float32 products to 10 bits of
    fraction, which nothing else does). `device` names a family of CPUs, such as arm_cpu; it changes no code.
    """

    kind: str
    triple: str
    cpu: str
    features: str
    device: str
    arch: str
    math: str
    # Neither changes the generated code: targets that differ only here share records and compiled kernels.
    num_cores: int = dataclasses.field(default=0, compare=False)
    host_target: "Target | None" = dataclasses.field(default=None, compare=False)

    def __init__(
        self,
        kind: "str | JsonObject | Target" = "llvm",
        host: "str | JsonObject | Target | None" = None,
        *,
        triple: str = "",
        cpu: str = "",
        features: str = "",
        device: str = "",
        arch: str = "",
        math: str = "",
        num_cores: int = 0,
        host_target: "Target | None" = None,
    ) -> None:
        """`Target("llvm -mcpu=znver4")` and `Target("llvm", cpu="znver4")` are the same; a field wins over the text.

        Texts: `llvm [-mtriple=T] [-mcpu=C] [-mattr=+a,-b] [-device=D] [-num-cores=N]` and `cuda [-arch=sm_90]
        [-math=tf32]`. A mapping, or its JSON, has the same words: `{"kind": "llvm", "mcpu": "znver4"}`. TVM's tags such
        as `nvidia/nvidia-a100` are known, options may be written `-mcpu znver4`, and TVM's options that decide no code
        are left out. `-num-cores` is the number of threads a task of this target is tuned for; targets that differ only
        in it or in `host` are equal.
        Raises: TargetError when the kind, an option or the form of a value is unknown. LLVM checks the names of CPUs
        and features when code is generated.
        """
        named = {"triple": triple, "cpu": cpu, "features": features, "device": device, "arch": arch, "math": math}
        if isinstance(kind, Target):
            host = kind.host_target if host is None else host
            kind = f"{kind} {_NUM_CORES}={kind.num_cores}" if kind.num_cores else str(kind)
        if isinstance(kind, str) and kind.lstrip().startswith("{"):
            kind = _json(kind)
        if isinstance(kind, Mapping):
            host = kind.get("host") if host is None else host
            kind = _text_of(kind)
        name, parsed, cores = _parse(kind)
        # The class is frozen and has its own `__init__`: this is the way around its `__setattr__`.
        object.__setattr__(self, "num_cores", num_cores or cores)
        object.__setattr__(self, "host_target", host_target if host is None else Target(host))
        values = {field: value or parsed.get(field, "") for field, value in named.items()}
        for field, value in values.items():
            if value:
                _check(kind, name, field, value)
        object.__setattr__(self, "kind", name)
        for field, value in values.items():
            object.__setattr__(self, field, value)

    @classmethod
    def host(cls) -> Self:
        return cls()

    @property
    def is_gpu(self) -> bool:
        return self.traits.device != "cpu"

    @property
    def traits(self) -> TargetKind:
        return TARGET_KINDS[self.kind]

    @property
    def allow_tf32(self) -> bool:
        return self.math == "tf32"

    def __str__(self) -> str:
        options = ((option, getattr(self, field)) for option, field in self.traits.options.items())
        # In the order of the kind's options: equal targets have equal texts, by which records are looked up.
        return " ".join([self.kind, *(f"{option}={value}" for option, value in options if value)])


def _json(text: str) -> Mapping[str, object]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise TargetError(f"target {text!r:.80} is no JSON object: {error}") from None


def _text_of(options: Mapping[str, object]) -> str:
    words = [str(options.get("kind") or options.get("tag", ""))]
    for name, value in options.items():
        if name not in ("kind", "tag", "host") and value is not None:
            values = value if isinstance(value, list | tuple) else [value]
            words.append(f"-{name}={','.join(map(str, values))}")
    return " ".join(words)


def _cores(text: str, value: str) -> int:
    if not value.isdecimal() or not 0 < int(value) <= 4096:
        raise TargetError(f"target {text!r}: {_NUM_CORES} is an integer from 1 to 4096, not {value!r}")
    return int(value)


def split_options(text: str) -> list[str]:
    """The words of a target, every option as `-name=value`: TVM also reads two dashes, and a space before the value."""
    words: list[str] = []
    for word in text.split():
        if words[1:] and not word.startswith("-") and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            words.append(word[1:] if word.startswith("--") else word)
    return words


def _parse(text: str) -> tuple[str, dict[str, str], int]:
    """Kind, values by field, and number of cores (0: unknown)."""
    if not isinstance(text, str):
        raise TargetError(f"a target is a string, such as 'llvm -mcpu=znver4', not {text!r:.80}")
    words = split_options(text)
    words = [*_TAGS[words[0]].split(), *words[1:]] if words and words[0] in _TAGS else words
    if not words or words[0] not in TARGET_KINDS:
        kinds = ", ".join(TARGET_KINDS)
        raise TargetError(f"target {text!r}: the first word must be one of {kinds} or a tag such as nvidia/nvidia-a100")
    fields = TARGET_KINDS[words[0]].options
    values: dict[str, str] = {}
    num_cores = 0
    for word in words[1:]:
        option, _, value = word.partition("=")
        if option == _NUM_CORES:
            num_cores = _cores(text, value)
        if option == _NUM_CORES or (option in _WITHOUT_EFFECT and option not in fields):
            continue
        if option not in fields or not value:
            options = ", ".join(f"{name}=..." for name in (*fields, _NUM_CORES))
            raise TargetError(f"target {text!r}: cannot read {word!r}; known options: {options}")
        if fields[option] in values:
            raise TargetError(f"target {text!r}: the option {option} is given twice")
        values[fields[option]] = value
    return words[0], values, num_cores


def _check(text: str, kind: str, field: str, value: str) -> None:
    fields = TARGET_KINDS[kind].options.values()
    if field not in fields:
        raise TargetError(f"target {text!r}: {kind} has no {field}; it has {', '.join(fields)}")
    pattern, rule = _VALUES.get(field, _WORD)
    if not pattern.fullmatch(value):
        raise TargetError(f"target {text!r}: cannot read {field} {value!r}; {rule}")


@dataclass(frozen=True, slots=True)
class HardwareParams:
    """The limits that steer the search; those of a GPU are 0 on a CPU. The first eight fields are kept in records."""

    num_cores: int
    """Threads that the tuned kernel will run on; -1 on a GPU, which has many."""
    vector_unit_bytes: int = 64
    """The width of a vector register."""
    cache_line_bytes: int = 64
    """The unit of memory traffic."""
    max_shared_memory_per_block: int = 0
    """Bytes of shared memory of a GPU block."""
    max_local_memory_per_block: int = 0
    """Bytes of the registers of all threads of a GPU block."""
    max_threads_per_block: int = 0
    """Threads of a GPU block."""
    max_vthread_extent: int = 0
    """The most virtual threads that a thread of a GPU may run."""
    warp_size: int = 0
    """Threads of a GPU that run in step."""
    vector_registers: int = 0
    """The number of vector registers; 0: as on x86 with vectors of that width."""
    stack_bytes: int = 256 * 1024
    """Bytes of stack that the buffers of one thread may take."""
    facts: GpuFacts | None = None
    """Parameters for estimates of a GPU; None: those of `USUAL_ARCH`."""
    has_bfloat16_dots: bool = False
    """Whether instructions sum products of bfloat16."""

    @property
    def registers(self) -> int:
        """The number of vector registers that a kernel can use."""
        # AVX-512 doubled x86's 16 registers; NEON has 32 of 16 bytes, which detection says in `vector_registers`.
        return self.vector_registers or (32 if self.vector_unit_bytes >= 64 else 16)

    @property
    def lane_masks(self) -> bool:
        """Whether masks are free: 64-byte registers are those of AVX-512."""
        return self.vector_unit_bytes >= 64

    def converts(self, dtype: str) -> bool:
        """Whether kernels convert factors of products from `dtype` to float32."""
        return dtype in HALVES and not (dtype == BFLOAT16 and self.has_bfloat16_dots)

    @property
    def is_gpu(self) -> bool:
        return self.max_threads_per_block > 0

    @property
    def gpu(self) -> GpuFacts:
        """The facts of the GPU, or of the usual GPU if unknown."""
        return self.facts or facts_of("")

    def multiply_adds_per_cycle(self, units: float) -> float:
        """Float32 multiply-adds that all cores begin in a cycle; a CPU core has `units` vector units."""
        if self.is_gpu:
            return float(self.gpu.lanes * self.gpu.multiprocessors)
        return units * self.vector_unit_bytes / 4.0 * self.num_cores

    def to_row(self) -> list[int]:
        return [int(getattr(self, name)) for name in _RECORDED]

    @classmethod
    def from_row(cls, row: Sequence[int]) -> Self:
        """The parameters that `to_row` wrote. Raises: TargetError when there are not eight integers."""
        are_integers = all(isinstance(value, int) and not isinstance(value, bool) for value in row)
        if len(row) != len(_RECORDED) or not are_integers:
            raise TargetError(f"hardware parameters are {len(_RECORDED)} integers, got {list(row)!r}")
        cores, vector, line, shared, local, threads, virtual, warp = row
        return cls(cores, vector, line, shared, local, threads, virtual, warp)


# TVM writes these eight into its logs in this order; further fields must come after them.
_RECORDED = tuple(field.name for field in fields(HardwareParams))[:8]
