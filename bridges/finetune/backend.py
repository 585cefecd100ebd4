"""Choosing JAX's platform and its compilation cache, before the first array."""

from __future__ import annotations

import os
from pathlib import Path


def choose_backend(use_cpu: bool, cache: Path | None = None) -> None:
    """Set the platform and where compiled steps are kept between runs.

    Args:
        use_cpu: leave accelerators alone.
        cache: the folder of compiled steps, unless JAX_COMPILATION_CACHE_DIR names one.
    """
    import jax

    if use_cpu:
        jax.config.update("jax_platforms", "cpu")
    if cache is not None and not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(cache))
