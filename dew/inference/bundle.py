"""The bundle: a model, its variables, and what a checkpoint says about how to use them."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import numpy as np

from dew.inference.model_inputs import checked_inputs
from dew.typing import TextProcessor, Variables


@dataclasses.dataclass(frozen=True, eq=False)
class Bundle:
    """One loaded model: what `bridges.load` returns and every task takes.

    Calling it takes Hugging Face's input names and gives a dict of its output names. The
    compiled function is cached by the model's definition and the shapes, so a second bundle
    of the same architecture compiles nothing.

    Attributes:
        model: the linen module.
        variables: its variables, `{"params": ..., other collections}`.
        config: the checkpoint's `config.json` as it was read.
        processor: the checkpoint's tokenizer, or None where it carries none.
        family: Hugging Face's `model_type`.
        generation_config: `generation_config.json` as it was read, empty where absent.
        source: where it came from, for messages.
        adapter: the adapter laid over the base weights, or None.
        stored: what the loader remembers of the source's tensors, so that an export gives the
            same names and dtypes back.
    """

    model: Any
    variables: Variables
    config: dict = dataclasses.field(default_factory=dict)
    processor: TextProcessor | None = None
    family: str = ""
    generation_config: dict = dataclasses.field(default_factory=dict)
    source: str = ""
    adapter: Any = None
    stored: Any = None

    def __call__(self, **inputs: Any) -> dict[str, jax.Array]:
        """Run the model once, jitted.

        Args:
            **inputs: those of `model.input_names`. A causal language model takes `input_ids`
                [N, L], integers below the vocabulary's size; `attention_mask` [N, L] (1 = real,
                0 = padding on either side; all real if absent); `position_ids` [N, L] (counted
                from the mask if absent).

        Returns:
            What the model's `outputs` gives, by Hugging Face's names: a causal language model
            `{"logits": [N, L, V]}`.

        Raises:
            InputRefused: an unknown input name, a wrong shape or type, an empty prompt, an id
                outside the vocabulary, a position past the model's last.
        """
        return _jitted_forward(self.model, self.variables, checked_inputs(self.model, inputs))

    def apply(self, variables: Variables, **inputs: Any) -> dict[str, jax.Array]:
        """Return the outputs for other variables: pure, to be jitted or differentiated.

        Args:
            variables: laid out as `self.variables`.
            **inputs: as for a call; under `jit`, where values are not known, only names and
                shapes are checked.

        Returns:
            As a call.

        Raises:
            InputRefused: as for a call.
        """
        return _forward(self.model, variables, checked_inputs(self.model, inputs))

    def generate(
        self, input_ids: Any = None, attention_mask: Any = None, **options: Any
    ) -> np.ndarray:
        """Continue each prompt; names and defaults are those of transformers' `generate`.

        Args:
            input_ids: [N, P] prompt ids, padded on either side.
            attention_mask: [N, P], 1 = real. Absent: every id is real.
            **options: the fields of `dew.inference.generation.GenerationOptions`; what is not
                given comes from the checkpoint's `generation_config`.

        Returns:
            int32 [N, P + T]: the prompt as given, then the new ids; a row that ended carries its
            end id once and then padding. Where an encoder reads the prompts [N, 1 + T]: the start
            id, then the new ones. Where it reads spectrograms, the arguments and the result are
            those of `dew.inference.transcription.transcribed`.

        Raises:
            InputRefused: as for a call, and an unknown or out-of-range option.
        """
        if "input_features" in self.model.input_names:
            from dew.inference.transcription import transcribed

            features = options.pop("input_features", input_ids)
            return transcribed(self, features, attention_mask, **options)
        if "text2text-generation" in self.tasks:
            from dew.inference.answering import answered
            from dew.inference.model_inputs import checked_source

            prompts, real = checked_source(self.model, input_ids, attention_mask)
            return answered(self, prompts, real, **options)
        from dew.inference.decode import generate

        return generate(self, input_ids, attention_mask, **options)

    @property
    def tokenizer(self) -> TextProcessor | None:
        """The processor, where it reads texts."""
        return self.processor if hasattr(self.processor, "encode") else None

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        return self.model.tasks

    def replace(self, **changes: Any) -> Bundle:
        """Return this bundle with some fields changed."""
        return dataclasses.replace(self, **changes)


@partial(jax.jit, static_argnums=0)
def _jitted_forward(model: Any, variables: Variables, inputs: dict[str, jax.Array]):
    return _forward(model, variables, inputs)


def _forward(model: Any, variables: Variables, inputs: dict[str, jax.Array]):
    return model.apply(variables, **inputs, method="outputs")
