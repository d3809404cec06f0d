"""Questions that are asked in a process of their own: they load drivers or torch, which may take long, hang or crash.

Each prints one JSON object as its last line.
"""
