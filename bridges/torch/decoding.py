"""Text from traced models: what is known of a model, and engines for the decode loop."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bridges.files.writer import write_file
from bridges.torch.decode_modules import halves, with_room
from bridges.torch.module import TracedModule, Tracer, Variables
from bridges.torch.run import Program
from bridges.torch.store import keep_program, kept_programs
from dew.errors import InputRefused
from dew.inference.answering import answered, forced_options, source_padded
from dew.inference.bundle import Bundle
from dew.inference.cache import bucket, left_padded
from dew.inference.decode import Filled, Streamer, continued
from dew.inference.model_inputs import checked_prompts, mask_positions

RECORD = "generation.json"
EXAMPLE_ROWS, EXAMPLE_WIDTH, EXAMPLE_SLOTS = 2, 7, 12


class WritingModule(TracedModule):
    """A traced module that may write text.

    Args:
        tracer: gives the programs of the whole forward.
        variables: the weights.
        decoder: knows how the module generates.
    """

    def __init__(self, tracer: Tracer, variables: Variables, decoder: Decoder):
        super().__init__(tracer, variables)
        self.decoder = decoder

    def holding(self, variables: Variables) -> WritingModule:
        """Return this module with other weights; both share what was traced."""
        return WritingModule(self._tracer, variables, self.decoder)

    @property
    def vocab_size(self) -> int:
        """How many ids the logits tell apart."""
        return self.decoder.about["vocab_size"]

    @property
    def position_limit(self) -> int | None:
        """How many positions the model has, or None."""
        return self.decoder.about["position_limit"]

    @property
    def engine(self) -> Any:
        """What `dew.inference.decode` runs."""
        return self.decoder.engine(self)


@contextlib.contextmanager
def _hushed(logger: logging.Logger) -> Iterator[None]:
    # A step of one token is meant to be of one token: torch warns of a length that is fixed.
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@dataclasses.dataclass(frozen=True)
class Limits:
    """What `checked_inputs` reads of a model."""

    vocab_size: int
    position_limit: int | None
    input_names: tuple[str, ...] = ("input_ids", "attention_mask")
    counts_real_tokens: bool = True


class Decoder:
    """How one checkpoint's module generates: learnt once with torch, kept on disk.

    Args:
        folder: where that, and the traces, are kept.
        torch_module: gives the torch module when it is needed.
        canonical: every name of a parameter or buffer to the one that it is kept under.
    """

    def __init__(self, folder: Path, torch_module: Callable[[], Any], canonical: Mapping[str, str]):
        self._folder, self._torch_module = folder, torch_module
        self._canonical = {f"inner.{name}": kept for name, kept in canonical.items()}
        self._about: dict[str, Any] | None = None
        self._engine: Any = None

    @property
    def about(self) -> dict[str, Any]:
        """What `bridges.torch.decode_check.examined` found.

        Raises:
            InputRefused: the model does not write text, or torch is absent and nothing is kept.
        """
        if self._about is None:
            self._about = self._read() or self._learnt()
        if self._about["way"] == "refused":
            raise InputRefused(f"generate: {self._about['reason']}")
        return self._about

    def engine(self, model: TracedModule) -> Any:
        """Return the engine, with its traces made; models that share this share it.

        Args:
            model: the whole forward, and the weights whose shapes the traces are made for.
        """
        if self._engine is None:
            about = self.about
            if about["way"] != "whole":
                self._prepare(model)
            if self.about["way"] == "whole":
                self._engine = WholeEngine(model.holding({"params": {}, "buffers": {}}), about)
                warnings.warn(
                    "generate runs the whole model again for every token, over a buffer of the "
                    f"full length: {self.about['reason']}",
                    stacklevel=5,
                )
        return self._engine

    def _prepare(self, model: TracedModule) -> None:
        engine = CachedEngine(self.about, self._fitted(0), self._fitted(1))
        try:
            engine.prepare(model.variables)
        except Exception as error:
            if isinstance(error.__cause__, ImportError):
                raise
            reason = f"its steps cannot be traced: {str(error).strip()[:600]}"
            self._about = {**self.about, "way": "whole", "reason": reason}
            self._write(self._about)
            return
        self._engine = engine

    def _fitted(self, half: int) -> Fitted:
        folder = self._folder / ("prompt", "token")[half]
        patches = contextlib.ExitStack()

        def module() -> Any:
            from bridges.torch.export import transformers_patches

            inner = self._torch_module()
            patches.enter_context(transformers_patches(inner, {}))
            patches.enter_context(_hushed(logging.getLogger("torch._export.non_strict_utils")))
            return halves(inner, self.about["way"])[half]

        kept = kept_programs(folder)
        tracer = Tracer(module, self._canonical, kept, keep=partial(keep_program, folder))
        return Fitted(tracer, patches)

    def _read(self) -> dict[str, Any] | None:
        try:
            return json.loads((self._folder / RECORD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _learnt(self) -> dict[str, Any]:
        try:
            module = self._torch_module()
        except ImportError as error:
            raise InputRefused(
                f"generate needs {error} the first time, to trace the model's steps: "
                'pip install "dew[torch]"'
            ) from error
        from bridges.torch.decode_check import examined

        about = examined(module)
        self._write(about)
        return about

    def _write(self, about: Mapping[str, Any]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f"{os.getpid()}.tmp"
        write_file(aside, json.dumps(about).encode())
        os.replace(aside, self._folder / RECORD)


class Fitted(NamedTuple):
    """One half's programs; `patches` holds what must be in place while torch follows it."""

    tracer: Tracer
    patches: contextlib.ExitStack

    def program(self, inputs: Mapping[str, Any]) -> tuple[Program, dict[str, Any]]:
        """Return a program that fits these inputs, and the inputs by the names of its graph."""
        with self.patches:
            return self.tracer.program(False, (), inputs)


class CachedEngine:
    """Reads prompts with one traced program and adds each token with another, over a cache.

    Args:
        about: see `Decoder.about`.
        prompt: gives the program that reads prompts.
        token: gives the program that adds a token.
    """

    def __init__(self, about: Mapping[str, Any], prompt: Fitted, token: Fitted):
        self._prompt, self._token = prompt, token
        self._rolls, self._limit = about["way"] == "rolling", about["position_limit"]
        self._seq2seq, self._positions = about["seq2seq"], about["positions"]

    def prepare(self, variables: Variables) -> None:
        """Make the traces, for any number of rows and slots where the model allows it."""
        if all(half.tracer.programs[False] for half in (self._prompt, self._token)):
            return
        ids = np.zeros((EXAMPLE_ROWS, EXAMPLE_WIDTH), np.int32)
        inputs = self._prompt_inputs(ids, np.ones_like(ids), ids[:, :1])
        self._prompt.program(inputs)
        read = partial(self.read, slots=EXAMPLE_SLOTS)
        _, shapes = jax.eval_shape(read, variables, inputs)
        state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
        visible = np.ones((EXAMPLE_ROWS, EXAMPLE_SLOTS), np.int32)
        slot = np.zeros((), np.int32)
        row = (ids[:, 0], ids[:, 0], visible, slot)
        self._token.program(self._token_inputs(*row, inputs["attention_mask"], state))
        named = dict(zip(("tokens", "positions", "visible", "slot"), row, strict=True))
        mask = visible if self._rolls else inputs["attention_mask"]
        jax.eval_shape(self.step, variables, {"state": state, "mask": mask}, **named)

    def fill(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, source: Any
    ) -> Filled:
        """Read prompts [N, P] with room for `new` more; `source` is an encoder's ids and mask."""
        later = prompts[:, :0]
        if not self._seq2seq and not self._positions and real.all():
            # Such a model counts positions from the first slot, so nothing can be padded: what
            # passes a common width is read a token at a time, and no length compiles anew.
            width = common_width(prompts.shape[1])
            prompts, later, real = prompts[:, :width], prompts[:, width:], real[:, :width]
            new += later.shape[1]
        if self._seq2seq:
            ids, mask = source_padded(source, self._limit)
            lengths, width = np.ones(len(prompts), np.int32), 1
            inputs = self._prompt_inputs(ids, mask, prompts)
        else:
            lengths = real.sum(axis=1).astype(np.int32)
            width = bucket(int(lengths.max())) if self._positions else prompts.shape[1]
            if self._rolls and self._limit is not None:
                width = min(width, self._limit)
            ids, mask = left_padded(prompts, real, width)
            inputs = self._prompt_inputs(ids, mask, prompts)
        slots = bucket(width + new)
        if self._limit is not None and (self._rolls or self._seq2seq):
            slots = min(slots, self._limit)
        self._prompt.program(inputs)
        logits, state = _prompts_read(self, bundle.variables, inputs, slots)
        own = np.ones((len(prompts), 1), np.int32) if self._seq2seq else mask
        visible = np.pad(own, ((0, 0), (0, slots - width))) if slots > width else own
        rolled = np.pad(mask, ((0, 0), (slots - mask.shape[1], 0))) if self._rolls else mask
        layers = {"state": state, "mask": jnp.asarray(rolled, jnp.int32)}
        row = (lengths, lengths, visible, np.zeros((), np.int32), layers["mask"], state)
        self._token.program(self._token_inputs(*row))
        if not later.shape[1]:
            return Filled(logits, layers, visible, width, lengths)
        count, lengths = later.shape[1], lengths + later.shape[1]
        rest = np.pad(later, ((0, 0), (0, bucket(count) - count)))
        carried = logits, layers, jnp.asarray(visible, bool)
        logits, layers, seen = _read_on(self, bundle.variables, carried, rest, width, count)
        return Filled(logits, layers, np.asarray(seen), width + count, lengths)

    def weights(self, bundle: Bundle) -> Any:
        """Return the bundle's variables."""
        return bundle.variables

    def renewal(self, longest: int) -> int | None:
        """Return None: what was traced keeps its cache."""
        return None

    def reordered(self, layers: Any, index: jax.Array) -> Any:
        """Return the cache with its rows in the order of `index` [N]."""
        return jax.tree.map(lambda leaf: leaf[index], layers)

    def step(
        self,
        weights: Any,
        layers: Any,
        *,
        tokens: jax.Array,
        positions: jax.Array,
        visible: jax.Array,
        slot: jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Return the logits [N, V] that follow one more token a row, and the cache with it."""
        state, mask = layers["state"], layers["mask"]
        if self._rolls:
            mask = jnp.concatenate([mask[:, 1:], jnp.ones_like(mask[:, :1])], axis=1)
            visible = mask
        inputs = self._token_inputs(tokens, positions, visible, slot, mask, state)
        program, values = self._token.program(inputs)
        output, _ = program.run(weights, values)
        after = {name: value.astype(state[name].dtype) for name, value in output["state"].items()}
        return output["logits"], {"state": {**state, **after}, "mask": mask}

    def read(self, variables: Variables, inputs: Mapping[str, Any], slots: int) -> Any:
        """Return the logits [N, V] after the prompts, and the state with room for `slots`."""
        program, values = self._prompt.program(inputs)
        output, _ = program.run(variables, values)

        def pad(value: jax.Array, count: int) -> jax.Array:
            room = (count, 0) if self._rolls else (0, count)
            return jnp.pad(value, ((0, 0), (0, 0), room, (0, 0)))

        return output["logits"], with_room(output["state"], slots, pad)

    def _prompt_inputs(self, ids: Any, mask: Any, starts: Any) -> dict[str, Any]:
        inputs = {"input_ids": ids, "attention_mask": mask}
        if self._seq2seq:
            return {**inputs, "decoder_input_ids": starts}
        return {**inputs, "position_ids": mask_positions(mask).astype(np.int32)}

    def _token_inputs(
        self, tokens: Any, positions: Any, visible: Any, slot: Any, mask: Any, state: Any
    ) -> dict[str, Any]:
        ids, seen = tokens[:, None], visible.astype(np.int32)
        if self._seq2seq:
            inputs = {"attention_mask": mask, "decoder_input_ids": ids}
            return {**inputs, "decoder_attention_mask": seen, "slot": slot, "state": state}
        inputs = {"input_ids": ids, "attention_mask": seen, "position_ids": positions[:, None]}
        return {**inputs, "slot": slot, "state": state}


class WholeEngine:
    """Runs the whole forward over a buffer of fixed length for every token.

    Args:
        model: the traced forward.
        about: see `Decoder.about`.
    """

    def __init__(self, model: TracedModule, about: Mapping[str, Any]):
        self._model, self._limit = model, about["position_limit"]
        self._seq2seq, self._positions = about["seq2seq"], about["positions"]

    def fill(
        self, bundle: Bundle, prompts: np.ndarray, real: np.ndarray, new: int, source: Any
    ) -> Filled:
        """Put prompts [N, P] into the buffer; `source` is an encoder's ids and mask."""
        lengths = real.sum(axis=1).astype(np.int32)
        width = int(lengths.max()) if self._positions else prompts.shape[1]
        slots = bucket(width + new)
        if self._limit is not None:
            slots = max(min(slots, self._limit), width + new)
        ids, mask = left_padded(prompts, real, width)
        room = ((0, 0), (0, slots - width))
        buffer, visible = jnp.pad(jnp.asarray(ids), room), np.pad(mask, room)
        layers = {"buffer": buffer}
        if self._seq2seq:
            source_ids, source_mask = source_padded(source, self._limit)
            layers |= {"ids": jnp.asarray(source_ids), "mask": jnp.asarray(source_mask)}
        logits = _whole(self, bundle.variables, layers, jnp.asarray(visible), width - 1)
        return Filled(logits, layers, visible, width, lengths)

    def weights(self, bundle: Bundle) -> Any:
        """Return the bundle's variables."""
        return bundle.variables

    def renewal(self, longest: int) -> int | None:
        """Return None: what was traced keeps its cache."""
        return None

    def reordered(self, layers: Any, index: jax.Array) -> Any:
        """Return the cache with its rows in the order of `index` [N]."""
        return jax.tree.map(lambda leaf: leaf[index], layers)

    def step(
        self,
        weights: Any,
        layers: Any,
        *,
        tokens: jax.Array,
        positions: jax.Array,
        visible: jax.Array,
        slot: jax.Array,
    ) -> tuple[jax.Array, Any]:
        """Return the logits [N, V] that follow one more token a row, and the buffer with it."""
        del positions
        layers = {**layers, "buffer": layers["buffer"].at[:, slot].set(tokens)}
        return self.logits(weights, layers, visible, slot), layers

    def logits(self, variables: Variables, layers: Any, visible: Any, slot: Any) -> jax.Array:
        """Return the float32 logits [N, V] of one slot."""
        if self._seq2seq:
            inputs = {"input_ids": layers["ids"], "attention_mask": layers["mask"]}
            inputs["decoder_input_ids"] = layers["buffer"]
        else:
            seen = visible.astype(jnp.int32)
            inputs = {"input_ids": layers["buffer"], "attention_mask": seen}
            if self._positions:
                inputs["position_ids"] = mask_positions(seen).astype(jnp.int32)
        output = self._model.apply(variables, **inputs)
        return output["logits"][:, slot].astype(jnp.float32)


@partial(jax.jit, static_argnums=(0, 3))
def _prompts_read(engine: CachedEngine, variables: Any, inputs: Any, slots: int) -> Any:
    return engine.read(variables, inputs, slots)


@partial(jax.jit, static_argnums=0, donate_argnums=2)
def _read_on(
    engine: CachedEngine, variables: Any, carried: Any, tokens: Any, slot: Any, count: Any
) -> Any:
    """Return the logits, cache and visible slots after `count` of `tokens` [N, T] from `slot`."""

    def advance(at: Any, carry: Any) -> Any:
        logits, layers, visible = carry
        visible = visible.at[:, slot + at].set(True)
        places = jnp.full(tokens.shape[:1], slot + at, jnp.int32)
        row = {"tokens": tokens[:, at], "positions": places, "visible": visible, "slot": slot + at}
        after, layers = engine.step(variables, layers, **row)
        return after.astype(logits.dtype), layers, visible

    return jax.lax.fori_loop(0, count, advance, carried)


def common_width(length: int) -> int:
    """Return the greatest width up to `length` that other prompts share, an eighth below at most.

    Eight a power of two, and multiples of 8 below 128; a prompt below 8 has its own.
    """
    step = max(8, (1 << (length.bit_length() - 1)) // 8)
    return length if length < 8 else length // step * step


@partial(jax.jit, static_argnums=0)
def _whole(engine: WholeEngine, variables: Any, layers: Any, visible: Any, slot: Any) -> Any:
    return engine.logits(variables, layers, visible, slot)


def generate_traced(
    bundle: Any,
    input_ids: Any,
    attention_mask: Any = None,
    *,
    streamer: Streamer | None = None,
    **options: Any,
) -> np.ndarray:
    """Continue each prompt, or answer it where an encoder reads it; see `TracedBundle.generate`.

    Args:
        bundle: a bundle of a `WritingModule`.
        input_ids: [N, P].
        attention_mask: [N, P] or None.
        streamer: told of the prompts and of each step's ids as they come.
        **options: the fields of `GenerationOptions`; `decoder_start_token_id`,
            `forced_bos_token_id` and `forced_eos_token_id`.

    Returns:
        int32 [N * num_return_sequences, P + T]; after an encoder [.., 1 + T], beginning with the
        start id.

    Raises:
        InputRefused: as `Bundle.generate`; a model that does not write text.
    """
    about = bundle.model.decoder.about
    limits = Limits(about["input_size"], about["position_limit"])
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    prompts, real = checked_prompts(limits, inputs)
    if about["seq2seq"]:
        return answered(bundle, prompts, real, streamer=streamer, **options)
    settings, forced = forced_options(bundle, options)
    prompts, real = (np.repeat(part, settings.copies, axis=0) for part in (prompts, real))
    return continued(bundle, settings, prompts, real, streamer=streamer, forced=forced)[0]
