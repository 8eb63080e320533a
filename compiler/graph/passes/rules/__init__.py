"""Rewrite rules and the patterns that they match."""
