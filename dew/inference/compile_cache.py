"""Compiled programs kept on disk, so that the next process need not compile them anew."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = "compiled"


def keep_compiled() -> Path | None:
    """Have JAX keep compiled programs, unless it is told where already.

    `JAX_COMPILATION_CACHE_DIR` and JAX's own setting come first, then a folder in
    `cache_directory`. Where that cannot be written nothing is kept.

    Returns:
        Where they are kept, or None.
    """
    import jax

    named = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if named:
        return Path(named)
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return None
    folder = cache_directory() / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


def cache_directory() -> Path:
    """Return where dew keeps what it can make or fetch again.

    DEW_CACHE, else `dew` beside the Hugging Face assets.
    """
    if own := os.environ.get("DEW_CACHE"):
        return Path(own)
    if assets := os.environ.get("HF_ASSETS_CACHE"):
        return Path(assets) / "dew"
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    return Path(home) / "assets" / "dew"
