"""Argument descriptions."""

import pickle

import pytest

from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.packing import Packing
from retune.compiler.runtime.artifact import ArgSpec, KernelArtifact


def test_a_packing_of_another_size_is_refused() -> None:
    with pytest.raises(ArtifactError, match=r"w: packing .* holds 6 elements, the array .* has 8"):
        ArgSpec("w", (2, 4), "float32", False, Packing((2, 3), (1, 0)))


def test_an_artifact_survives_pickling() -> None:
    args = (ArgSpec("w", (2, 3), "float32", False, Packing((2, 3), (1, 0))), ArgSpec("y", (3,), "int8", True))
    artifact = KernelArtifact("k", b"code", args, 64, "llvm")
    assert pickle.loads(pickle.dumps(artifact)) == artifact
    assert [arg.nbytes for arg in artifact.args] == [24, 3]
    assert artifact.inputs == args[:1]
    assert artifact.outputs == args[1:]
