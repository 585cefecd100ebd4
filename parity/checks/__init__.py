"""The checks, one a file: inputs, ours, reference, tolerance."""
