"""Links object code into a shared library or one object file, with the system's linker.

Symbols are bound inside the library, so a program's symbol of the same name does not replace them.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from retune.compiler.core.errors import ArtifactError

LINKERS = ("cc", "gcc", "clang", "ld", "ld.lld")
# A network's kernels link in seconds; the limit is for a hanging compiler driver, as on a dead network share.
_SECONDS = 120


def link_objects(
    objects: Sequence[bytes],
    path: Path,
    linkers: Sequence[str] = LINKERS,
    libraries: Sequence[str] = (),
    build_id: bytes = b"",
    exports: Sequence[str] = (),
) -> None:
    """Link objects into the shared library at `path`, which needs `libraries` (file names, such as libgomp.so.1) and
    has the build id `build_id`. It exports the symbols in `exports`, by default all.

    Raises: ArtifactError when none of the `linkers` is installed, or it fails.
    """
    linker = _linker(linkers)
    wanted = ["-Bsymbolic", *([f"--build-id=0x{build_id.hex()}"] if build_id else [])]
    with tempfile.TemporaryDirectory() as folder:
        if exports:
            script = Path(folder) / "exports"
            script.write_text(f"{{ global: {' '.join(f'{name};' for name in exports)} local: *; }};\n")
            wanted.append(f"--version-script={script}")
        _run(linker, objects, path, _options(linker, wanted), [f"-l:{library}" for library in libraries], Path(folder))


def _options(linker: str, wanted: Sequence[str]) -> list[str]:
    """The options for a shared library, with `wanted` options of the linker itself."""
    # Objects without a .note.GNU-stack section would otherwise make the loader request an executable stack.
    options = ["-shared", "-z", "noexecstack"]
    if "ld" in Path(linker).name:
        return [*options, *wanted]
    # a compiler: it knows where libm is
    return [*options, *(f"-Wl,{option}" for option in wanted), "-nostartfiles", "-lm"]


def _linker(linkers: Sequence[str]) -> str:
    linker = next((program for name in linkers if (program := shutil.which(name))), None)
    if linker is None:
        raise ArtifactError(
            f"no linker is installed (looked for {', '.join(linkers)}); install one, such as Debian's gcc or "
            "binutils, or save in a form that needs none, .retune"
        )
    return linker


def _run(
    linker: str, objects: Sequence[bytes], path: Path, options: Sequence[str], libraries: Sequence[str], folder: Path
) -> None:
    files = []
    for number, code in enumerate(objects):
        files.append(folder / f"{number}.o")
        files[-1].write_bytes(code)
    command = [linker, *options, "-o", str(path), *map(str, files), *libraries]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise ArtifactError(f"the linker {linker} did not end within {_SECONDS} s") from None
    if done.returncode:
        raise ArtifactError(f"the linker {linker} failed: {done.stderr.strip()[-1000:]}")
