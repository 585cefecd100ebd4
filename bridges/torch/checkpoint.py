"""Checkpoints of model types without a native family: traced from transformers' own classes."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from bridges.assets import cache_directory
from bridges.files.tensors import open_tensors
from bridges.files.writer import write_file
from bridges.torch.decoding import Decoder, WritingModule, generate_traced
from bridges.torch.graph import FORMAT
from bridges.torch.kinds import ModuleKinds
from bridges.torch.module import TracedModule, Tracer, Variables
from bridges.torch.parameter_axes import Axes, parameter_axes
from bridges.torch.source_module import SourceModule, task_config
from bridges.torch.store import (
    fingerprint,
    keep_program,
    kept_programs,
    read_arrays,
    write_arrays,
)
from dew.errors import WeightMismatch, listed
from dew.inference.bundle import Bundle
from dew.placement import LayoutRefused
from dew.placement.placement import Placement, put

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_POSITIONS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len")
RECORD, BUFFERS = "module.json", "buffers.safetensors"


class TextModule(WritingModule):
    """A checkpoint's traced module, with what a pipeline's task reads of a model of texts."""

    input_names: ClassVar[tuple[str, ...]] = ("input_ids", "attention_mask")
    counts_real_tokens: ClassVar[bool] = True

    def holding(self, variables: Variables) -> TextModule:
        """Return this module with other weights; both share what was traced."""
        return TextModule(self._tracer, variables, self.decoder)


@dataclasses.dataclass(frozen=True, eq=False)
class TracedBundle(Bundle):
    """A loaded model whose computation was traced from torch.

    It takes and gives Hugging Face's names, as every bundle does: all inputs of the model's own
    forward, all of its outputs. `variables` hold `params` and `buffers` by torch's names.

    Attributes:
        axes: the logical axes of the parameters that a mesh cuts by name; empty where it cuts
            each along its longest axis.
    """

    axes: Mapping[str, Axes] = dataclasses.field(default_factory=dict)

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
        """Continue each prompt; names and defaults are those of transformers' `generate`.

        The model's steps are traced when they are first wanted, and kept beside its other traces.

        Args:
            input_ids: [N, P] prompt ids, padded on either side; with an encoder, what it reads.
            attention_mask: [N, P], 1 = real. Absent: every id is real.
            **options: as for `Bundle.generate`; and `decoder_start_token_id`,
                `forced_bos_token_id` and `forced_eos_token_id`.

        Returns:
            As `Bundle.generate`; with an encoder int32 [N, 1 + T], which begin with the decoder's
            start id.

        Raises:
            InputRefused: as for `Bundle.generate`; a model without a language-model head, or
                whose own `generate` does more than to continue ids.
        """
        return generate_traced(self, input_ids, attention_mask, **options)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of the pipeline's tasks that the model is fit for."""
        writes = self.stored["generates"] and not self.config.get("is_encoder_decoder")
        return ("text-generation",) if writes else ()

    @property
    def position_limit(self) -> int | None:
        """How many positions the config gives the model, None where it names no number."""
        return self._number(*_POSITIONS)

    @property
    def vocab_size(self) -> int | None:
        """How many ids the config gives the model, None where it names no number."""
        return self._number("vocab_size")

    def _number(self, *names: str) -> int | None:
        config = {**self.config, **(self.config.get("text_config") or {})}
        return next((config[name] for name in names if isinstance(config.get(name), int)), None)

    def taken(self, **inputs: Any) -> dict[str, Any]:
        """Return those of `inputs` that the model's forward has a name for."""
        return {name: value for name, value in inputs.items() if name in self.stored["inputs"]}

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
    placement: Placement | None = None,
    task: str | None = None,
    fresh: bool = False,
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
        placement: where each weight goes; None puts all on the default device.
        task: the pipeline's task that the model is for, where it is not what the config says.
        fresh: whether a head of another task or of other labels may be drawn anew.

    Raises:
        InputRefused: transformers is absent, or does not know the model type either, or has no
            class of it for the task, or the checkpoint needs code of its own.
        WeightMismatch: missing or left-over tensors; all are named.
        LayoutRefused: the mesh does not cut the parameters.
    """
    config = task_config(config, task)
    folder = _home(config, dtype)
    made = SourceModule(path, config, dtype, fresh=fresh)
    record = _record(folder)
    if record is None:
        record = made.described()
        _keep(folder, record, made.buffers())
    # A head that was drawn is in no file, and the names of the rest are those of an export.
    direct = record["direct"] and not record.get("drawn")
    shapes = _shapes(path, folder, record) if direct else made.shapes()
    axes, places = _places(record, shapes, placement)
    weights = _read(path, folder, record) if direct else made.weights()
    variables = _placed(weights, shapes, places)
    tracer = Tracer(
        made.module, record["canonical"], kept_programs(folder), keep=partial(keep_program, folder)
    )
    decoder = Decoder(folder / "generation", made.module, record["canonical"])
    return TracedBundle(
        model=TextModule(tracer, variables, decoder),
        variables=variables,
        config=config,
        processor=processor,
        family=str(config.get("model_type")),
        generation_config=generation_config,
        source=source,
        stored=record,
        axes=axes,
    )


def traced_shapes(
    path: Path,
    config: dict[str, Any],
    *,
    dtype: str,
    placement: Placement | None = None,
    task: str | None = None,
    fresh: bool = False,
) -> TracedBundle:
    """Return a bundle whose variables are shapes: what a plan needs, and no weight is read.

    Args:
        path: the folder.
        config: its config.json.
        dtype: what the parameters would be stored in.
        placement: where each weight would go; None leaves that open.
        task, fresh: as for `load_traced`.

    Raises:
        InputRefused: as for `load_traced`.
        LayoutRefused: the mesh does not cut the parameters.
    """
    config = task_config(config, task)
    folder = _home(config, dtype)
    made = SourceModule(path, config, dtype, filled=False, fresh=fresh)
    record = _record(folder)
    known = record is not None and not record.get("drawn")
    shapes = _shapes(path, folder, record) if record is not None and known else made.shapes()
    if record is None:
        record = {**made.structure(), "direct": True, "reads_ahead": None}
    axes, _ = _places(record, shapes, placement)
    canonical = record["canonical"]
    tracer = Tracer(made.module, canonical, kept_programs(folder))
    decoder = Decoder(folder / "generation", made.module, canonical)
    return TracedBundle(
        model=TextModule(tracer, shapes, decoder),
        variables=shapes,
        config=config,
        family=str(config.get("model_type")),
        source=str(path),
        stored=record,
        axes=axes,
    )


def is_traceable(config: Mapping[str, Any], dtype: str) -> bool:
    """Tell whether the installed transformers has a class for a config's model type.

    Its table of types is looked through as a text: importing transformers takes seconds, and a
    name that is refused should not cost them.
    """
    name = str(config.get("model_type"))
    if not _NAME.fullmatch(name):
        return False
    if _record(_home(config, dtype)) is not None:
        return True
    found = find_spec("transformers")
    if found is None or found.origin is None:
        return False
    auto = Path(found.origin).parent / "models" / "auto"
    tables = (auto / "auto_mappings.py", auto / "configuration_auto.py")
    return any(f'"{name}", "' in table.read_text("utf-8") for table in tables if table.is_file())


def _home(config: Mapping[str, Any], dtype: str) -> Path:
    """Return the folder that keeps what was traced for a config."""
    return cache_directory() / "traces" / fingerprint(config, dtype, FORMAT, version("dew"))


def _record(folder: Path) -> dict[str, Any] | None:
    """Return what an earlier start kept, where weights can be read by it without torch."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if record.get("direct") and "reads_ahead" in record else None


def _keep(folder: Path, record: Mapping[str, Any], buffers: Mapping[str, np.ndarray]) -> None:
    """Keep the record, and the buffers that no checkpoint holds."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {record["canonical"].get(name, name) for name in record["stored"]}
    aside = folder / f"{os.getpid()}.tmp"
    write_arrays(aside, {name: value for name, value in buffers.items() if name not in held})
    os.replace(aside, folder / BUFFERS)
    write_file(aside, json.dumps(record).encode())
    os.replace(aside, folder / RECORD)


def _shapes(path: Path, folder: Path, record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the shapes of the weights, laid out as the variables, from headers alone."""
    tensors = open_tensors(path)
    absent = sorted({theirs for theirs, _ in record["stored"].values()} - set(tensors.names()))
    if absent:
        raise WeightMismatch(
            listed(f"{path}: the weights do not fit:", [f"missing  {n}" for n in absent])
        )
    found: dict[str, dict[str, Any]] = {"params": dict.fromkeys(record["params"]), "buffers": {}}
    for name, value in read_arrays(folder / BUFFERS).items():
        found["buffers"][name] = jax.ShapeDtypeStruct(value.shape, value.dtype)
    for name, (theirs, _) in _kept_under(record).items():
        part = "params" if name in found["params"] else "buffers"
        shape, dtype = tensors.info(theirs).shape, jnp.dtype(record["dtypes"][name])
        found[part][name] = jax.ShapeDtypeStruct(shape, dtype)
    return found


def _read(
    path: Path, folder: Path, record: Mapping[str, Any]
) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield each weight with its collection and the name it is kept under."""
    for name, value in read_arrays(folder / BUFFERS).items():
        yield "buffers", name, value
    tensors, params = open_tensors(path), set(record["params"])
    for name, (theirs, _) in _kept_under(record).items():
        value = tensors.read(theirs).astype(jnp.dtype(record["dtypes"][name]))
        yield "params" if name in params else "buffers", name, value
        tensors.release(theirs)


def _kept_under(record: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the name that each stored weight is kept under, with its tensor and dtype."""
    canonical = record["canonical"]
    return {
        canonical.get(alias, alias): tuple(theirs) for alias, theirs in record["stored"].items()
    }


def _places(
    record: Mapping[str, Any], shapes: Mapping[str, Any], placement: Placement | None
) -> tuple[dict[str, Axes], Any]:
    """Return the axes that a mesh cuts by name, and every weight's sharding or None."""
    if placement is None:
        return {}, None
    axes: dict[str, Axes] = {}
    if placement.spec.tensor > 1:
        if placement.spec.sequence > 1:
            raise LayoutRefused(
                f"mesh: sequence is {placement.spec.sequence}, but a traced model's rows are not "
                "cut along their length; set sequence=1"
            )
        axes = parameter_axes(ModuleKinds.from_record(record), shapes["params"])
        placement = Placement.of(placement.spec, placement.layout, {"params": axes})
    placement.check(shapes)
    return axes, placement.shardings(shapes)


def _placed(
    weights: Iterable[tuple[str, str, np.ndarray]],
    shapes: Mapping[str, Mapping[str, Any]],
    places: Any,
) -> dict[str, dict[str, Any]]:
    """Return the variables on their devices, one tensor at a time on the host beside them.

    Args:
        weights: collection, name and value of each.
        shapes: of all of them, laid out as the variables.
        places: the sharding of each; None is the default device.
    """
    out: dict[str, dict[str, Any]] = {part: dict.fromkeys(names) for part, names in shapes.items()}
    for part, name, value in weights:
        if places is None:
            out[part][name] = jnp.array(value)
        else:
            out[part][name] = put(value, places[part][name])
    return out


def _given(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in inputs.items() if value is not None}


def _named(output: Any) -> dict[str, Any]:
    if isinstance(output, Mapping):
        return {name: value for name, value in output.items() if value is not None}
    return {"output": output}
