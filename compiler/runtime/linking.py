"""Links object code into a shared library or one object file, with the system's linker.

Symbols are bound inside the library, so that a program's symbol of the same name does not replace one.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from retune.compiler.errors import ArtifactError

LINKERS = ("cc", "gcc", "clang", "ld", "ld.lld")
_SECONDS = 120


def link_objects(
    objects: Sequence[bytes],
    path: Path,
    linkers: Sequence[str] = LINKERS,
    libraries: Sequence[str] = (),
    build_id: bytes = b"",
) -> None:
    """Link objects into the shared library at `path`, which needs `libraries` (file names, such as libgomp.so.1) and
    holds `build_id` as its build id.

    Raises: ArtifactError when none of the `linkers` is installed, or it fails.
    """
    found = _linker(linkers)
    wanted = ["-Bsymbolic", *([f"--build-id=0x{build_id.hex()}"] if build_id else [])]
    options = ["-shared", "-z", "noexecstack"]
    if "ld" in Path(found).name:
        options += wanted
    else:  # a compiler: it knows where libm is
        options += [*(f"-Wl,{option}" for option in wanted), "-nostartfiles", "-lm"]
    _run(found, objects, path, options, [f"-l:{library}" for library in libraries])


def _linker(linkers: Sequence[str]) -> str:
    found = next((program for name in linkers if (program := shutil.which(name))), None)
    if found is None:
        raise ArtifactError(
            f"no linker is installed (looked for {', '.join(linkers)}); install one, such as Debian's gcc or "
            "binutils, or save in a form that needs none, .retune"
        )
    return found


def _run(linker: str, objects: Sequence[bytes], path: Path, options: Sequence[str], libraries: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, code in enumerate(objects):
            files.append(Path(folder) / f"{number}.o")
            files[-1].write_bytes(code)
        command = [linker, *options, "-o", str(path), *map(str, files), *libraries]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise ArtifactError(f"the linker {linker} did not end within {_SECONDS} s") from None
    if done.returncode:
        raise ArtifactError(f"the linker {linker} failed: {done.stderr.strip()[-1000:]}")
