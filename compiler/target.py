"""In: a target text such as `llvm -mcpu=znver4`. Out: a frozen `Target` and the `HardwareParams` that steer the
search.

Always: `str(target)` is stable and parses back to an equal target.
"""

from dataclasses import dataclass, replace
from typing import Self

from compiler.errors import TargetError

_KINDS = ("llvm",)


@dataclass(frozen=True, slots=True)
class Target:
    """A machine that code is generated for: LLVM triple, CPU name and features. Empty fields mean the host's own."""

    kind: str = "llvm"
    triple: str = ""
    cpu: str = ""
    features: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `llvm [-mtriple=T] [-mcpu=C] [-mattr=+a,-b]`.

        Raises: TargetError when the kind or an option is unknown.
        """
        words = text.split()
        if not words or words[0] not in _KINDS:
            raise TargetError(f"target {text!r}: the first word must be one of {', '.join(_KINDS)}")
        target = cls(kind=words[0])
        fields = {"-mtriple": "triple", "-mcpu": "cpu", "-mattr": "features"}
        for word in words[1:]:
            option, sign, value = word.partition("=")
            if option not in fields or not sign or not value:
                known = ", ".join(f"{name}=..." for name in fields)
                raise TargetError(f"target {text!r}: cannot read {word!r}; known options: {known}")
            target = replace(target, **{fields[option]: value})
        return target

    @classmethod
    def host(cls) -> Self:
        """The machine this process runs on."""
        return cls()

    def __str__(self) -> str:
        options = (("-mtriple", self.triple), ("-mcpu", self.cpu), ("-mattr", self.features))
        return " ".join([self.kind, *(f"{name}={value}" for name, value in options if value)])


@dataclass(frozen=True, slots=True)
class HardwareParams:
    """The limits that steer the search.

    `num_cores` is the number of threads that the tuned kernel will run on, `vector_unit_bytes` the width of a vector
    register, `vector_registers` how many of them there are, `cache_line_bytes` the unit of memory traffic.
    """

    num_cores: int
    vector_unit_bytes: int = 64
    vector_registers: int = 32
    cache_line_bytes: int = 64
    stack_bytes: int = 256 * 1024
