"""How a model's outputs become samples."""
