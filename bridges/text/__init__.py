"""Tokenizers and chat templates, without transformers."""
