"""Checkpoints of model types without a native family: traced from transformers' own classes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import warnings
from collections.abc import Mapping
from functools import cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from bridges.assets import cache_directory
from bridges.files.tensors import open_tensors
from bridges.files.writer import write_file
from bridges.torch.graph import FORMAT
from bridges.torch.module import TracedModule, Tracer
from bridges.torch.store import (
    fingerprint,
    keep_program,
    kept_programs,
    read_arrays,
    write_arrays,
)
from dew.errors import InputRefused, WeightMismatch, listed, shown
from dew.inference.bundle import Bundle

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
RECORD, BUFFERS = "module.json", "buffers.safetensors"


@dataclasses.dataclass(frozen=True, eq=False)
class TracedBundle(Bundle):
    """A loaded model whose computation was traced from torch.

    It takes and gives Hugging Face's names, as every bundle does: all inputs of the model's own
    forward, all of its outputs. `variables` hold `params` and `buffers` by torch's names.
    """

    def __call__(self, **inputs: Any) -> dict[str, Any]:
        """Run the model once, jitted.

        Args:
            **inputs: arrays by the names of the model's forward.

        Returns:
            The outputs that are not None, by their names.
        """
        return _named(self.traced(**_given(inputs)))

    def apply(self, variables: Any, **inputs: Any) -> dict[str, Any]:
        """Return the outputs for other variables: pure, to be jitted or differentiated."""
        return _named(self.model.apply(variables, **_given(inputs)))

    def generate(self, input_ids: Any, attention_mask: Any = None, **options: Any) -> np.ndarray:
        """Refuse: a traced model does not write text yet.

        Raises:
            InputRefused: always.
        """
        raise InputRefused(
            f"{self.family} is traced from torch, and traced models do not generate yet; call "
            "the bundle for its logits"
        )

    @cached_property
    def traced(self) -> TracedModule:
        """The model with this bundle's variables."""
        return self.model.holding(self.variables)


def load_traced(
    path: Path,
    config: dict[str, Any],
    *,
    source: str,
    processor: Any,
    generation_config: dict[str, Any],
    dtype: str,
) -> TracedBundle:
    """Load a checkpoint through transformers' class for it, traced where it is first called.

    What was traced is kept under dew's cache, by config and versions: a later start that calls
    for the same lengths reads the weights and the trace without importing torch.

    Args:
        path: the folder.
        config: its config.json.
        source: what the user named.
        processor: its tokenizer, or None.
        generation_config: its generation_config.json.
        dtype: what the parameters are stored and computed in.

    Raises:
        InputRefused: transformers is absent, or does not know the model type either, or the
            checkpoint needs code of its own.
        WeightMismatch: missing or left-over tensors; all are named.
    """
    folder = _home(config, dtype)
    made = _Made(path, config, dtype)
    record = _record(folder)
    if record is None:
        variables, canonical = made.variables()
        record = made.described(variables)
        _keep(folder, record, variables)
    else:
        variables, canonical = _read(path, folder, record, dtype), record["canonical"]
    tracer = Tracer(
        made.module, canonical, kept_programs(folder), keep=partial(keep_program, folder)
    )
    return TracedBundle(
        model=TracedModule(tracer, variables),
        variables=variables,
        config=config,
        processor=processor,
        family=str(config.get("model_type")),
        generation_config=generation_config,
        source=source,
        stored=record,
    )


def is_traceable(config: Mapping[str, Any], dtype: str) -> bool:
    """Tell whether the installed transformers has a class for a config's model type.

    Its table of types is looked through as a text: importing transformers takes seconds, and a
    name that is refused should not cost them.
    """
    name = str(config.get("model_type"))
    if "auto_map" in config or not _NAME.fullmatch(name):
        return False
    if _record(_home(config, dtype)) is not None:
        return True
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return False
    auto = Path(found.origin).parent / "models" / "auto"
    tables = (auto / "auto_mappings.py", auto / "configuration_auto.py")
    return any(f'"{name}", "' in table.read_text("utf-8") for table in tables if table.is_file())


class _Made:
    """The torch module of a checkpoint, made when it is first wanted."""

    def __init__(self, path: Path, config: Mapping[str, Any], dtype: str):
        self._path, self._config, self._dtype = path, config, dtype
        self._module: Any = None

    def module(self) -> Any:
        """Return the torch module with the checkpoint's weights.

        Raises:
            ImportError: torch or transformers is absent.
        """
        if self._module is None:
            self._module = self._loaded()
        return self._module

    def variables(self) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        """Return its weights as JAX arrays, and every name to the one it is kept under."""
        from bridges.torch.tracing import canonical_names, variables_of

        try:
            module = self.module()
        except ImportError as error:
            raise InputRefused(
                f"model type {shown(self._config.get('model_type'))} has no native family in dew; "
                f'tracing it needs {error}: pip install "dew[torch]"'
            ) from error
        canonical = canonical_names(module)
        return variables_of(module, canonical), canonical

    def described(self, variables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Return what a later start must know of the module: which tensor each weight is."""
        from bridges.torch.tracing import canonical_names

        module = self.module()
        canonical = canonical_names(module)
        leaves = {**variables["buffers"], **variables["params"]}
        tensors = open_tensors(self._path)
        known, prefix = set(tensors.names()), f"{module.base_model_prefix}."
        stored: dict[str, tuple[str, str]] = {}
        for name in module.state_dict():
            value = leaves[str(canonical.get(name, name))]
            found = [n for n in (name, name.removeprefix(prefix), prefix + name) if n in known]
            if found and _equal(tensors.read(found[0]), value):
                stored[name] = (found[0], tensors.info(found[0]).dtype.name)
        held = {canonical.get(name, name) for name in stored}
        own = {canonical.get(name, name) for name in module.state_dict()}
        return {
            "canonical": canonical,
            "params": list(variables["params"]),
            "stored": stored,
            "direct": own <= held,
        }

    def _loaded(self) -> Any:
        import transformers

        kind = _class_of(self._config)
        options = {"attn_implementation": "eager", "output_loading_info": True}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                module, said = kind.from_pretrained(
                    self._path, dtype=self._dtype, use_safetensors=True, **options
                )
            except ValueError as error:
                if "eager" not in str(error) and "attention" not in str(error):
                    raise
                del options["attn_implementation"]
                module, said = kind.from_pretrained(
                    self._path, dtype=self._dtype, use_safetensors=True, **options
                )
        problems = [f"missing  {name}" for name in sorted(said["missing_keys"])]
        problems += [f"misshapen  {text}" for text in map(str, said.get("mismatched_keys") or ())]
        if problems:
            raise WeightMismatch(listed(f"{self._path}: the weights do not fit:", problems))
        for part in (module.config, getattr(module.config, "text_config", None)):
            if getattr(part, "use_cache", False):
                setattr(part, "use_cache", False)  # noqa: B010  (a config of any class)
        if isinstance(module, transformers.PreTrainedModel):
            module.requires_grad_(True)
        return module.eval()


def _class_of(config: Mapping[str, Any]) -> Any:
    """Return transformers' class for a config: its architecture, else the bare model."""
    import transformers

    for architecture in config.get("architectures") or ():
        kind = getattr(transformers, str(architecture), None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind
    return transformers.AutoModel


def _home(config: Mapping[str, Any], dtype: str) -> Path:
    """Return the folder that keeps what was traced for a config."""
    return cache_directory() / "traces" / fingerprint(config, dtype, FORMAT, version("dew"))


def _record(folder: Path) -> dict[str, Any] | None:
    """Return what an earlier start kept, where weights can be read by it without torch."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if record.get("direct") else None


def _keep(folder: Path, record: Mapping[str, Any], variables: Mapping[str, Any]) -> None:
    """Keep the record, and the buffers that no checkpoint holds."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {record["canonical"].get(name, name) for name in record["stored"]}
    own = {name: value for name, value in variables["buffers"].items() if name not in held}
    aside = folder / f"{os.getpid()}.tmp"
    write_arrays(aside, own)
    os.replace(aside, folder / BUFFERS)
    write_file(aside, json.dumps(record).encode())
    os.replace(aside, folder / RECORD)


def _read(path: Path, folder: Path, record: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    tensors = open_tensors(path)
    absent = sorted({theirs for theirs, _ in record["stored"].values()} - set(tensors.names()))
    if absent:
        raise WeightMismatch(
            listed(f"{path}: the weights do not fit:", [f"missing  {n}" for n in absent])
        )
    params, buffers = {}, {n: jnp.asarray(v) for n, v in read_arrays(folder / BUFFERS).items()}
    for alias, (theirs, _) in record["stored"].items():
        name = record["canonical"].get(alias, alias)
        value = tensors.read(theirs)
        if jnp.issubdtype(value.dtype, jnp.floating):
            value = value.astype(dtype)
        home = params if name in record["params"] else buffers
        home[name] = jnp.array(value)
        tensors.release(theirs)
    return {"params": {name: params[name] for name in record["params"]}, "buffers": buffers}


def _equal(stored: np.ndarray, value: Any) -> bool:
    ours = np.asarray(value)
    return stored.shape == ours.shape and np.array_equal(stored.astype(ours.dtype), ours)


def _given(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if value is not None}


def _named(output: Any) -> dict[str, Any]:
    if isinstance(output, Mapping):
        return {name: value for name, value in output.items() if value is not None}
    return {"output": output}
