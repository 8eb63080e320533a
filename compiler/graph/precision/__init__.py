"""Precision of layers: which forms a layer has, and the rewrite of a graph that assigns one to each."""
