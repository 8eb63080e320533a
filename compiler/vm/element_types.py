"""Mapping between element type names and their DLPack numbers in bytecode.

A bool has one bit, as in TVM's bytecode, though it takes a byte in memory.
"""

from collections.abc import Mapping

from retune.compiler.dtype import BFLOAT16
from retune.compiler.errors import ArtifactError

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4}
_DTYPES: Mapping[str, tuple[int, int, int]] = {
    "bool": (_CODES["uint"], 1, 1),
    BFLOAT16: (_CODES["bfloat"], 16, 1),
    **{f"int{bits}": (_CODES["int"], bits, 1) for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": (_CODES["uint"], bits, 1) for bits in (8, 16, 32, 64)},
    **{f"float{bits}": (_CODES["float"], bits, 1) for bits in (16, 32, 64)},
}
"""Element types as DLPack numbers them: code, bits, lanes."""
_NAMES = {numbers: name for name, numbers in _DTYPES.items()}


def dtype_numbers(dtype: str) -> tuple[int, int, int]:
    """The code, bits and lanes of an element type. Raises: ArtifactError when there are none."""
    if dtype not in _DTYPES:
        raise ArtifactError(f"the virtual machine has no elements of {dtype}; it has {', '.join(_DTYPES)}")
    return _DTYPES[dtype]


def dtype_name(code: int, bits: int, lanes: int) -> str:
    """The element type of these numbers. Raises: ArtifactError when there is none."""
    if (code, bits, lanes) not in _NAMES:
        raise ArtifactError(f"no element type has the code {code}, {bits} bits and {lanes} lanes")
    return _NAMES[code, bits, lanes]
