"""Precision of layers: the forms that a layer has, and the graph pass that assigns forms to layers."""
