"""Functions and conversions as sequences of vector instructions."""
