"""Layers and backbones, as Flax linen modules."""
