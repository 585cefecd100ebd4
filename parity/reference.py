"""The torch side of every check: the one module of parity that imports torch and transformers.

"Exact" runs are float64 throughout. transformers computes norms, rotary angles and softmaxes in
float32 whatever the weights are, so an exact run also turns those requests into float64 ones.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    """

    source: Path
    own_class: bool = False
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
        with _quiet():
            return AutoTokenizer.from_pretrained(folder, **extra)


def versions() -> dict[str, str]:
    """Return the versions of the reference libraries."""
    import torch
    import transformers

    return {"torch": str(torch.__version__), "transformers": str(transformers.__version__)}


def tensors(model: Any) -> dict[str, np.ndarray]:
    """Return the model's parameters by the names of its checkpoint, tied ones once.

    The arrays are float64 or float32, as the model is.
    """
    return _as_stored(model, dict(model.named_parameters()))


def config(model: Any) -> dict[str, Any]:
    """Return the configuration that transformers made of config.json."""
    return model.config.to_dict()


def logits(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    """Return logits [N, L, V] in the model's precision; positions count the real tokens.

    Args:
        model: from `Checkpoint.model`.
        input_ids: int [N, L].
        attention_mask: int [N, L], 1 at real tokens; padding may stand on either side.
    """
    import torch

    with torch.no_grad(), _precision_of(model):
        return _array(_forward(model, input_ids, attention_mask))


def token_losses(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> np.ndarray:
    """Return the loss in nats of each token given those before it, [N, L - 1]; 0 where not real."""
    import torch

    with torch.no_grad(), _precision_of(model):
        return _array(_token_losses(model, input_ids, attention_mask))


def loss_and_gradients(
    model: Any, input_ids: np.ndarray, attention_mask: np.ndarray
) -> tuple[float, dict[str, np.ndarray]]:
    """Return the mean loss per counted target in nats, and each parameter's gradient by name."""
    model.zero_grad(set_to_none=True)
    with _precision_of(model):
        loss = _mean_loss(model, input_ids, attention_mask)
        loss.backward()
    named = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    gradients = _as_stored(model, named)
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), gradients


def adamw_steps(
    model: Any, batches: Sequence[tuple[np.ndarray, np.ndarray]], settings: AdamW
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Take one AdamW step a batch, in place.

    Args:
        model: from `Checkpoint.fresh_model`; every parameter is trained and decayed.
        batches: pairs of input_ids [N, L] and attention_mask [N, L].
        settings: the optimizer's numbers.

    Returns:
        The loss before each step, and by name the root mean square gradient of every value, as
        the optimizer's second moment weighs the steps.
    """
    import torch

    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        foreach=False,
    )
    losses = []
    for input_ids, attention_mask in batches:
        optimizer.zero_grad(set_to_none=True)
        with _precision_of(model):
            loss = _mean_loss(model, input_ids, attention_mask)
            loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    weight = 1 - settings.beta2 ** len(batches)
    sizes = {
        name: (optimizer.state[tensor]["exp_avg_sq"] / weight).sqrt()
        for name, tensor in model.named_parameters()
        if tensor in optimizer.state
    }
    return losses, _as_stored(model, sizes)


def greedy(
    model: Any, input_ids: np.ndarray, attention_mask: np.ndarray, *, new_tokens: int
) -> np.ndarray:
    """Return int [N, L + new] from `generate` without sampling, every other setting left alone."""
    import torch

    _forget_lengths(model)
    with torch.no_grad(), _precision_of(model), _quiet():
        out = model.generate(
            torch.tensor(np.asarray(input_ids, np.int64)),
            attention_mask=torch.tensor(np.asarray(attention_mask, np.int64)),
            max_new_tokens=new_tokens,
            do_sample=False,
        )
    return out.numpy()


def save_random(config: Mapping[str, Any], directory: Path, *, seed: int) -> Path:
    """Write a model with random weights as transformers writes one, and return its folder.

    Weights are drawn so that a wrong port shows: no bias is 0, no norm scale is 1, and kernels
    are large enough for attention to prefer some positions.

    Args:
        config: a config.json, with its `model_type`; of a causal language model, where it names
            no `architectures`.
        directory: where to write.
        seed: of the numpy generator that draws every tensor in name order.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    options = dict(config)
    with _quiet():
        made = AutoConfig.for_model(options.pop("model_type"), **options)
        named = [_class_named(str(name)) for name in made.architectures or ()]
        model = named[0](made) if named else AutoModelForCausalLM.from_config(made)
        model = model.float()
    generator = np.random.default_rng(seed)
    with torch.no_grad():
        for name, tensor in sorted(model.named_parameters()):
            tensor.copy_(torch.tensor(_drawn(name, tuple(tensor.shape), generator)))
    with _quiet():
        model.save_pretrained(directory)
    return Path(directory)


def _drawn(name: str, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    noise = generator.standard_normal(shape).astype(np.float32)
    if len(shape) == 1:
        return np.float32(0.2) * noise + np.float32(name.endswith("weight"))
    if any(part in name for part in ("embed_tokens", "wte", "wpe", "lm_head")):
        return np.float32(0.3) * noise
    return np.float32(1.5 / np.sqrt(min(shape))) * noise


def _as_stored(model: Any, named: Mapping[str, Any]) -> dict[str, np.ndarray]:
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
    kind = _own_class(source) if own_class else _class_named("AutoModelForCausalLM")
    # The bar of GGUF reading heeds no setting.
    with _quiet(), contextlib.redirect_stderr(io.StringIO()):
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
    if precision == EXACT:
        _recompute_rotary_tables(model)
    return model, info


def _own_class(folder: Path) -> Any:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    named = [_class_named(str(name)) for name in config.get("architectures") or ()]
    return next((kind for kind in named if kind is not None), _class_named("AutoModel"))


def _class_named(name: str) -> Any:
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


def _positions(attention_mask: np.ndarray) -> np.ndarray:
    return np.maximum(np.cumsum(attention_mask, axis=-1) - 1, 0)


def _forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
    import torch

    mask = np.asarray(attention_mask, np.int64)
    _forget_lengths(model)
    # GPT-2 counts padding as positions unless it is told.
    given = inputs_by_name(
        np.asarray(input_ids, np.int64), mask, _positions(mask), model.config.to_dict()
    )
    tensors = {name: torch.tensor(value) for name, value in given.items()} | {"use_cache": False}
    known = inspect.signature(model.forward).parameters
    return first_output(model(**{k: v for k, v in tensors.items() if k in known}))


def inputs_by_name(
    input_ids: Any, attention_mask: Any, position_ids: Any, config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the inputs of a batch by transformers' names; a decoder reads what its encoder does.

    Args:
        input_ids: [N, L].
        attention_mask: [N, L].
        position_ids: [N, L].
        config: the model's.
    """
    given = {"input_ids": input_ids, "attention_mask": attention_mask}
    if config.get("is_encoder_decoder"):
        return {
            **given,
            "decoder_input_ids": input_ids,
            "decoder_attention_mask": attention_mask,
        }
    return {**given, "position_ids": position_ids}


def first_output(outputs: Mapping[str, Any]) -> Any:
    """Return a model's logits, or its first output where it has none."""
    named = [name for name in ("logits", "start_logits", "last_hidden_state") if name in outputs]
    return outputs[named[0]] if named else next(iter(outputs.values()))


def _token_losses(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
    import torch

    # The last token is a target only: its own position may not exist.
    scores = _forward(model, input_ids[:, :-1], attention_mask[:, :-1])
    if not scores_tokens(scores.shape, input_ids.shape, model.config.to_dict()):
        counted = _counted(attention_mask)
        by_token = scores.shape[:2] == counted.shape
        means = scores.square().reshape(*(counted.shape if by_token else (len(scores), 1)), -1)
        means = means.mean(-1)
        return torch.where(counted, means, torch.zeros_like(means))
    targets = torch.tensor(np.asarray(input_ids, np.int64))[:, 1:]
    losses = torch.nn.functional.cross_entropy(
        scores.reshape(-1, scores.shape[-1]), targets.reshape(-1), reduction="none"
    ).reshape(targets.shape)
    return torch.where(_counted(attention_mask), losses, torch.zeros_like(losses))


def scores_tokens(shape: Sequence[int], rows: Sequence[int], config: Mapping[str, Any]) -> bool:
    """Tell whether an output of `shape` for rows [N, L + 1] is logits of the next token."""
    vocabulary = {**config, **(config.get("text_config") or {})}.get("vocab_size")
    return tuple(shape) == (rows[0], rows[1] - 1, vocabulary)


def _mean_loss(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
    losses = _token_losses(model, input_ids, attention_mask)
    return losses.sum() / _counted(attention_mask).sum()


def _counted(attention_mask: np.ndarray) -> Any:
    """A target counts when it and the token before it are real."""
    import torch

    real = torch.tensor(np.asarray(attention_mask) != 0)
    return real[:, 1:] & real[:, :-1]


def _array(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy().copy()


@contextlib.contextmanager
def _precision_of(model: Any) -> Iterator[None]:
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
def _quiet() -> Iterator[None]:
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
