"""Sweeps: each module's `points(c)` yields what differs from a base config, run by run.

A point sets fields by dotted name; `words` adds words to the config's argument. The runner is
`launch/sweep.py`.
"""

Point = dict[str, object]
