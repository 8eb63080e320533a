"""The names of TVM, with its parameters and defaults."""
