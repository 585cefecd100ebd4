"""Writing a bundle back as the folder that transformers 4 and 5 load, and proving it equal."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from bridges.family import Family, family_of
from bridges.files.regular_file import shown_path
from bridges.files.swap import staged
from bridges.files.writer import SHARD_BYTES, Planned, json_bytes, write_file, write_weights
from bridges.names import StoredLayout
from bridges.sentence_pooling import pooling_files
from bridges.table import Row, flat, out_of_tree, tensor_shapes
from dew.errors import InputRefused, listed, shown
from dew.inference.bundle import Bundle

DTYPES = ("float32", "bfloat16", "float16")
NEW_TOKENS = 8
# What only sampling reads, with the value at which even transformers' validation lets it pass.
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "min_p": None, "typical_p": 1.0}
SAMPLING |= {"top_h": None, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}


class ExportDiffers(RuntimeError):
    """What was written does not load back equal; the folder was left as it was."""


def export(
    bundle: Bundle,
    directory: str | os.PathLike[str],
    *,
    shard_bytes: int = SHARD_BYTES,
    verify: bool = True,
    dtype: str | None = None,
) -> None:
    """Write a bundle as a Hugging Face folder.

    The tensors bear the names that the source gave them. Each is stored in the source's dtype
    where every value of the model fits into it exactly, so that loading and exporting gives the
    same bytes back; a model that was trained beyond that precision keeps its own dtype.
    A checkpoint that is in `directory` already is replaced in one step at the end; other files
    stay.

    Args:
        bundle: what `bridges.load` returned, perhaps with other parameters. Kernels that are stored
            narrow are written as the wide values that they stand for.
        directory: the folder; it need not exist.
        shard_bytes: the most bytes of tensors in one file.
        verify: load what was written, before it replaces anything, and compare every tensor, the
            logits of a prompt and 8 greedy tokens with the bundle.
        dtype: store every floating tensor in this dtype, rounding; None for the rule above.

    Raises:
        InputRefused: a bundle that is no plain model of its family, a file in the folder's place.
        ExportDiffers: the comparison found a difference; `directory` is as it was.
        OSError: the disk is full or fails; `directory` is as it was.
    """
    if dtype is not None and dtype not in DTYPES:
        raise InputRefused(f"dtype is {shown(dtype)}; expected one of {', '.join(DTYPES)}")
    if shard_bytes < 1:
        raise InputRefused(f"shard_bytes is {shown(shard_bytes)}; expected at least 1")
    from bridges.adapter_quantized import wide_of
    from bridges.torch.checkpoint import TracedBundle

    if isinstance(bundle, TracedBundle):
        from bridges.torch.exporting import export_traced

        export_traced(bundle, directory, shard_bytes=shard_bytes, verify=verify)
        return
    _refuse_adapter(bundle)
    bundle = wide_of(bundle)
    family = family_of(bundle.config)
    content = _Content(family, bundle, dtype)
    directory = Path(os.fspath(directory))
    try:
        with staged(directory) as folder:
            write_weights(folder, content.planned, content.tensors(), shard_bytes=shard_bytes)
            for name, data in content.files().items():
                write_file(folder / name, data)
            if verify:
                _verify(bundle, content, folder)
    except OSError as error:
        size = sum(tensor.size for tensor in content.planned)
        raise OSError(
            error.errno,
            f"the export of {size} bytes failed: {error.strerror or error}. Nothing in "
            f"{shown_path(directory)} was changed; free the space or mend the disk, and try again",
            str(error.filename or directory),
        ) from error


class _Content:
    """What one export writes: its tensors' names and dtypes, their data, and the other files."""

    def __init__(self, family: Family, bundle: Bundle, dtype: str | None):
        self.family, self.bundle = family, bundle
        self.rows: tuple[Row, ...] = family.rows(bundle.model)
        self.leaves = flat(bundle.variables["params"])
        self.layout: StoredLayout = bundle.stored or StoredLayout()
        self.tied_copy = self.layout.tied_copy and bool(family.head) and bundle.model.tied_head
        self.rounded = None if dtype is None else np.dtype(dtype)
        self.dtypes = self._dtypes()
        shapes = dict(tensor_shapes(self.rows, self.leaves))
        if self.tied_copy:
            shapes[family.head] = shapes[family.embedding]
            self.dtypes[family.head] = self.dtypes[family.embedding]
        self.planned = [
            Planned(self.stored_name(name), shape, self.dtypes[name])
            for name, shape in shapes.items()
        ]

    def stored_name(self, name: str) -> str:
        """Return what the source calls the table's `name`."""
        name = self.layout.spelled.get(name, name)
        return name.removeprefix(self.family.base_prefix) if self.layout.bare else name

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the planned tensors, one at a time."""
        for name, array in out_of_tree(self.rows, self.bundle.variables["params"]):
            yield self.stored_name(name), cast(array, self.dtypes[name])
        if self.tied_copy:
            row = next(row for row in self.rows if row.theirs == self.family.embedding)
            table = np.asarray(self.leaves[row.leaves[0]])
            head = self.family.head
            yield self.stored_name(head), cast(table, self.dtypes[head])

    def files(self) -> dict[str, bytes]:
        """Return the files beside the weights."""
        processor: Any = self.bundle.processor
        files = dict(processor.files) if processor is not None else {}
        sentence = getattr(self.bundle.model, "sentence", None)
        if sentence is not None:
            files |= pooling_files(sentence, self.bundle.model.emb_features)
        files["config.json"] = json_bytes(self._config())
        files["generation_config.json"] = json_bytes(generation_config(self.bundle))
        return files

    def _dtypes(self) -> dict[str, np.dtype]:
        """Return each tensor's dtype: the one asked for, the stored one, or the parameters'."""
        own = {
            name: np.dtype(self.leaves[row.leaves[0]].dtype)
            for row in self.rows
            for name in _names(row, self.leaves)
        }
        if self.rounded is not None:
            return dict.fromkeys(own, self.rounded)
        stored = {name: self.layout.dtypes.get(name, dtype) for name, dtype in own.items()}
        if stored == own:
            return own
        tensors = out_of_tree(self.rows, self.bundle.variables["params"])
        exact = all(fits(array, stored[name]) for name, array in tensors)
        return stored if exact else own

    def _config(self) -> dict[str, Any]:
        """Return the source's config with what changed, and what both readers need, set."""
        config = dict(self.bundle.config)
        config.pop("quantization_config", None)  # what is written is plain
        sizes: Counter[str] = Counter()
        for tensor in self.planned:
            sizes[tensor.dtype.name] += tensor.size
        config["dtype"] = config["torch_dtype"] = sizes.most_common(1)[0][0]
        fit = self._architectures()
        if not set(fit) & set(config.get("architectures") or ()):
            config["architectures"] = [fit[0]]
        tied = config.get("tie_word_embeddings")
        ours = self.bundle.model.tied_head if self.family.head else tied
        if self.family.head and (self.family.tied_default if tied is None else tied) != ours:
            config["tie_word_embeddings"] = ours
        return config | self.family.exported(config)

    def _architectures(self) -> tuple[str, ...]:
        """Return the classes that the model's head makes it, the one to write first."""
        heads = self.family.heads
        if not heads:
            return self.family.architectures
        return tuple(name for name, head in heads.items() if head == self.bundle.model.head)


def generation_config(bundle: Bundle) -> dict[str, Any]:
    """Return the generation config to write: the source's, mended where readers refuse it.

    Without one, the ids that start, end and pad a text are written, all of the ends.
    """
    options = dict(bundle.generation_config)
    if not options:
        processor, config = bundle.processor, bundle.config
        ends = list(getattr(processor, "eos_token_ids", ()) or ())
        found = {
            "bos_token_id": getattr(processor, "bos_token_id", config.get("bos_token_id")),
            "eos_token_id": (ends[0] if len(ends) == 1 else ends) or config.get("eos_token_id"),
            "pad_token_id": getattr(processor, "pad_token_id", config.get("pad_token_id")),
        }
        return {name: value for name, value in found.items() if value is not None}
    if options.get("do_sample") is not True:
        idle = [k for k, v in SAMPLING.items() if options.get(k) is not None and options[k] != v]
        for name in idle:
            del options[name]
        if idle:
            warnings.warn(
                f"generation_config.json sets {', '.join(idle)} although do_sample is not true: "
                "they have no effect and transformers refuses to save them, so they are left out",
                stacklevel=5,
            )
    return options


def cast(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return `array` in another floating dtype; exact values keep every bit, NaN's too."""
    if array.dtype == dtype:
        return array
    if array.dtype == np.float32 and dtype == ml_dtypes.bfloat16 and fits(array, dtype):
        return (array.view(np.uint32) >> 16).astype(np.uint16).view(dtype)
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def fits(array: np.ndarray, dtype: np.dtype) -> bool:
    """Say whether every value of `array` is a value of `dtype`."""
    if array.dtype == dtype:
        return True
    if array.dtype == np.float32 and dtype == ml_dtypes.bfloat16:
        return not (array.view(np.uint32) & np.uint32(0xFFFF)).any()
    with np.errstate(over="ignore", invalid="ignore"):
        back = array.astype(dtype).astype(array.dtype)
    return np.array_equal(back.reshape(-1).view(np.uint8), array.reshape(-1).view(np.uint8))


def _names(row: Row, leaves: dict[str, Any]) -> Iterator[str]:
    return (name for name, _ in tensor_shapes((row,), leaves))


def _refuse_adapter(bundle: Bundle) -> None:
    if "params" not in bundle.variables or set(bundle.variables) - {"params"}:
        others = ", ".join(shown(name) for name in bundle.variables if name != "params")
        raise InputRefused(
            f"the bundle's variables hold {others or 'no params'} beside its weights. Expected "
            "params alone; write an adapter with bridges.export_adapter, or merge it into the "
            "weights first with bridges.adapters.merge"
        )


def _verify(bundle: Bundle, content: _Content, folder: Path) -> None:
    """Load `folder` and compare it with the bundle."""
    from bridges.loading import load

    with warnings.catch_warnings():
        # What there was to say about this config and these weights was said when they came in.
        warnings.simplefilter("ignore")
        model = bundle.model
        again = load(folder, dtype=model.dtype, param_dtype=model.param_dtype)
    problems = _leaf_differences(content, again)
    problems += [
        f"model.{field}: {getattr(model, field)!r} became {getattr(again.model, field)!r}"
        for field in _fields(model)
        if getattr(model, field) != getattr(again.model, field)
    ]
    if not problems and content.rounded is None:
        problems = _run_differences(bundle, again.replace(model=model))
    if problems:
        raise ExportDiffers(
            listed("what was written does not load back equal; nothing was replaced:", problems)
        )


def _fields(model: Any) -> list[str]:
    """Return the fields of a model that its config determines."""
    free = {"name", "parent", "attention_impl", "remat", "adapter_scale", "dropout", "follow"}
    return [field.name for field in dataclasses.fields(model) if field.name not in free]


def _leaf_differences(content: _Content, again: Bundle) -> list[str]:
    """Return a line for each leaf that came back with other bytes."""
    problems = []
    leaves = flat(again.variables["params"])
    for path, ours in content.leaves.items():
        wanted, found = np.asarray(ours), np.asarray(leaves[path])
        if content.rounded is not None:
            wanted = cast(wanted, content.rounded).astype(wanted.dtype)
        if not np.array_equal(wanted.reshape(-1).view(np.uint8), found.reshape(-1).view(np.uint8)):
            problems.append(f"{path}: other values")
    return problems


def _run_differences(bundle: Bundle, again: Bundle) -> list[str]:
    """Return a line for outputs or greedy tokens that differ on fixed inputs."""
    model, inputs = bundle.model, bundle.model.example_inputs()
    ours, theirs = (b(**inputs) for b in (bundle, again))
    for name, mine in ours.items():
        mine, other = np.asarray(mine), np.asarray(theirs[name])
        if not np.array_equal(mine, other, equal_nan=True):
            return [f"{name}: at most {np.abs(mine - other).max()} apart"]
    if not {"text-generation", "text2text-generation"} & set(model.tasks):
        return []
    prompt = inputs["input_ids"]
    steps = min(NEW_TOKENS, model.max_seq_len - prompt.shape[1])
    if steps < 1:
        return []
    # The decode engine keeps its copy of the weights for as long as there is a bundle: a copy of
    # each lets go of the first before the second is made.
    ours, theirs = (
        np.asarray(b.replace().generate(prompt, max_new_tokens=steps, do_sample=False))
        for b in (bundle, again)
    )
    return [] if np.array_equal(ours, theirs) else [f"greedy tokens: {ours} became {theirs}"]
