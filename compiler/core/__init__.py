"""Errors, element types, targets and settings, which all other packages of the compiler use."""
