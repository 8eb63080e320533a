"""What the tests of the flows share."""
