"""Which way of generating gives a torch model the logits of transformers' own `generate`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bridges.torch.decode_modules import ROLLING, SLOTS, Signature, halves, with_room
from dew.errors import InputRefused

WHOLE, REFUSED = "whole", "refused"
NEW, WIDTH, ROOM, PADDED = 3, 9, 14, 2
TOLERANCE = {"float32": 1e-3, "float64": 1e-3}
COARSE = 0.1


class _Reference(NamedTuple):
    """What transformers generated: prompts and mask [2, P], ids [2, NEW], logits [NEW, 2, V]."""

    prompts: Any
    mask: Any
    ids: Any
    logits: Any
    start: int


def examined(inner: Any) -> dict[str, Any]:
    """Return how a model generates and what its callers must know of it, as JSON takes it.

    Two prompts, one of them padded, are continued by a few tokens with transformers' `generate`.
    The first way whose logits are the same is taken: a cache of fixed slots, a cache that rolls,
    and last the whole forward over a padded buffer.

    Args:
        inner: a torch module of transformers.

    Returns:
        `way`, and the `reason` why it is not a faster one; `vocab_size`, `input_size`,
        `position_limit` or None, `seq2seq`, `positions` and `start` or None. A model that cannot
        generate has the way `REFUSED` and a reason alone.

    Raises:
        InputRefused: transformers' own `generate` fails on ids.
    """
    about: dict[str, Any] = {"way": REFUSED, "reason": _refusal(inner)}
    if about["reason"]:
        return about
    signature = Signature(inner)
    size = inner.get_input_embeddings().weight.shape[0]
    about |= {
        "input_size": size,
        "position_limit": _position_limit(inner.config),
        "seq2seq": signature.seq2seq,
        "positions": signature.positions,
    }
    try:
        reference = _reference(inner, signature, min(size, 1000))
    except Exception as error:
        raise InputRefused(
            f"generate: {type(inner).__name__} does not go on from ids alone; transformers' own "
            f"generate says {_told(error)}"
        ) from error
    about |= {
        "vocab_size": int(reference.logits.shape[-1]),
        "start": reference.start if signature.seq2seq else None,
    }
    ways = {SLOTS: _by_slots, ROLLING: _by_rolling, WHOLE: _by_whole}
    reasons = []
    for way, made in ways.items():
        if way == ROLLING and signature.seq2seq:
            continue
        problem = _difference(made, inner, signature, reference)
        if problem is None:
            return about | {"way": way, "reason": "; ".join(reasons)}
        reasons.append(f"{way}: {problem}")
    return about | {"reason": "; ".join(reasons)}


def _refusal(inner: Any) -> str:
    name = type(inner).__name__
    if not inner.can_generate():
        return f"{name} has no language-model head to write with"
    if inner.main_input_name != "input_ids":
        return f"{name} begins with {inner.main_input_name}, not with input_ids"
    return ""


def _position_limit(config: Any) -> int | None:
    found = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()[:300]}"


def _reference(inner: Any, signature: Signature, size: int) -> _Reference:
    import torch
    from transformers import GenerationConfig

    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(min(4, size - 1), size, (2, WIDTH), generator=generator)
    mask = torch.ones_like(prompts)
    padded = slice(-PADDED, None) if signature.seq2seq else slice(PADDED)
    mask[1, padded] = 0
    stored, config = inner.generation_config, inner.config.get_text_config(decoder=True)
    named = ("decoder_start_token_id", "bos_token_id")
    found = [getattr(part, name, None) for name in named for part in (stored, config)]
    start = next((value for value in found if value is not None), 0)
    settings = GenerationConfig(
        max_new_tokens=NEW,
        do_sample=False,
        num_beams=1,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
        eos_token_id=None,
        decoder_start_token_id=start if signature.seq2seq else None,
    )
    try:
        made = _generated(inner, prompts, mask, settings)
    except Exception:
        # A type whose cache transformers itself gets wrong still has a whole forward.
        settings.use_cache = False
        made = _generated(inner, prompts, mask, settings)
    logits, ids = torch.stack(made.logits), made.sequences[:, -NEW:]
    return _Reference(prompts, mask, ids, logits, start)


def _generated(inner: Any, prompts: Any, mask: Any, settings: Any) -> Any:
    import torch

    kept = inner.generation_config
    inner.generation_config = settings
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return inner.generate(prompts, attention_mask=mask, generation_config=settings)
    finally:
        inner.generation_config = kept


def _difference(
    made: Callable[..., Iterator[Any]], inner: Any, signature: Signature, reference: _Reference
) -> str | None:
    """Return how a way's logits differ from the reference, or None."""
    import torch

    dtype = str(next(inner.parameters()).dtype).removeprefix("torch.")
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logits = torch.stack(list(made(inner, signature, reference)))
    except Exception as error:
        return _told(error)
    wanted = reference.logits.float()
    apart = float((logits - wanted).square().mean().sqrt() / wanted.std())
    if apart <= TOLERANCE.get(dtype, COARSE):
        return None
    return f"its logits are {apart:.1e} of their spread away from those of transformers' generate"


def _by_slots(inner: Any, signature: Signature, reference: _Reference) -> Iterator[Any]:
    if signature.seq2seq:
        yield from _by_source(inner, reference)
    else:
        yield from _cached(inner, reference, SLOTS)


def _by_rolling(inner: Any, signature: Signature, reference: _Reference) -> Iterator[Any]:
    yield from _cached(inner, reference, ROLLING)


def _cached(inner: Any, reference: _Reference, way: str) -> Iterator[Any]:
    import torch
    from torch.nn.functional import pad

    prompt, token = halves(inner, way)
    mask, rolls = reference.mask, way == ROLLING
    out = prompt(reference.prompts, mask, _positions(mask))
    yield out["logits"]

    def widened(value: Any, count: int) -> Any:
        return pad(value, (0, 0, count, 0) if rolls else (0, 0, 0, count))

    state = with_room(out["state"], ROOM, widened)
    room = ROOM - WIDTH
    visible = pad(mask, (room, 0) if rolls else (0, room))
    for number in range(NEW - 1):
        if rolls:
            visible = pad(visible[:, 1:], (0, 1), value=1)
        else:
            visible[:, WIDTH + number] = 1
        positions = mask.sum(dim=1, keepdim=True) + number
        slot = torch.tensor(WIDTH + number)
        out = token(reference.ids[:, number : number + 1], visible, positions, slot, state)
        state = out["state"]
        yield out["logits"]


def _by_source(inner: Any, reference: _Reference) -> Iterator[Any]:
    import torch
    from torch.nn.functional import pad

    prompt, token = halves(inner, SLOTS)
    starts = torch.full((2, 1), reference.start)
    # Engines pad what an encoder reads, so that few widths are compiled.
    prompts, mask = (pad(part, (0, PADDED)) for part in (reference.prompts, reference.mask))
    out = prompt(prompts, mask, starts)
    yield out["logits"]
    state = with_room(out["state"], ROOM, lambda value, count: pad(value, (0, 0, 0, count)))
    visible = torch.zeros((2, ROOM), dtype=torch.long)
    visible[:, 0] = 1
    for number in range(NEW - 1):
        visible[:, number + 1] = 1
        ids = reference.ids[:, number : number + 1]
        out = token(mask, ids, visible, torch.tensor(number + 1), state)
        state = {**state, **out["state"]}
        yield out["logits"]


def _by_whole(inner: Any, signature: Signature, reference: _Reference) -> Iterator[Any]:
    import torch
    from torch.nn.functional import pad

    given: Mapping[str, Any]
    if signature.seq2seq:
        ids, mask = torch.full((2, 1), reference.start), torch.ones((2, 1), dtype=torch.long)
    else:
        ids, mask = reference.prompts, reference.mask
    for number in range(NEW):
        last = ids.shape[1] - 1
        buffer, seen = pad(ids, (0, ROOM - last - 1)), pad(mask, (0, ROOM - last - 1))
        if signature.seq2seq:
            given = {
                "input_ids": pad(reference.prompts, (0, PADDED)),
                "attention_mask": pad(reference.mask, (0, PADDED)),
                "decoder_input_ids": buffer,
            }
        else:
            given = {"input_ids": buffer, "attention_mask": seen}
            if signature.positions:
                given["position_ids"] = _positions(seen)
        yield inner(**given).logits[:, last].float()
        ids = torch.cat([ids, reference.ids[:, number : number + 1]], dim=1)
        mask = pad(mask, (0, 1), value=1)


def _positions(mask: Any) -> Any:
    return (mask.cumsum(dim=1) - 1).clamp(min=0)
