"""Parser of PTX as LLVM writes it: kernels as instructions, and the addresses of shared buffers.

Anything it does not know is an error; nothing is skipped.
"""

import re
from dataclasses import dataclass, field

_KERNEL = re.compile(r"\.visible \.entry (\w+)\((.*?)\)[^{]*\n\{\n(.*?)\n\}", re.DOTALL)
_PARAMETER = re.compile(r"\.param \.u64 \.ptr \.align \d+ (\w+)")
_SHARED = re.compile(r"\.shared \.align (?P<align>\d+) \.[bfsu](?P<bits>\d+)\s+(?P<name>[\w$]+)(\[(?P<count>\d*)\])?;")
_CONSTANT = re.compile(r"\.global \.align \d+ \.b8 (?P<name>[\w$]+)\[\d+\] = \{(?P<bytes>[\d, ]*)\};")
_LOCAL = re.compile(r"\.local \.align \d+ \.b8\s+\w+\[(\d+)\]$")
_LABEL = re.compile(r"\s*(\$\w+):")
_SCOPES = "{} \t\n"
"""Braces around names that are used nowhere else."""
_GUARD = re.compile(r"@(!?)(%\w+)\s+")
_ARGUMENT = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{\[]+")


class PtxError(Exception):
    """The code has undefined behavior on a GPU, or uses a feature the interpreter does not know."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """`parts` of its name, as in ld, global, b32; its arguments; the predicate that guards it, if any."""

    parts: tuple[str, ...]
    args: tuple[str, ...]
    guard: str
    negated: bool
    text: str

    @property
    def kind(self) -> str:
        """The type that it works on."""
        return self.parts[-1]


@dataclass(slots=True)
class PtxKernel:
    """The instructions of a kernel, the positions of its labels, and the bytes of local memory per thread."""

    params: tuple[str, ...]
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    local_bytes: int = 0


class PtxModule:
    """Kernels by name, the address of each shared buffer, the bytes of all, the name of the dynamic shared
    buffer, and the bytes of constants.
    """

    def __init__(self, text: str) -> None:
        self.kernels: dict[str, PtxKernel] = {}
        self.shared: dict[str, int] = {}
        self.shared_bytes = 0
        self.launched = ""
        text = re.sub(r"//[^\n]*", "", text)
        self.constants = {
            found["name"]: bytes(map(int, found["bytes"].split(","))) for found in _CONSTANT.finditer(text)
        }
        for found in _SHARED.finditer(text):
            self._place(found)
        for name, params, body in _KERNEL.findall(text):
            self.kernels[name] = _kernel(params, _SHARED.sub("", body))

    def _place(self, found: re.Match[str]) -> None:
        align, count = int(found["align"]), found["count"]
        start = -(-self.shared_bytes // align) * align
        self.shared[found["name"]] = start
        if count == "":
            self.launched, count = found["name"], "0"
        self.shared_bytes = start + int(found["bits"]) // 8 * int(count or 1)


def _kernel(params: str, body: str) -> PtxKernel:
    kernel = PtxKernel(tuple(_PARAMETER.findall(params)))
    for part in body.split(";"):
        part = part.lstrip(_SCOPES)
        while label := _LABEL.match(part):
            kernel.labels[label[1]] = len(kernel.code)
            part = part[label.end() :].lstrip(_SCOPES)
        text = " ".join(part.split())
        if local := _LOCAL.match(text):
            kernel.local_bytes = int(local[1])
        elif text.startswith(".") and not text.startswith((".reg", ".pragma")):
            raise PtxError(f"unknown: {text}")
        elif text and not text.startswith("."):
            kernel.code.append(_instruction(text))
    return kernel


def _instruction(text: str) -> Instruction:
    guard = _GUARD.match(text)
    name, _, rest = text[guard.end() if guard else 0 :].partition(" ")
    given = tuple(_ARGUMENT.findall(rest))
    return Instruction(tuple(name.split(".")), given, guard[2] if guard else "", bool(guard and guard[1]), text)
