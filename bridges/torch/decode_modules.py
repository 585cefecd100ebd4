"""A model's two halves of generation as torch modules: reading prompts, and one more token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from bridges.torch.export import NotExportable

CACHES = ("cache", "past_key_values", "cache_params")
HELD = ("keys", "values")
SLOTS, ROLLING = "slots", "rolling"


@cache
def _layer_kinds() -> dict[bool, Any]:
    """Return the cache layer, for models whose layers look at everything and at a window."""
    import torch
    from transformers.cache_utils import CacheLayerMixin

    class Held(CacheLayerMixin):
        """One layer's keys and values [N, G, S, K], read and replaced, never written to.

        Without any it keeps those of the prompt; afterwards new ones go to the slot `length`, or
        to the right end while the oldest leave. A layer with a window keeps all slots too: the
        mask alone hides what is too old.
        """

        keys: Any
        values: Any
        is_compileable = True
        is_sliding = False
        rolls = False
        length: Any = 0

        def hold(self, keys: Any, values: Any, length: Any) -> None:
            self.keys, self.values, self.is_initialized = keys, values, True
            self.rolls = length is None
            self.length = keys.shape[-2] - 1 if self.rolls else length

        def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
            self.is_initialized = True

        def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
            count = key_states.shape[-2]
            if self.keys is None:
                self.keys, self.values = key_states, value_states
                self.is_initialized = True
            elif self.rolls:
                self.keys = torch.cat([self.keys[:, :, count:], key_states], dim=2)
                self.values = torch.cat([self.values[:, :, count:], value_states], dim=2)
            else:
                places = torch.arange(count, device=key_states.device) + self.length
                self.keys = self.keys.index_copy(2, places, key_states)
                self.values = self.values.index_copy(2, places, value_states)
            self.length = self.length + count
            return self.keys, self.values

        def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
            return (query_length if self.keys is None else self.keys.shape[-2]), 0

        def get_seq_length(self) -> Any:
            return self.length

        def get_max_length(self) -> int:
            return -1 if self.keys is None else self.keys.shape[-2]

    class HeldWindow(Held):
        is_sliding = True

    return {False: Held, True: HeldWindow}


def _empty_cache(config: Any) -> Any:
    """Return a cache without contents, a layer for each that transformers would make.

    Raises:
        NotExportable: layers that keep something other than keys, values and recurrent states.
    """
    from transformers.cache_utils import (
        Cache,
        CacheLayerMixin,
        DummyLayer,
        LinearAttentionLayer,
        StaticCache,
        StaticLayer,
        StaticSlidingWindowLayer,
    )

    kinds, layers = _layer_kinds(), []
    for layer in StaticCache(config=config, max_cache_len=1).layers:
        if type(layer) in (StaticLayer, StaticSlidingWindowLayer):
            layers.append(kinds[type(layer) is StaticSlidingWindowLayer]())
        elif type(layer) in (DummyLayer, LinearAttentionLayer):
            layers.append(layer)
        elif isinstance(layer, CacheLayerMixin) or layer:
            raise NotExportable(f"a cache of {type(layer).__name__} is not known here")
    return Cache(layers=layers)


def _contents(cache: Any, prefix: str = "") -> dict[str, Any]:
    """Return what the layers hold, by kind and layer."""
    found: dict[str, Any] = {}
    for number, layer in enumerate(cache.layers):
        for name in HELD:
            value = getattr(layer, name, None)
            if value is not None:
                found[f"{prefix}{name}.{number}"] = value
        for name, states in (
            ("conv", getattr(layer, "conv_states", {})),
            ("recurrent", getattr(layer, "recurrent_states", {})),
        ):
            for part, value in states.items():
                if value is not None:
                    found[f"{prefix}{name}.{number}.{part}"] = value
    return found


def _filled_cache(config: Any, state: Mapping[str, Any], length: Any, prefix: str = "") -> Any:
    """Return the cache that `_contents` was taken of; None as `length` lets it roll."""
    cache = _empty_cache(config)
    for number, layer in enumerate(cache.layers):
        keys = state.get(f"{prefix}keys.{number}")
        if keys is not None:
            layer.hold(keys, state[f"{prefix}values.{number}"], length)
        for part in range(getattr(layer, "number_of_states", 0)):
            _restore(layer, part, state, f"{number}.{part}")
    return cache


def _restore(layer: Any, part: int, state: Mapping[str, Any], place: str) -> None:
    convolved, recurrent = state.get(f"conv.{place}"), state.get(f"recurrent.{place}")
    if convolved is not None:
        layer.dtype, layer.device = convolved.dtype, convolved.device
        layer.conv_states[part] = convolved.clone()
        layer.conv_kernel_size[part] = convolved.shape[-1]
        layer.is_conv_states_initialized[part] = True
    if recurrent is not None:
        layer.recurrent_states[part] = recurrent.clone()
        layer.is_recurrent_states_initialized[part] = True
    layer.has_previous_state[part] = True


class Signature:
    """Which of the usual inputs a model's forward takes.

    Args:
        inner: a torch module of transformers.

    Attributes:
        cache: the name of the cache's argument, or None.
        seq2seq: whether an encoder reads the prompt.
        positions: whether positions may be given.
        config: of what writes to the cache.
    """

    def __init__(self, inner: Any):
        names = inspect.signature(inner.forward).parameters
        self.cache = next((name for name in CACHES if name in names), None)
        self.seq2seq = bool(getattr(inner.config, "is_encoder_decoder", False))
        self.positions = "position_ids" in names and not self.seq2seq
        self.config = inner.get_decoder().config if self.seq2seq else inner.config
        self._last_only = "logits_to_keep" in names
        self._return_dict = "return_dict" in names

    def options(self, cache: Any) -> dict[str, Any]:
        """Return the arguments that every call with a cache has.

        Raises:
            NotExportable: the forward takes no cache.
        """
        if self.cache is None:
            raise NotExportable("its forward takes no cache")
        given: dict[str, Any] = {self.cache: cache, "use_cache": True}
        if self._last_only:
            given["logits_to_keep"] = 1
        if self._return_dict:
            given["return_dict"] = True
        return given


@cache
def _halves() -> tuple[Any, Any, Any, Any]:
    from torch import nn

    class Half(nn.Module):
        def __init__(self, inner: Any):
            super().__init__()
            self.inner = inner
            self.signature = Signature(inner)

        def placed(self, position_ids: Any) -> dict[str, Any]:
            return {"position_ids": position_ids} if self.signature.positions else {}

    class Prompt(Half):
        def forward(self, input_ids: Any, attention_mask: Any, position_ids: Any) -> Any:
            cache = _empty_cache(self.signature.config)
            out = self.inner(
                input_ids=input_ids,
                attention_mask=attention_mask,
                **self.placed(position_ids),
                **self.signature.options(cache),
            )
            return {"logits": _last(out), "state": _some(_contents(cache))}

    class Token(Half):
        def __init__(self, inner: Any, rolls: bool):
            super().__init__(inner)
            self.rolls = rolls

        def forward(
            self, input_ids: Any, attention_mask: Any, position_ids: Any, slot: Any, state: Any
        ) -> Any:
            cache = _filled_cache(self.signature.config, state, None if self.rolls else slot)
            attends = any(name.startswith("keys.") for name in state)
            out = self.inner(
                input_ids=input_ids,
                attention_mask=attention_mask if attends else None,
                **self.placed(position_ids),
                **self.signature.options(cache),
            )
            return {"logits": _last(out), "state": _contents(cache)}

    class SourcePrompt(Half):
        def forward(self, input_ids: Any, attention_mask: Any, decoder_input_ids: Any) -> Any:
            import torch
            from transformers.cache_utils import EncoderDecoderCache

            config = self.signature.config
            both = EncoderDecoderCache(_empty_cache(config), _empty_cache(config))
            out = self.inner(
                input_ids=input_ids,
                attention_mask=attention_mask,
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=torch.ones_like(decoder_input_ids),
                **self.signature.options(both),
            )
            state = _some(_contents(both.self_attention_cache))
            state |= _contents(both.cross_attention_cache, "source_")
            return {
                "logits": _last(out),
                "state": {**state, "source": out.encoder_last_hidden_state},
            }

    class SourceToken(Half):
        def forward(
            self,
            attention_mask: Any,
            decoder_input_ids: Any,
            decoder_attention_mask: Any,
            slot: Any,
            state: Any,
        ) -> Any:
            from transformers.cache_utils import EncoderDecoderCache
            from transformers.modeling_outputs import BaseModelOutput

            config = self.signature.config
            source = _filled_cache(config, state, 0, "source_")
            both = EncoderDecoderCache(_filled_cache(config, state, slot), _empty_cache(config))
            both.cross_attention_cache = source
            both.is_updated = {number: True for number in range(len(source.layers))}
            out = self.inner(
                attention_mask=attention_mask,
                encoder_outputs=BaseModelOutput(last_hidden_state=state["source"]),
                decoder_input_ids=decoder_input_ids,
                decoder_attention_mask=decoder_attention_mask,
                **self.signature.options(both),
            )
            after = _contents(both.self_attention_cache)
            return {"logits": _last(out), "state": after}

    return Prompt, Token, SourcePrompt, SourceToken


def halves(inner: Any, way: str) -> tuple[Any, Any]:
    """Return the module that reads prompts, and the one that adds a token.

    The first gives the last place's float32 `logits` [N, V] and a `state`: keys and values
    [N, G, P, K] by layer, and recurrent states. The second takes the state with room for S slots,
    and gives it back with one more token in it. With an encoder, the state's `source` entries are
    the prompt's own, which no token changes and the second does not return.

    Args:
        inner: a torch module of transformers.
        way: `SLOTS`, or `ROLLING` for a model whose masks take the newest key to be the last.

    Raises:
        NotExportable: when run, for a model whose cache is not of these kinds.
    """
    prompt, token, source_prompt, source_token = _halves()
    if Signature(inner).seq2seq:
        return source_prompt(inner), source_token(inner)
    return prompt(inner), token(inner, way == ROLLING)


def _some(state: dict[str, Any]) -> dict[str, Any]:
    if not state:
        raise NotExportable("its forward wrote nothing to transformers' cache")
    return state


def _last(out: Any) -> Any:
    return out.logits[:, -1].float()


def with_room(
    state: Mapping[str, Any], slots: int, pad: Callable[[Any, int], Any]
) -> dict[str, Any]:
    """Return the state with its keys and values [N, G, P, K] widened to `slots` places.

    Args:
        state: by the names of `halves`.
        slots: S.
        pad: adds so many zeros along the third axis of an array.
    """
    return {
        name: pad(value, slots - value.shape[2]) if name.split(".")[0] in HELD else value
        for name, value in state.items()
    }
