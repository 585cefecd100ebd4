"""What a DataLoader's order comes from: its generators, and the epoch that its parts are told."""

from __future__ import annotations

from typing import Any

from bridges.torch.loader_workers import NumberedDataset, NumberedSampler


def generators_of(loader: Any) -> list[Any]:
    """Return the generators that a loader and its samplers draw from, each once."""
    batches = getattr(loader, "batch_sampler", None)
    holders = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
    found = [getattr(holder, "generator", None) for holder in holders]
    return list({id(g): g for g in found if hasattr(g, "get_state")}.values())


def states_of(generators: list[Any]) -> list[str]:
    """Return the generators' states, as hexadecimal text."""
    return [bytes(generator.get_state().numpy()).hex() for generator in generators]


def set_states(generators: list[Any], states: list[str]) -> None:
    """Put generators into states that `states_of` gave."""
    import torch

    for generator, state in zip(generators, states, strict=True):
        generator.set_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))


def set_epoch_of(loader: Any, epoch: int) -> None:
    """Tell what asks for it which epoch begins."""
    samplers = [getattr(loader, name, None) for name in ("sampler", "batch_sampler")]
    samplers = [s.sampler if isinstance(s, NumberedSampler) else s for s in samplers]
    held = getattr(loader, "dataset", None)
    held = held.dataset if isinstance(held, NumberedDataset) else held
    parts: list[Any] = [loader, held, *samplers, *(getattr(s, "sampler", None) for s in samplers)]
    for part in {id(part): part for part in parts}.values():
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
