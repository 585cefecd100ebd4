"""Weights of the networks that metrics look through, read from PyTorch's files."""
