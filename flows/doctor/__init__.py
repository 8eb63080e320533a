"""The checks of `retune doctor`: what may be wrong with this machine, and what to do about it.

A check leaves nothing behind.
"""
