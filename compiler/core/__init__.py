"""Errors, element types, targets and settings: what every other room builds on."""
