"""`VMOptions`: how the virtual machine handles input shapes it has not seen. Immutable and validated."""

import warnings
from dataclasses import dataclass
from typing import Any

from retune.compiler.errors import OptionError

NOW, BACKGROUND, NEVER = "now", "background", "never"

_RENAMED = {"specialise": "specialize", "specialisations": "specializations"}


@dataclass(frozen=True, slots=True, init=False)
class VMOptions:
    """How regions are compiled whose shapes are known only at run time. The names with an s, `specialise` and
    `specialisations`, are deprecated.
    """

    specialize: str
    """When regions are compiled for new shapes: "now", before the call goes on; in the "background", while NumPy
    computes; or "never".
    """
    specializations: int
    """A region is ready for so many shapes, those that it met last."""
    prepared_bytes: int
    """What is made of weights for one shape is kept for others, up to so many bytes."""

    def __init__(
        self, specialize: str = NOW, specializations: int = 64, prepared_bytes: int = 2 << 30, **renamed: Any
    ) -> None:
        given = {"specialize": specialize, "specializations": specializations, "prepared_bytes": prepared_bytes}
        given |= {_renamed(name, OptionError): value for name, value in renamed.items()}
        for name, value in given.items():
            # The class is frozen, and its __init__ accepts the deprecated names, which a generated one would not.
            object.__setattr__(self, name, value)
        if not isinstance(self.specialize, str) or self.specialize not in (NOW, BACKGROUND, NEVER):
            raise OptionError(f"specialize is {NOW!r}, {BACKGROUND!r} or {NEVER!r}, not {self.specialize!r}")
        if isinstance(self.specializations, bool) or not isinstance(self.specializations, int):
            raise OptionError(f"specializations must be an integer, not {self.specializations!r}")
        if self.specializations < 1:
            raise OptionError(f"a region must be ready for one shape at least, not {self.specializations}")
        if isinstance(self.prepared_bytes, bool) or not isinstance(self.prepared_bytes, int) or self.prepared_bytes < 0:
            raise OptionError(f"prepared_bytes must be a number of bytes, not {self.prepared_bytes!r}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self, _renamed(name, AttributeError))


def _renamed(name: str, error: type[Exception]) -> str:
    """What an option is called now. Raises: `error` when it never was one."""
    if name not in _RENAMED:
        raise error(f"VMOptions has no option {name!r}")
    warnings.warn(f"VMOptions: {name} is deprecated; use {_RENAMED[name]}", DeprecationWarning, stacklevel=3)
    return _RENAMED[name]
