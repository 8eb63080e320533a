"""The HTML page of a run: one file without references to others.

Only the module `facts` reads files.
"""
