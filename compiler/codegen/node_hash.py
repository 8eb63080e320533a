"""The hash by which a provider for ONNX Runtime knows nodes again; its library computes the same in LLVM IR."""

import numpy as np
from numpy.typing import NDArray

FIRST, PRIME = 0xCBF29CE484222325, 0x100000001B3
"""Of FNV-1a with 64 bits."""

INDEX_FACTOR, WORD_FACTOR, SPREAD_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Of SplitMix64."""

_MASK = 2**64 - 1


def mix(found: int, value: int) -> int:
    """A hash with one more number."""
    return (found ^ value) * PRIME & _MASK


def hash_text(found: int, text: bytes) -> int:
    """A hash with one more text, up to its first zero byte."""
    for byte in text.partition(b"\0")[0] + b"\0":
        found = mix(found, byte)
    return found


def hash_data(found: int, data: NDArray[np.uint8]) -> int:
    """A hash with the content of an array: words of 8 bytes, each spread in all bits of the sum."""
    padded = np.zeros(-(-data.size // 8) * 8, np.uint8)
    padded[: data.size] = data
    words = padded.view(np.uint64)
    # A sum alone would not see the order of the words, so each is mixed with its index.
    spread = (words ^ np.arange(words.size, dtype=np.uint64) * np.uint64(INDEX_FACTOR)) * np.uint64(WORD_FACTOR)
    spread ^= spread >> np.uint64(32)
    spread *= np.uint64(SPREAD_FACTOR)
    return mix(found, (int(spread.sum(dtype=np.uint64)) + data.size) & _MASK)
