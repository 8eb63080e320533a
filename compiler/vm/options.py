"""`VMOptions`: how the virtual machine handles input shapes it has not seen. Immutable and validated."""

from dataclasses import dataclass

from retune.compiler.errors import OptionError

NOW, BACKGROUND, NEVER = "now", "background", "never"


@dataclass(frozen=True, slots=True)
class VMOptions:
    """`specialise` says when regions are compiled for new shapes: "now", before the call goes on; in the "background",
    while NumPy computes; or "never". A region is ready for the `specialisations` shapes that it met last. What is made
    of weights for one shape is kept for others, `prepared_bytes` of it.
    """

    specialise: str = NOW
    specialisations: int = 64
    prepared_bytes: int = 2 << 30

    def __post_init__(self) -> None:
        if not isinstance(self.specialise, str) or self.specialise not in (NOW, BACKGROUND, NEVER):
            raise OptionError(f"specialise is {NOW!r}, {BACKGROUND!r} or {NEVER!r}, not {self.specialise!r}")
        if isinstance(self.specialisations, bool) or not isinstance(self.specialisations, int):
            raise OptionError(f"specialisations must be an integer, not {self.specialisations!r}")
        if self.specialisations < 1:
            raise OptionError(f"a region must be ready for one shape at least, not {self.specialisations}")
        if isinstance(self.prepared_bytes, bool) or not isinstance(self.prepared_bytes, int) or self.prepared_bytes < 0:
            raise OptionError(f"prepared_bytes must be a number of bytes, not {self.prepared_bytes!r}")
