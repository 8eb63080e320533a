"""Kernels in an archive: `kernels.json` describes them, `kernels/NAME.o` is the object code of each."""

from collections.abc import Sequence

from retune.compiler.runtime.archive import Archive
from retune.compiler.runtime.artifact import KernelArtifact, kernel_of, kernel_row


def kernel_parts(kernels: Sequence[KernelArtifact], *, with_code: bool = True) -> dict[str, object]:
    """The parts of an archive that hold kernels; object code only if asked for."""
    code = {f"kernels/{kernel.name}.o": kernel.object_code for kernel in kernels if with_code}
    return {"kernels.json": [kernel_row(kernel) for kernel in kernels], **code}


def read_kernels(archive: Archive, *, with_code: bool = True) -> tuple[KernelArtifact, ...]:
    """The kernels in an archive, without their object code unless `with_code`.

    Raises: ArtifactError; an error of `DAMAGE` when it is damaged.
    """
    rows = archive.json("kernels.json")
    return tuple(kernel_of(row, archive.blob(f"kernels/{row['name']}.o") if with_code else b"") for row in rows)
