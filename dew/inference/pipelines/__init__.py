"""The tasks of `dew.pipeline`, one a file; `task.py` holds what they share."""
