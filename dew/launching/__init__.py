"""Starting the processes of a pool: what the environment says, what to start, watching it."""
