"""What the tests share: small networks and computations, doubles of devices, comparisons and servers."""
