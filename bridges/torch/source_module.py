"""`SourceModule`: the torch module of a checkpoint, made when it is first wanted."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bridges.files.tensors import open_tensors
from bridges.torch.kinds import ModuleKinds
from dew.errors import InputRefused, UnknownName, WeightMismatch, listed, nearest, shown

TASK_KEYS = ("architectures", "id2label", "label2id", "problem_type")
"""What a task changes in a config."""
TASK_CLASSES = {
    "text-classification": ("SEQUENCE_CLASSIFICATION",),
    "token-classification": ("TOKEN_CLASSIFICATION",),
    "question-answering": ("QUESTION_ANSWERING",),
    "image-classification": ("IMAGE_CLASSIFICATION",),
    "automatic-speech-recognition": ("CTC", "SPEECH_SEQ_2_SEQ"),
    "text-generation": ("CAUSAL_LM",),
    "text2text-generation": ("SEQ_TO_SEQ_CAUSAL_LM",),
    "fill-mask": ("MASKED_LM",),
    "feature-extraction": (),
}
"""The pipeline's task to what transformers' tables of classes for it are called."""


def task_config(config: Mapping[str, Any], task: str | None) -> dict[str, Any]:
    """Return a config whose architecture does a task: its own where it does, else transformers'.

    Args:
        config: as it was read; it is not changed.
        task: the pipeline's, or None for whatever the config names.

    Raises:
        UnknownName: no such task.
        InputRefused: transformers has no class of that type for it, or is absent.
    """
    if task is None:
        return dict(config)
    if task not in TASK_CLASSES:
        raise UnknownName(f"unknown task {shown(task)}{nearest(task, TASK_CLASSES)}")
    try:
        from transformers.models.auto import modeling_auto
    except ImportError as error:
        raise InputRefused(f'tracing needs {error}: pip install "dew[torch]"') from error
    tables = [f"MODEL_FOR_{name}_MAPPING_NAMES" for name in TASK_CLASSES[task]]
    known: list[str] = []
    for name in tables or ["MODEL_MAPPING_NAMES"]:
        found = getattr(modeling_auto, name, {}).get(str(config.get("model_type")), ())
        known += [found] if isinstance(found, str) else list(found)
    if not known:
        raise InputRefused(
            f"transformers has no class of model type {shown(config.get('model_type'))} for {task}"
        )
    own = [str(name) for name in config.get("architectures") or ()]
    if set(own) & set(known):
        return dict(config)
    return {**config, "architectures": [known[0]]}


class SourceModule:
    """The torch module of a checkpoint, made when it is first wanted.

    Args:
        path: the checkpoint's folder.
        config: its config.json.
        dtype: of the parameters.
        filled: whether the module holds the checkpoint's weights; without them its shapes and
            its computation are the same, and no weight is read.
        fresh: whether `config` is that of a task and not the folder's, so that a head may be
            drawn anew where the checkpoint has none of its shape.
    """

    def __init__(
        self,
        path: Path,
        config: Mapping[str, Any],
        dtype: str,
        *,
        filled: bool = True,
        fresh: bool = False,
    ):
        self._path, self._config, self._dtype, self._filled = path, config, dtype, filled
        self._fresh = fresh
        self._module: Any = None
        self.drawn: tuple[str, ...] = ()

    def module(self) -> Any:
        """Return the torch module.

        Raises:
            ImportError: torch or transformers is absent.
        """
        if self._module is None:
            self._module = _ready(self._loaded() if self._filled else self._empty())
        return self._module

    def described(self) -> dict[str, Any]:
        """Return what a later start must know of the module: which tensor each weight is."""
        from bridges.torch.export import numpy_of

        module = self._needed()
        record = self.structure()
        canonical = record["canonical"]
        tensors = open_tensors(self._path)
        known, prefix = set(tensors.names()), f"{module.base_model_prefix}."
        stored: dict[str, tuple[str, str]] = {}
        dtypes: dict[str, str] = {}
        state = module.state_dict()
        for name, tensor in state.items():
            value = numpy_of(tensor)
            found = [n for n in (name, name.removeprefix(prefix), prefix + name) if n in known]
            found = found or [n for n in _saved_names(module, name, tensor) if n in known]
            if found and _equal(tensors.read(found[0]), value):
                stored[name] = (found[0], tensors.info(found[0]).dtype.name)
                dtypes[str(canonical.get(name, name))] = value.dtype.name
            elif name in self.drawn:
                stored[name] = (name, value.dtype.name)
                dtypes[str(canonical.get(name, name))] = value.dtype.name
        if self.drawn:
            # Beside a head the rest goes by its full names, or readers take it for another model.
            stored = {n: (_full(n, theirs, prefix), kind) for n, (theirs, kind) in stored.items()}
        held = {canonical.get(name, name) for name in stored}
        own = {canonical.get(name, name) for name in state}
        known_parts = {"stored": stored, "dtypes": dtypes, "direct": own <= held}
        drawn = {"drawn": list(self.drawn)} if self.drawn else {}
        return {**record, **known_parts, **drawn, "reads_ahead": _reads_ahead(module)}

    def structure(self) -> dict[str, Any]:
        """Return what holds of the module whatever its weights are."""
        module = self._needed()
        kinds = ModuleKinds.of(module)
        canonical = dict(kinds.canonical)
        return {
            "canonical": canonical,
            "params": [n for n, _ in module.named_parameters() if canonical.get(n, n) == n],
            "inputs": list(inspect.signature(module.forward).parameters),
            "generates": bool(module.can_generate()),
            **kinds.to_record(),
        }

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the module's buffers by torch's names."""
        return {name: value for part, name, value in self.weights() if part == "buffers"}

    def weights(self) -> Iterator[tuple[str, str, np.ndarray]]:
        """Yield each weight with its collection and the name it is kept under."""
        from bridges.torch.export import numpy_of

        for part, name, tensor in self._tensors():
            yield part, name, np.array(numpy_of(tensor))

    def shapes(self) -> dict[str, dict[str, Any]]:
        """Return the shapes of the weights, laid out as the variables."""
        from bridges.torch.export import numpy_of

        found: dict[str, dict[str, Any]] = {"params": {}, "buffers": {}}
        for part, name, tensor in self._tensors():
            array = numpy_of(tensor)
            found[part][name] = jax.ShapeDtypeStruct(array.shape, array.dtype)
        return found

    def _tensors(self) -> Iterator[tuple[str, str, Any]]:
        from bridges.torch.tracing import canonical_names

        module = self._needed()
        canonical = canonical_names(module)
        named = {"params": module.named_parameters(), "buffers": module.named_buffers()}
        for part, pairs in named.items():
            for name, tensor in pairs:
                if canonical.get(name, name) == name:
                    yield part, name, tensor

    def _needed(self) -> Any:
        try:
            return self.module()
        except ImportError as error:
            raise InputRefused(
                f"model type {shown(self._config.get('model_type'))} has no native family in dew; "
                f'tracing it needs {error}: pip install "dew[torch]"'
            ) from error

    def _loaded(self) -> Any:
        import torch

        kind = _class_of(self._config)
        options: dict[str, Any] = {"output_loading_info": True, "trust_remote_code": False}
        if self._fresh:
            options |= {"config": self._settings(), "ignore_mismatched_sizes": True}

        def made(**more: Any) -> Any:
            return kind.from_pretrained(
                self._path, dtype=self._dtype, use_safetensors=True, **options, **more
            )

        with _quietly(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # of a head that is drawn
            module, said = _with_plain_attention(made)
        missing = set(said["missing_keys"])
        other = {key[0] if isinstance(key, tuple) else str(key): key for key in _misshapen(said)}
        if self._fresh:
            base = f"{module.base_model_prefix}."
            self.drawn = tuple(sorted(n for n in missing | set(other) if not n.startswith(base)))
        problems = [f"missing  {name}" for name in sorted(missing - set(self.drawn))]
        problems += [f"misshapen  {key}" for name, key in other.items() if name not in self.drawn]
        if problems:
            raise WeightMismatch(listed(f"{self._path}: the weights do not fit:", problems))
        if self.drawn:
            warnings.warn(
                f"not in the checkpoint, drawn anew for training: {', '.join(self.drawn)}",
                stacklevel=6,
            )
        return module

    def _settings(self) -> Any:
        """Return the config of the task, as transformers' own value."""
        import transformers

        given = {name: self._config[name] for name in TASK_KEYS if name in self._config}
        if "id2label" in given:
            given["id2label"] = {int(number): name for number, name in given["id2label"].items()}
        return transformers.AutoConfig.from_pretrained(self._path, trust_remote_code=False, **given)

    def _empty(self) -> Any:
        import torch
        from transformers.initialization import no_init_weights

        kind = _class_of(self._config)
        if self._fresh:
            settings = self._settings()
        else:
            settings = _config_class(kind, self._config).from_pretrained(self._path)
        make = getattr(kind, "_from_config", None) or kind.from_config
        with _quietly(), no_init_weights():
            module = _with_plain_attention(
                lambda **more: make(settings, dtype=getattr(torch, self._dtype), **more)
            )
        module.tie_weights()  # left out along with the first values
        return module


def _ready(module: Any) -> Any:
    """Return a module that keeps no cache and whose weights have gradients."""
    import transformers

    for part in (module.config, getattr(module.config, "text_config", None)):
        if getattr(part, "use_cache", False):
            setattr(part, "use_cache", False)  # noqa: B010  (a config of any class)
    if isinstance(module, transformers.PreTrainedModel):
        module.requires_grad_(True)
    return module.eval()


def _with_plain_attention(made: Any) -> Any:
    """Call `made` for eager attention, whose operators are plain ones, where the class has it."""
    try:
        return made(attn_implementation="eager")
    except ValueError as error:
        if "eager" not in str(error) and "attention" not in str(error):
            raise
    return made()


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out transformers' warnings and its progress bar, which a log would keep."""
    from transformers.utils import logging

    shown_before, told_before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # what is missing or left over is told here
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(told_before)
        if shown_before:
            logging.enable_progress_bar()


def _reads_ahead(module: Any) -> bool | None:
    """Tell whether a module's logits depend on later ids, as those of an encoder do.

    Returns:
        None where ids alone do not run it, or it gives no logits.
    """
    import torch

    if getattr(module.config, "is_encoder_decoder", False) or not module.can_generate():
        return None
    ids = torch.tensor([[4, 5, 6, 7, 8, 9], [4, 5, 6, 7, 8, 3]])
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logits = module(input_ids=ids).logits[:, :-1].double()
    except Exception:
        return None
    # Equal rows of a batch may differ by the order of sums.
    room = 100 * torch.finfo(module.dtype).eps * logits.abs().max()
    return bool((logits[0] - logits[1]).abs().max() > room)


def _class_of(config: Mapping[str, Any]) -> Any:
    """Return transformers' class for a config: its architecture, else the bare model."""
    import transformers

    for architecture in config.get("architectures") or ():
        kind = getattr(transformers, str(architecture), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
    return transformers.AutoModel


def _config_class(kind: Any, config: Mapping[str, Any]) -> Any:
    """Return the class of a model class's config."""
    import transformers

    known = getattr(kind, "config_class", None)
    return known or type(transformers.AutoConfig.for_model(str(config["model_type"])))


def _full(name: str, theirs: str, prefix: str) -> str:
    """Return a tensor's name with the prefix of the base model, where its own has it."""
    return prefix + theirs if name.startswith(prefix) and not theirs.startswith(prefix) else theirs


def _misshapen(said: Mapping[str, Any]) -> list[Any]:
    return list(said.get("mismatched_keys") or ())


def _equal(stored: np.ndarray, value: Any) -> bool:
    ours = np.asarray(value)
    return stored.shape == ours.shape and np.array_equal(stored.astype(ours.dtype), ours)


def _saved_names(module: Any, name: str, tensor: Any) -> list[str]:
    """Return what files call a tensor that transformers 5 renames; nothing where it joins some."""
    try:
        from transformers.core_model_loading import revert_weight_conversion

        return list(revert_weight_conversion(module, {name: tensor}))
    except Exception:
        # Part of a joined tensor has no name of its own, and that is told in many ways.
        return []
