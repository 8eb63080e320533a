"""`VMOptions`: how the virtual machine handles input shapes it has not seen. Immutable and validated."""

from dataclasses import dataclass

from retune.compiler.core.errors import OptionError

NOW, BACKGROUND, NEVER = "now", "background", "never"


@dataclass(frozen=True, slots=True)
class VMOptions:
    """How regions are compiled whose shapes are known only at run time."""

    specialize: str = NOW
    """When regions are compiled for new shapes: "now", before the call goes on; in the "background", while NumPy
    computes; or "never".
    """
    specializations: int = 64
    """A region is ready for so many shapes: those of its last calls."""
    prepared_bytes: int = 2 << 30
    """Arrays that are computed from weights for one shape are kept for others, up to so many bytes."""

    def __post_init__(self) -> None:
        if not isinstance(self.specialize, str) or self.specialize not in (NOW, BACKGROUND, NEVER):
            raise OptionError(f"specialize is {NOW!r}, {BACKGROUND!r} or {NEVER!r}, not {self.specialize!r}")
        for name, least in (("specializations", 1), ("prepared_bytes", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise OptionError(f"{name} is an integer from {least} on, not {value!r}")
