"""Archives: what comes back, what is mapped, and what is checked when."""

import io
import json
import mmap
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from retune.compiler.core.dtype import BFLOAT16
from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.archive import (
    EAGER_BYTES,
    JSON_BYTES,
    MANIFEST,
    Archive,
    append_archive,
    archive_bytes,
    kind_of,
    reject_damage,
    write_archive,
)
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import constant_array

LARGE = np.arange(EAGER_BYTES, dtype=np.float32)
PARTS = {
    "facts.json": {"a": [1, 2.5, "ü"]},
    "code": b"\0\1code",
    "large.npy": LARGE,
    "small.npy": np.array([[1.5, -2.0]], BFLOAT16),
    "none.npy": np.zeros((0, 3), np.int8),
    "scalar.npy": np.array(True),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "some.archive"
    write_archive(file, "test", 3, PARTS)
    return file


def _check_parts(archive: Archive) -> None:
    assert archive.json("facts.json") == PARTS["facts.json"]
    assert archive.blob("code") == PARTS["code"]
    for name in archive.names():
        if name.endswith(".npy"):
            found, wanted = archive.array(name), np.asarray(PARTS[name])
            assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
            assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("compress", [False, True])
def test_parts_come_back_from_bytes(compress: bool) -> None:
    _check_parts(Archive(archive_bytes("test", 3, PARTS, compress=compress), "test", 3))


def test_parts_come_back_from_a_file_and_from_the_end_of_another(path: Path, tmp_path: Path) -> None:
    _check_parts(Archive(path, "test", 3))
    library = tmp_path / "code.so"
    library.write_bytes(b"machine code" * 99)
    append_archive(library, "test", 3, PARTS)
    archive = Archive(library, "test", 3)
    _check_parts(archive)
    assert archive.array("large.npy").ctypes.data % ALIGNMENT == 0
    library.write_bytes(b"M" + library.read_bytes()[1:])
    with pytest.raises(ArtifactError, match="the code is damaged"):
        Archive(library, "test", 3)


def test_an_archive_is_the_same_bytes_each_time() -> None:
    assert archive_bytes("test", 3, PARTS) == archive_bytes("test", 3, PARTS)


def test_standard_tools_read_an_archive(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert json.loads(archive.read(MANIFEST))["kind"] == "test"
    with np.load(path, allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["large"], LARGE)


def _owner(array: Array) -> object:
    owner: object = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner.obj if isinstance(owner, memoryview) else owner


def test_arrays_of_a_file_are_mapped_aligned_and_read_only(path: Path) -> None:
    array = Archive(path, "test", 3).array("large.npy")
    assert isinstance(_owner(array), mmap.mmap)
    assert array.ctypes.data % ALIGNMENT == 0
    assert constant_array(array) is array
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_a_mapped_array_outlives_the_replacement_of_its_file(path: Path) -> None:
    array = Archive(path, "test", 3).array("large.npy")
    write_archive(path, "test", 3, {"large.npy": LARGE * 2})
    np.testing.assert_array_equal(array, LARGE)
    np.testing.assert_array_equal(Archive(path, "test", 3).array("large.npy"), LARGE * 2)


def _mapping(path: Path) -> dict[str, int]:
    """Kibibytes of this process's mapping of a file, by the names in smaps."""
    lines = Path("/proc/self/smaps").read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.endswith(str(path)))
    rows = (line.split() for line in lines[start + 1 : start + 24])
    return {row[0][:-1]: int(row[1]) for row in rows if len(row) == 3 and row[2] == "kB"}


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_two_processes_share_the_pages_of_an_array(path: Path) -> None:
    child = (
        "import sys; from pathlib import Path; from retune.compiler.runtime.archive import Archive\n"
        "array = Archive(Path(sys.argv[1]), 'test', 3).array('large.npy'); print(int(array.sum()), flush=True); input()"
    )
    array = Archive(path, "test", 3).array("large.npy")
    total = int(array.sum())
    command = [sys.executable, "-c", child, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == f"{total}\n"
        found = _mapping(path)
        other.communicate("done\n")
    assert (found["Shared_Clean"] + found["Shared_Dirty"]) * 1024 >= LARGE.nbytes


def _with_changed_end(path: Path, content: bytes) -> None:
    """Change the last byte of a part."""
    data = bytearray(path.read_bytes())
    data[data.index(content) + len(content) - 1] ^= 1
    path.write_bytes(data)


def test_a_large_array_is_checked_when_it_is_copied_not_when_it_is_mapped(path: Path) -> None:
    _with_changed_end(path, LARGE.tobytes())
    assert Archive(path, "test", 3).array("large.npy")[-1] != LARGE[-1]
    with pytest.raises(ValueError, match=r"the checksum of large\.npy differs"):
        Archive(path.read_bytes(), "test", 3).array("large.npy")


@pytest.mark.parametrize("name", ["code", "small.npy", "facts.json"])
def test_everything_else_is_checked_when_it_is_read(path: Path, name: str) -> None:
    part = PARTS[name]
    content = json.dumps(part).encode() if name == "facts.json" else part
    _with_changed_end(path, content if isinstance(content, bytes) else np.asarray(content).tobytes())
    archive = Archive(path, "test", 3)
    with pytest.raises(ValueError, match=f"the checksum of {name} differs"):
        archive.array(name) if name.endswith(".npy") else archive.blob(name)


def test_a_file_that_was_cut_off_is_refused(path: Path) -> None:
    data = path.read_bytes()
    for size in (0, 1, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:size])
        with (
            pytest.raises(ArtifactError, match=r"some\.archive is no test, or is damaged"),
            reject_damage("test", path),
        ):
            Archive(path, "test", 3)


def test_members_that_claim_the_memory_of_the_directory_or_of_others_are_refused(path: Path) -> None:
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")
    for place in (20, 24, 42):  # packed size, size, where it begins
        changed = bytearray(data)
        changed[entry + place : entry + place + 4] = (0x7FFFFFFF).to_bytes(4, "little")
        path.write_bytes(changed)
        with pytest.raises(ArtifactError, match=r"some\.archive"), reject_damage("test", path):
            Archive(path, "test", 3).json("facts.json")


def _zip(**members: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return sink.getvalue()


def test_json_that_is_too_large_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    path = tmp_path / "bomb.retune"
    path.write_bytes(_zip(archive_json=b"[],".ljust(JSON_BYTES + 1)))
    assert path.stat().st_size < JSON_BYTES // 500
    with pytest.raises(ArtifactError, match=r"archive\.json has 33554433 bytes"), reject_damage("test", path):
        Archive(path, "test", 3)
    assert kind_of(path) == ""


def test_a_part_that_inflates_too_far_is_refused() -> None:
    with pytest.raises(ValueError, match=r"code inflates \d+ bytes to 4194304"):
        Archive(_zip(archive_json=b"{}", code=bytes(4 << 20)), "test", 3)


def test_a_compressed_archive_of_zeros_is_read() -> None:
    zeros = np.zeros(1 << 20, np.float32)
    archive = Archive(archive_bytes("test", 3, {"zeros.npy": zeros, "code": bytes(3 << 20)}, compress=True), "test", 3)
    np.testing.assert_array_equal(archive.array("zeros.npy"), zeros)
    assert len(archive.blob("code")) == 3 << 20
