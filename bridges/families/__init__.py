"""One Hugging Face `model_type` a file: what its config means, and its weight table."""
