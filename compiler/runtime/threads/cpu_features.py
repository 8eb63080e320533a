"""Checks that compiled code can run on this CPU, before it runs: an instruction that the CPU lacks ends the process."""

import platform
from collections.abc import Mapping
from typing import Any

from retune.compiler.core.errors import ArtifactError
from retune.compiler.runtime.loader import host_features

_GPU = "nvptx"


def check_cpu(what: str, facts: Mapping[str, Any]) -> None:
    """Check that code can run here: `facts` has LLVM's `triple`, the name `cpu`, and the features that it `needs`.

    Raises: ArtifactError that begins with `what`.
    """
    triple, needs = facts.get("triple", ""), facts.get("needs", ())
    if not isinstance(triple, str) or not isinstance(needs, list | tuple) or not all(isinstance(n, str) for n in needs):
        raise ArtifactError(f"{what} is damaged: it says {triple!r} and {needs!r} of the CPU that it needs")
    kind, here = triple.partition("-")[0], platform.machine()
    if kind not in ("", here) and not kind.startswith(_GPU):
        raise ArtifactError(f"{what} was compiled for {kind} CPUs; this machine's is {here}: compile it here")
    # By features and not by CPU name: a newer CPU of another name runs the code as well.
    missing = sorted(set(needs) - host_features())
    if missing:
        made_for = facts.get("cpu", "another CPU")
        raise ArtifactError(f"{what} was compiled for {made_for}; this machine lacks {', '.join(missing)}")
