"""The torch side of the checks: transformers' models, what they hold and what they give.

"Exact" runs are float64 throughout. transformers computes norms, rotary angles and softmaxes in
float32 whatever the weights are, so an exact run also turns those requests into float64 ones.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

EXACT = "float64"
SINGLE = "float32"


@dataclass(frozen=True)
class AdamW:
    """The settings of one optimizer run, the same numbers for torch and for optax."""

    learning_rate: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 1e-2


@dataclass
class Checkpoint:
    """A checkpoint as transformers reads it: a Hugging Face folder, or one GGUF file.

    Models are kept once read, one a precision, until `release`.

    Args:
        source: the folder or the file.
        own_class: read it by the class that config.json names, or the bare model; else as a
            causal language model.
        fixed: do not train the tables that transformers does not save. It makes them so, but
            forgets it in `from_pretrained` (5.24), and what was trained is then lost.
    """

    source: Path
    own_class: bool = False
    fixed: bool = False
    _models: dict[str, Any] = field(default_factory=dict, repr=False)
    _report: dict[str, Any] | None = field(default=None, repr=False)

    def model(self, precision: str) -> Any:
        """Return the model with weights in `precision` ("float64" or "float32"), not training."""
        if precision not in self._models:
            self._models[precision] = self.fresh_model(precision)
        return self._models[precision]

    def fresh_model(self, precision: str) -> Any:
        """Return a model that nobody else holds, for runs that change its weights."""
        model, self._report = _from_pretrained(self.source, precision, self.own_class)
        unsaved = set(getattr(model, "_keys_to_ignore_on_save", None) or ()) if self.fixed else ()
        # A tied tensor stands here once, under the name that is saved.
        for name, tensor in model.named_parameters():
            if name in unsaved:
                tensor.requires_grad_(False)
        return model

    def loading_info(self) -> dict[str, list[str]]:
        """Return what transformers says of the files: missing, unexpected, mismatched keys."""
        if self._report is None:
            self.model(SINGLE)
        report = self._report or {}
        kinds = ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")
        return {kind: sorted(str(key) for key in report.get(kind, ())) for kind in kinds}

    def release(self) -> None:
        """Drop the models and the memory they hold."""
        self._models.clear()

    def tokenizer(self) -> Any:
        """Return transformers' tokenizer of the checkpoint."""
        from transformers import AutoTokenizer

        folder, extra = _address(self.source)
        with quiet():
            return AutoTokenizer.from_pretrained(folder, **extra)


def run_alone() -> None:
    """Let torch use one thread: over tiny models, several mostly wait for each other."""
    import torch

    torch.set_num_threads(1)


def versions() -> dict[str, str]:
    """Return the versions of the reference libraries."""
    import torch
    import transformers

    return {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}


def tensors(model: Any) -> dict[str, np.ndarray]:
    """Return the model's parameters by the names of its checkpoint, tied ones once.

    The arrays are float64 or float32, as the model is.
    """
    return as_stored(model, dict(model.named_parameters()))


def config(model: Any) -> dict[str, Any]:
    """Return the configuration that transformers made of config.json."""
    return model.config.to_dict()


def buffers(model: Any) -> dict[str, np.ndarray]:
    """Return the stored arrays that no optimizer moves, such as running statistics, by name."""
    state = model.state_dict()
    held = {name: state[name] for name, _ in model.named_buffers() if name in state}
    return {name: _array(value) for name, value in held.items() if value.is_floating_point()}


def outputs(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the output arrays by name, those of towers by names with a dot.

    Args:
        model: from `Checkpoint.model`; its precision is that of the outputs.
        inputs: by the names of its forward; those that it does not take are left out.
    """
    import torch

    with torch.no_grad(), precision_of(model):
        return {name: _array(value) for name, value in forward(model, inputs).items()}


def forward(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the output tensors by name; to be called under `precision_of`."""
    import torch

    _forget_lengths(model)
    known = inspect.signature(model.forward).parameters
    given: dict[str, Any] = {"use_cache": False} if "use_cache" in known else {}
    for name, value in with_positions(model, inputs).items():
        if name in known:
            tensor = torch.tensor(value)
            given[name] = tensor.to(model.dtype if tensor.is_floating_point() else torch.int64)
    return flat_outputs(model(**given))


def with_positions(model: Any, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the inputs with the positions of the real tokens, for a model that writes.

    GPT-2 counts padding as positions unless it is told.
    """
    mask = inputs.get("attention_mask")
    told = "position_ids" in inputs or getattr(model.config, "is_encoder_decoder", False)
    if mask is None or "input_ids" not in inputs or told or not model.can_generate():
        return dict(inputs)
    return {**inputs, "position_ids": np.maximum(np.cumsum(mask, axis=-1) - 1, 0)}


def flat_outputs(outputs: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the floating arrays among a model's outputs, those of towers by names with a dot."""
    found: dict[str, Any] = {}
    for name, value in outputs.items():
        if hasattr(value, "items"):
            found |= flat_outputs(value, f"{prefix}{name}.")
        elif getattr(value, "ndim", 0) and "float" in str(value.dtype):
            found[prefix + name] = value
    return found


def generated(model: Any, inputs: Mapping[str, np.ndarray], **options: Any) -> np.ndarray:
    """Return int [N, L + new] from `generate` without sampling, as the options ask."""
    import torch

    _forget_lengths(model)
    given = {
        name: torch.tensor(value.astype(np.int64) if value.dtype.kind == "i" else value)
        for name, value in inputs.items()
    }
    with torch.no_grad(), precision_of(model), quiet():
        return model.generate(**given, do_sample=False, **options).numpy()


def as_stored(model: Any, named: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return what belongs to the parameters by the names and in the pieces of the checkpoint.

    transformers 5 joins some tensors as it loads, such as those of experts, and parts them again
    as it saves; a tied one may bear the name of either side, and fixed tables are not saved.
    """
    from transformers.core_model_loading import revert_weight_conversion

    tied = getattr(model, "all_tied_weights_keys", None) or {}
    fixed = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    kept = {tied.get(n, n): t.detach() for n, t in named.items() if n not in fixed}
    stored = revert_weight_conversion(model, kept)
    return {name: _array(tensor) for name, tensor in stored.items()}


def _address(source: Path) -> tuple[str, dict[str, str]]:
    """Return the folder and the extra arguments that make transformers read `source`."""
    if source.is_file():
        return str(source.parent), {"gguf_file": source.name}
    return str(source), {}


def _from_pretrained(source: Path, precision: str, own_class: bool) -> tuple[Any, dict[str, Any]]:
    import torch

    folder, extra = _address(source)
    kind = _own_class(source) if own_class else class_named("AutoModelForCausalLM")
    # The bar of GGUF reading heeds no setting.
    with quiet(), contextlib.redirect_stderr(io.StringIO()):
        read: Any = kind.from_pretrained(
            folder,
            dtype=getattr(torch, precision),
            output_loading_info=True,
            local_files_only=True,
            **extra,
        )
    model, info = read
    if precision == EXACT and model._can_set_experts_implementation():
        # The fused product of experts has no float64 form.
        model.set_experts_implementation("eager")
    model.eval()
    with torch.no_grad():
        # Tensors that lie in a mapped file are aligned by chance, and torch's convolutions round
        # by where they lie.
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.data = tensor.data.clone()
    if precision == EXACT:
        _recompute_rotary_tables(model)
    return model, info


def _own_class(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    named = [class_named(str(name)) for name in config.get("architectures") or ()]
    return next((kind for kind in named if kind is not None), class_named("AutoModel"))


def class_named(name: str) -> Any:
    """Return what transformers calls by a name, or None."""
    import transformers

    return getattr(transformers, name, None)


def _recompute_rotary_tables(model: Any) -> None:
    """Give rotary modules frequencies computed in float64, not float32 ones widened."""
    import torch

    for module in model.modules():
        if not hasattr(module, "original_inv_freq"):
            continue
        torch.set_default_dtype(torch.float64)
        try:
            with _double_throughout():
                fresh = type(module)(module.config)
        finally:
            torch.set_default_dtype(torch.float32)
        module.inv_freq = fresh.inv_freq.double()
        module.original_inv_freq = fresh.original_inv_freq.double()


def _forget_lengths(model: Any) -> None:
    """Undo dynamic rotary scaling: transformers keeps the frequencies of its longest sequence."""
    for module in model.modules():
        if hasattr(module, "original_inv_freq"):
            module.inv_freq = module.original_inv_freq.clone()
            module.max_seq_len_cached = module.original_max_seq_len


def _array(tensor: Any) -> np.ndarray:
    import torch

    # numpy has no bfloat16; float32 holds each of its values.
    tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return tensor.detach().cpu().numpy().copy()


@contextlib.contextmanager
def precision_of(model: Any) -> Iterator[None]:
    """Compute in float64 throughout where the model's weights are float64."""
    import torch

    if next(model.parameters()).dtype == torch.float64:
        with _double_throughout():
            yield
    else:
        yield


def _double_throughout() -> Any:
    """Return a mode under which every request for float32 gives float64."""
    import torch
    from torch.overrides import TorchFunctionMode

    def widened(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    class DoubleThroughout(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func is torch.Tensor.float:
                func = torch.Tensor.double
            named = {name: widened(value) for name, value in (kwargs or {}).items()}
            return func(*(widened(value) for value in args), **named)

    return DoubleThroughout()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' bars, advice and warnings off the report."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
