"""Files that an earlier version of Retune wrote (`version1`) are read, and what is in them runs."""

from pathlib import Path

import numpy as np
import pytest

from retune.compiler.errors import ArtifactError
from retune.compiler.graph_executor import cpu, load_module
from retune.compiler.runtime.processor import check_processor

FILES = Path(__file__).parent / "version1"
X = np.arange(10, dtype=np.float32).reshape(2, 5) / 10
Y = np.array([[1.0994878, 1.0209886, 1.3059137], [2.387657, 1.5816278, 3.1275022]], np.float32)


def _require_processor() -> None:
    """The code is for x86-64 with AVX2."""
    try:
        check_processor(
            "the file", {"triple": "x86_64-unknown-linux-gnu", "cpu": "x86-64-v3", "needs": ["avx2", "fma"]}
        )
    except ArtifactError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("name", ["network.retune", "network.so"])
def test_a_network_of_an_earlier_version_runs(name: str) -> None:
    _require_processor()
    executor = load_module(FILES / name)["default"](cpu())
    executor.run(x=X)
    np.testing.assert_allclose(executor.get_output(0), Y, rtol=1e-6)
