"""Names of version 0.1 still work, and warn."""

import numpy as np
import pytest

from retune.compiler.tvm.heterogeneous import HeterogeneousExecutor
from retune.compiler.tvm.stores import CudaStore
from tests.support.gpu_network import network_with_gpu


def test_an_executor_on_stores_is_a_graph_executor_with_memories() -> None:
    network, driver = network_with_gpu()
    with pytest.warns(DeprecationWarning, match="use CudaMemory"):
        store = CudaStore(driver)
    with pytest.warns(DeprecationWarning, match="use GraphExecutor"):
        executor = HeterogeneousExecutor(network, [store], replay=True)
    for _ in range(2):
        executor.run(b0=np.ones(16, np.float32))
    np.testing.assert_array_equal(executor.get_output(0), np.full(16, 8, np.float32))
    assert "graph of 1" in driver.asked
