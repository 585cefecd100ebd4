"""Multi-block masks: which patches a joint-embedding encoder sees, and which it must predict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dew.errors import InputRefused

Range = tuple[float, float]


class DrawnMasks(NamedTuple):
    """Patches of each image by number, row by row, and which of the slots are real.

    Attributes:
        context: int32 [B, K]; `context_mask` bool [B, K].
        targets: int32 [B, M, T]; `target_mask` bool [B, M, T].
    """

    context: jax.Array
    context_mask: jax.Array
    targets: jax.Array
    target_mask: jax.Array


@dataclass(frozen=True)
class BlockMasks:
    """How the masks of an image are drawn.

    Each target is a block of random area (a share of all patches within `target_scale`) and
    aspect (height over width, within `target_aspect`) at a random place; the context is a square
    block of an area within `context_scale`, without any patch of a target. Sides are rounded to
    whole patches. Shapes do not depend on the draw: slots beyond a block are masked, and of a
    context of more than `context_patches` random ones are dropped. At least one patch is context.

    Args:
        grid: rows and columns of patches.
        targets: M, blocks to predict.
        target_scale, target_aspect, context_scale: ranges, each uniform.
        context_patches: K; None takes two thirds of the patches, which holds 99 of 100 contexts of
            these ranges.

    Raises:
        InputRefused: ranges or counts that make no blocks.

    Source: Assran et al. 2023, arXiv:2301.08243, section 3 and appendix A. There all images of a
    batch share the sizes and are cut to the smallest; here each image has its own.
    """

    grid: tuple[int, int]
    targets: int = 4
    target_scale: Range = (0.15, 0.2)
    target_aspect: Range = (0.75, 1.5)
    context_scale: Range = (0.85, 1.0)
    context_patches: int | None = None

    def __post_init__(self) -> None:
        ranges = (self.target_scale, self.target_aspect, self.context_scale)
        ordered = all(0 < low <= high for low, high in ranges)
        shares = max(self.target_scale[1], self.context_scale[1]) <= 1
        if min(*self.grid, self.targets) < 1 or not ordered or not shares:
            raise InputRefused(
                f"block masks: grid {self.grid}, {self.targets} targets, ranges {ranges}; expected "
                "1 patch and 1 target or more, and ranges (low, high) above 0, scales up to 1"
            )
        if not 1 <= self.kept <= self.patches:
            raise InputRefused(
                f"block masks: context_patches {self.kept}; expected 1 to {self.patches}"
            )

    @property
    def patches(self) -> int:
        """N, all patches of an image."""
        return math.prod(self.grid)

    @property
    def kept(self) -> int:
        """K, slots for context patches."""
        return -(-2 * self.patches // 3) if self.context_patches is None else self.context_patches

    @property
    def target_patches(self) -> int:
        """T, the patches of the largest block that may be drawn."""
        scales = np.linspace(*self.target_scale, 101)[:, None]
        aspects = np.linspace(*self.target_aspect, 401)[None]
        heights = np.clip(np.rint(np.sqrt(self.patches * scales * aspects)), 1, self.grid[0])
        widths = np.clip(np.rint(np.sqrt(self.patches * scales / aspects)), 1, self.grid[1])
        return int((heights * widths).max())

    def draw(self, key: jax.Array, images: int) -> DrawnMasks:
        """Return the masks of `images` images; each image's depend on its own key."""
        return jax.vmap(self._image)(jax.random.split(key, images))

    def _image(self, key: jax.Array) -> DrawnMasks:
        target_key, context_key, drop_key = jax.random.split(key, 3)
        keys = jax.random.split(target_key, self.targets)
        targets = jax.vmap(lambda k: self.block(k, self.target_scale, self.target_aspect))(keys)
        context = self.block(context_key, self.context_scale, (1.0, 1.0))
        context = context & ~jnp.any(targets, axis=0)
        index = jnp.argsort(~targets, axis=1, stable=True)[:, : self.target_patches]
        order = jnp.where(context, jax.random.uniform(drop_key, context.shape), 2.0)
        kept = jnp.argsort(order)[: self.kept]
        return DrawnMasks(
            context=kept.astype(jnp.int32),
            context_mask=context[kept].at[0].set(True),
            targets=index.astype(jnp.int32),
            target_mask=jnp.take_along_axis(targets, index, axis=1),
        )

    def block(self, key: jax.Array, scale: Range, aspect: Range) -> jax.Array:
        """Return bool [N], True in one block drawn from the ranges."""
        rows, columns = self.grid
        area, shape, top, left = jax.random.uniform(key, (4,))
        size = self.patches * (scale[0] + area * (scale[1] - scale[0]))
        ratio = aspect[0] + shape * (aspect[1] - aspect[0])
        height = jnp.clip(jnp.rint(jnp.sqrt(size * ratio)), 1, rows)
        width = jnp.clip(jnp.rint(jnp.sqrt(size / ratio)), 1, columns)
        # Uniform draws lie below 1, so these reach every place and none beyond.
        first_row = jnp.floor(top * (rows - height + 1))
        first_column = jnp.floor(left * (columns - width + 1))
        row, column = jnp.arange(rows)[:, None], jnp.arange(columns)[None]
        inside = (row >= first_row) & (row < first_row + height)
        inside = inside & (column >= first_column) & (column < first_column + width)
        return inside.reshape(-1)
