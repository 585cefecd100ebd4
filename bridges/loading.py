"""Loading a checkpoint: files, config, weights and tokenizer, as one bundle."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.config import Keys, read_all
from bridges.family import FAMILIES, HARMLESS, Family, NotNative, family_of, head_of
from bridges.files.json_file import read_json
from bridges.files.quantized import plain_tensors, read_quantization
from bridges.files.regular_file import contained, optional, shown_path
from bridges.files.tensors import open_tensors
from bridges.hub import resolve
from bridges.labels import relabelled
from bridges.names import (
    StoredLayout,
    TableTensors,
    cut_padding,
    settle_head,
    settle_heads,
    spelled_otherwise,
    table_tensors,
)
from bridges.sentence_pooling import read_pooling
from bridges.table import Row, flat, into_tree, layer_problems, nested, tensor_shapes
from dew.errors import InputRefused, WeightMismatch, listed, shown
from dew.inference.bundle import Bundle
from dew.placement import Layout, MeshSpec, Placement

DTYPES = ("float32", "bfloat16", "float16")
FRESH_DEVIATION = 0.02  # as transformers draws new heads
OTHER_HEADS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"),
    *("ForMultipleChoice", "ForNextSentencePrediction", "DoubleHeadsModel", "EncoderModel"),
    *("ForAudioClassification", "ForAudioFrameClassification", "ForXVector"),
)
TRACED = ("auto", "always", "never")


def load(
    source: str | os.PathLike[str],
    *,
    task: str | None = None,
    labels: Sequence[str] | None = None,
    problem: str | None = None,
    revision: str | None = None,
    dtype: Any = None,
    param_dtype: Any = None,
    mesh: MeshSpec | None = None,
    layout: Layout = Layout(),  # noqa: B008 (frozen)
    strict: bool = False,
    traced: str = "auto",
    quantize: str | None = None,
) -> Bundle:
    """Load a checkpoint of PyTorch's world.

    Nothing that is loaded runs: no pickle, no code of the repository, templates in a sandbox. The
    weights are checked against the config from their headers before memory is taken for them,
    and filled in place: no random weights and no second copy at any time.

    Args:
        source: a folder with config.json and safetensors, a `.gguf` file, the output folder of a
            run, or a hub repository id.
        task: the pipeline's task that the model is for, where it is not what config.json's
            architecture does. A head that the checkpoint lacks is drawn anew, and named.
        labels: the names of a classifier's labels, where they are not the config's. A head of
            another number of them is drawn anew, and named.
        problem: what the labels are, as `problem_type` spells it: "single_label_classification",
            "multi_label_classification" or "regression"; None leaves the config's.
        revision: branch, tag or commit of a hub repository.
        dtype: what activations are computed in; float32 where None.
        param_dtype: what parameters are stored in; float32 where None, which holds every value
            of the usual checkpoints exactly.
        mesh: spread the parameters over the devices of this mesh: a process holds its own parts
            and one tensor more. None puts them on the default device.
        layout: which axes of the parameters the mesh cuts.
        strict: refuse a config key that is neither read nor known to be harmless, instead of one
            warning that names them all.
        traced: "auto" traces transformers' own class, through torch, for a model type without a
            native family; "always" does so for every type, "never" refuses such types.
        quantize: store the kernels of the layers in "int8" or "nf4" once they are read, a quarter
            and an eighth of float32; a run trains adapters over such a model, not its weights.
            Native models only.

    Returns:
        The bundle.

    Raises:
        InputRefused: the source, its config, its tokenizer or a value in them is not usable.
        WeightMismatch: missing, left-over or misshapen tensors, all in one message.
        UnknownName: a `model_type` that no family reads.
        LayoutRefused: the mesh does not cut the parameters.
    """
    from bridges.adapter_quantized import quantize as stored_narrow
    from bridges.adapter_quantized import traced_is_wide
    from dew.nn.quantized import check_kind

    if quantize is not None:
        check_kind(quantize)
    compute, storage = _dtype("dtype", dtype), _dtype("param_dtype", param_dtype)
    path = resolve(source, revision)
    config, open_weights, read_processor = _opened(path)
    if labels is not None:
        config = relabelled(config, labels, problem=problem)
    own = compute if param_dtype is None else storage

    def by_tracing() -> Bundle:
        if quantize is not None:
            raise InputRefused(traced_is_wide(str(config.get("model_type")), quantize))
        _warn_of_remote_code(config)
        from bridges.torch.checkpoint import load_traced

        return load_traced(
            path,
            config,
            source=os.fspath(source),
            processor=read_processor(),
            generation_config=_generation_config(path),
            dtype=own,
            placement=None if mesh is None else Placement.of(mesh, layout, {}),
            task=task,
            fresh=task is not None or labels is not None,
        )

    if path.is_dir() and _is_traced(traced, config, own):
        return by_tracing()
    where = shown_path(path / "config.json" if path.is_dir() else path)
    try:
        family, model = _model(config, where, strict, task)
    except NotNative as reason:
        if not path.is_dir() or traced == "never" or not _is_traceable(config, own):
            raise
        warnings.warn(f"{reason}: it is traced from transformers", stacklevel=2)
        return by_tracing()
    _warn_of_remote_code(config)
    model = model.clone(dtype=compute, param_dtype=storage)
    if path.is_dir() and hasattr(model, "sentence") and not model.head:
        model = model.clone(sentence=read_pooling(path))
    with ThreadPoolExecutor(1) as pool:
        # Copying weights leaves the interpreter free to build the tokenizer meanwhile.
        reading = pool.submit(read_processor)
        model, table, stored = _table(family, model, open_weights())
        rows = family.rows(model)
        other = () if labels is None else _misshapen(rows, model, table)
        table, fresh = settle_heads(
            family, rows, table, fresh=task is not None or labels is not None, other=other
        )
        stored = dataclasses.replace(stored, bare=stored.bare and not fresh)
        try:
            shapes = _shapes(rows, model, table)
            places = None if mesh is None else _places(model, shapes, mesh, layout)
            params = _filled(rows, fresh, table, shapes, storage, places)
        except WeightMismatch as error:
            raise WeightMismatch(f"{shown_path(path)}: {error}") from None
        processor = reading.result()
    _check_tokens(processor, model, where)
    bundle = Bundle(
        model=model,
        variables={"params": params},
        config=config,
        processor=processor,
        family=family.model_type,
        generation_config=_generation_config(path),
        source=os.fspath(source),
        stored=stored,
    )
    return bundle if quantize is None else stored_narrow(bundle, quantize)


def _misshapen(rows: Sequence[Row], model: Any, table: TableTensors) -> tuple[str, ...]:
    """Return the names of the stored tensors that are not of the model's shape."""
    leaves = flat(model.parameter_shapes())
    wanted = {name: tuple(shape) for name, shape in tensor_shapes(rows, leaves)}
    return tuple(
        name
        for name in table.names()
        if name in wanted and tuple(table.info(name).shape) != wanted[name]
    )


def _filled(
    rows: Sequence[Row],
    fresh: Sequence[Row],
    table: TableTensors,
    shapes: dict,
    dtype: str,
    places: Mapping[str, Any] | None,
) -> dict:
    """Return the parameters: from the checkpoint, but for the rows that are drawn anew."""
    if not fresh:
        return into_tree(rows, table, shapes, dtype, shardings=places)
    drawn = {path for row in fresh for path in row.leaves}
    leaves = flat(shapes)
    stored = nested({path: leaf for path, leaf in leaves.items() if path not in drawn})
    kept = [row for row in rows if row not in fresh]
    filled = flat(into_tree(kept, table, stored, dtype, shardings=places))
    generator = np.random.default_rng(0)
    for path in sorted(drawn):
        scale = 0.0 if path.endswith("bias") else FRESH_DEVIATION
        values = scale * generator.standard_normal(leaves[path].shape)
        place = None if places is None else places[path]
        filled[path] = jax.device_put(values.astype(jnp.dtype(dtype)), place)
    return nested({path: filled[path] for path in leaves})


def _warn_of_remote_code(config: Mapping[str, Any]) -> None:
    if "auto_map" in config:
        warnings.warn(
            "auto_map names remote code, which dew never runs: this is read as a plain "
            f"{shown(config.get('model_type'))} checkpoint",
            stacklevel=3,
        )


def _is_traced(traced: str, config: Mapping[str, Any], dtype: str) -> bool:
    """Tell whether a checkpoint goes by tracing, and say so in one line where nobody asked."""
    if traced not in TRACED:
        raise InputRefused(f"traced is {shown(traced)}; expected one of {', '.join(TRACED)}")
    name = config.get("model_type")
    if traced == "never" or not isinstance(name, str):
        return False
    if traced == "always":
        return True
    if name not in FAMILIES and _is_traceable(config, dtype):
        warnings.warn(f"{name} has no native family: it is traced from transformers", stacklevel=3)
        return True
    return False


def _is_traceable(config: Mapping[str, Any], dtype: str) -> bool:
    from bridges.torch.checkpoint import is_traceable

    return is_traceable(config, dtype)


def read_model(
    config: Mapping[str, Any],
    where: str = "config.json",
    *,
    strict: bool = False,
    task: str | None = None,
) -> Any:
    """Return the model that a config describes, without any weights.

    Args:
        config: a `config.json` as it was read.
        where: the file, for messages.
        strict: see `load`.
        task: see `load`.

    Raises:
        InputRefused: see `load`.
    """
    return _model(dict(config), where, strict, task)[1]


def _dtype(name: str, value: Any) -> str:
    """Return the name of a floating dtype, float32 where None."""
    try:
        found = jnp.dtype("float32" if value is None else value).name
    except TypeError:
        found = str(value)
    if found not in DTYPES:
        raise InputRefused(f"{name} is {shown(value)}; expected one of {', '.join(DTYPES)}")
    return found


def _opened(path: Path) -> tuple[dict[str, Any], Callable[[], Any], Callable[[], Any]]:
    """Return a source's config, and how to open its weights and to read its tokenizer."""
    from bridges.processing import read_processor
    from bridges.text.processors import gguf_processor

    if path.is_dir() and os.path.lexists(path / "config.json"):
        config = read_json(contained(path, "config.json"))
        where = shown_path(path / "config.json")

        def open_weights() -> Any:
            return plain_tensors(open_tensors(path), read_quantization(Keys(config, where)))

        return config, open_weights, lambda: read_processor(path, config)
    from bridges.files.gguf_file import open_gguf

    file = open_gguf(_gguf_path(path))
    return file.config(), lambda: file, lambda: gguf_processor(file.metadata)


def _gguf_path(path: Path) -> Path:
    """Return the GGUF file that a source without config.json must be, or hold alone."""
    if not path.is_dir():
        if path.suffix != ".gguf":
            raise InputRefused(
                f"{shown_path(path)}: expected a folder with config.json, or a .gguf file. For "
                "safetensors give their folder: what the shapes mean is in config.json."
            )
        return path
    if os.path.lexists(path / "adapter_config.json"):
        raise InputRefused(
            f"{shown_path(path)}: holds an adapter, not a model. Load the model it was made "
            "for and lay the adapter over it with bridges.load_adapter(bundle, folder)."
        )
    ggufs = [entry for entry in sorted(path.iterdir()) if entry.suffix == ".gguf"]
    if len(ggufs) != 1:
        raise InputRefused(
            f"{shown_path(path)}: no config.json. Expected a Hugging Face folder (config.json, "
            "model.safetensors, tokenizer.json) or a folder with one .gguf file."
        )
    return contained(path, ggufs[0].name)


def _model(
    config: dict[str, Any], where: str, strict: bool, task: str | None = None
) -> tuple[Family, Any]:
    """Return family and model of a config, and deal with the keys that nobody read."""
    family = family_of(config, where)

    def read(keys: Keys) -> Any:
        read_quantization(keys)
        keys.only("is_encoder_decoder", family.answers)
        keys.only("add_cross_attention", False)
        keys.only("chunk_size_feed_forward", 0)
        keys.only("pruned_heads", {})
        keys.only("cross_attention_hidden_size")
        if task is None:
            _refuse_other_classes(family, config, where)
        model = family.model(keys)
        return model.clone(head=head_of(family, config, task)) if family.heads else model

    model, keys = read_all(config, where, read)
    unread = keys.unread(HARMLESS | family.harmless)
    if unread:
        message = listed(
            f"{where}: config keys that dew does not know and does not follow:",
            [shown(key)[1:-1] for key in unread],
        )
        if strict:
            raise InputRefused(f"{message}\nremove them, or load without strict")
        warnings.warn(message, stacklevel=3)
    return family, model


def _refuse_other_classes(family: Family, config: Mapping[str, Any], where: str) -> None:
    """Refuse an architecture whose head the family does not have."""
    named = config.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    known = {*family.architectures, *family.heads}
    if names and not known & set(names) and any(name.endswith(OTHER_HEADS) for name in names):
        raise NotNative(f"{where}: {shown(names[0])[1:-1]} has no native head")


def _table(family: Family, model: Any, tensors: Any) -> tuple[Any, TableTensors, StoredLayout]:
    """Return the model with its head settled, its tensors by the table's names, and the layout."""
    table, bare = table_tensors(family, tensors)
    model, table, tied_copy = settle_head(family, model, table)
    table = cut_padding(family, model, table)
    dtypes = {name: table.info(name).dtype for name in table.names()}
    spelled = spelled_otherwise(family, table, bare)
    return model, table, StoredLayout(bare, tied_copy, dtypes, spelled)


def _shapes(rows: Sequence[Row], model: Any, tensors: TableTensors) -> dict:
    """Return the parameters' shapes, once the file is known to hold as many layers as asked."""
    layers = getattr(model, "num_layers", 0)
    problems = layer_problems(rows, tensors.names(), layers)
    # Tracing a model of a billion layers is no harm, but nothing it could tell would be new.
    if problems and layers > len(tensors.names()):
        raise WeightMismatch(listed("the weights do not fit the model:", problems))
    return model.parameter_shapes()


def _places(model: Any, shapes: dict, mesh: MeshSpec, layout: Layout) -> dict[str, Any]:
    """Return each parameter's path to its sharding."""
    placement = Placement.of(mesh, layout, {"params": model.parameter_axes()})
    placement.check(shapes)
    return flat(placement.shardings(shapes))


def _check_tokens(processor: Any, model: Any, where: str) -> None:
    """Refuse a tokenizer with ids that the embedding has no row for: a gather would clamp them."""
    rows = getattr(model, "vocab_size", None)
    if rows is not None and getattr(processor, "vocab_size", 0) > rows:
        raise InputRefused(
            f"{where}: vocab_size is {model.vocab_size}, but the tokenizer gives ids up to "
            f"{processor.vocab_size - 1}. Expected every id below vocab_size; take the tokenizer "
            "that belongs to these weights."
        )


def _generation_config(path: Path) -> dict[str, Any]:
    found = optional(path, "generation_config.json") if path.is_dir() else None
    return {} if found is None else read_json(found)
