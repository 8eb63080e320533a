"""What the kernel's files say of the machine."""

from pathlib import Path

import pytest

from retune.compiler.runtime.threads.affinity import (
    ASSUMED_CACHE_BYTES,
    free_memory_bytes,
    last_cache_bytes,
    require_memory,
)


def test_the_last_cache_is_the_largest(tmp_path: Path) -> None:
    assert last_cache_bytes(tmp_path) == ASSUMED_CACHE_BYTES
    for number, text in enumerate(("48K", "1024K", "96M\n")):
        (tmp_path / f"index{number}").mkdir()
        (tmp_path / f"index{number}" / "size").write_text(text)
    assert last_cache_bytes(tmp_path) == 96 << 20


def test_memory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    memory = tmp_path / "meminfo"
    assert free_memory_bytes(memory) is None
    require_memory(1 << 60, "they", memory)
    memory.write_text("MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n")
    assert free_memory_bytes(memory) == 2 << 30
    require_memory(2 << 30, "they", memory)
    with pytest.raises(MemoryError, match=r"the buffers need 3\.0 GiB, 2\.0 GiB are free"):
        require_memory(3 << 30, "the buffers", memory)


def test_this_machine_has_both() -> None:
    assert last_cache_bytes() >= 1 << 15
    assert (free_memory_bytes() or 1) > 0
