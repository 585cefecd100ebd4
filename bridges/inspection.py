"""What a checkpoint folder holds, and what each library will read of it; headers only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridges.files.json_file import read_json
from bridges.files.regular_file import contained, optional
from bridges.files.tensors import open_tensors
from dew.errors import InputRefused, shown

READERS = ("transformers 4", "transformers 5", "vLLM")
ROPE_DEFAULT = 10000.0
# Names that transformers 5 writes for its own classes and transformers 4 does not know.
ONLY_IN_FIVE = ("TokenizersBackend", "PythonBackend", "SentencePieceBackend")


@dataclass(frozen=True)
class Inspection:
    """The findings about one folder.

    Args:
        facts: name and value of what is there.
        readings: for each topic what `READERS` will read, in their order.
        warnings: what readers will read differently, and what is missing.
    """

    facts: dict[str, str] = field(default_factory=dict)
    readings: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def text(self) -> str:
        """Return the report."""
        width = max((len(name) for name in self.facts), default=0)
        lines = [f"{name:<{width}}  {value}" for name, value in self.facts.items()]
        table = [("", *READERS), *((topic, *read) for topic, read in self.readings.items())]
        widths = [max(len(row[column]) for row in table) for column in range(4)]
        lines += ["", "what will be read"]
        for row in table:
            cells = (f"{cell:<{size}}" for cell, size in zip(row, widths, strict=True))
            lines.append("  " + "  ".join(cells).rstrip())
        lines += ["", "to look at"] if self.warnings else ["", "nothing missing, nothing ambiguous"]
        lines += [f"  {warning}" for warning in self.warnings]
        return "\n".join(lines)


@dataclass(frozen=True)
class _Files:
    """The JSON files of a folder; an absent one is empty."""

    folder: Path
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokenizer: Mapping[str, Any]

    def has(self, name: str) -> bool:
        return (self.folder / name).is_file()


def inspect_checkpoint(path: str | Path) -> Inspection:
    """Return what a folder or a weight file holds, without reading a weight.

    Args:
        path: a Hugging Face folder, or a `.safetensors` or `.gguf` file.

    Raises:
        InputRefused: no such path, or a file in it that cannot be read.
    """
    path = Path(path)
    if not path.exists():
        raise InputRefused(f"{path}: no such file or folder")
    found = Inspection()
    if path.is_dir():
        files = _Files(
            path,
            _read(path, "config.json"),
            _read(path, "generation_config.json"),
            _read(path, "tokenizer_config.json"),
        )
        _model(files, found)
        _weights(path, found)
        _rope(files, found)
        _dtype(files, found)
        _tokenizer(files, found)
        _chat(files, found)
        _ends(files, found)
        _absent(files, found)
    else:
        found.facts["file"] = str(path)
        _weights(path, found)
    return found


def _read(folder: Path, name: str) -> dict[str, Any]:
    path = optional(folder, name)
    return {} if path is None else read_json(path)


def _model(files: _Files, found: Inspection) -> None:
    found.facts["folder"] = str(files.folder)
    found.facts["model type"] = shown(files.config.get("model_type", "not said"))[1:-1]
    architectures = files.config.get("architectures")
    named = architectures if isinstance(architectures, list) else [architectures]
    found.facts["architecture"] = ", ".join(_said(name, "not said") for name in named)
    if files.has("adapter_config.json"):
        adapter = _read(files.folder, "adapter_config.json")
        found.facts["adapter"] = (
            f"{adapter.get('peft_type', '?')}, rank {adapter.get('r', '?')}, alpha "
            f"{adapter.get('lora_alpha', '?')}, on {shown(adapter.get('base_model_name_or_path'))}"
        )


def _weights(path: Path, found: Inspection) -> None:
    try:
        adapter = optional(path, "adapter_model.safetensors") if path.is_dir() else None
        tensors = open_tensors(adapter or path)
    except InputRefused as error:
        found.warnings.append(str(error))
        return
    infos = {name: tensors.info(name) for name in tensors.names()}
    sizes = {name: _count(info.shape) for name, info in infos.items()}
    found.facts["parameters"] = f"{sum(sizes.values()):,}"
    found.facts["tensors"] = (
        f"{len(infos)} in {len({info.file for info in infos.values()})} file(s)"
    )
    dtypes: Counter[str] = Counter()
    for name, info in infos.items():
        dtypes[str(info.dtype)] += sizes[name]
    found.facts["dtypes"] = ", ".join(f"{name} ({n:,})" for name, n in dtypes.most_common())


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def _rope(files: _Files, found: Inspection) -> None:
    """Say which base each reader takes: transformers 4 does not know `rope_parameters`."""
    config = files.config
    new = config.get("rope_parameters")
    new = new if isinstance(new, Mapping) else {}
    old_scaling = config.get("rope_scaling")
    if not new and "rope_theta" not in config and not old_scaling:
        return
    scaling = old_scaling if isinstance(old_scaling, Mapping) else {}
    top = config.get("rope_theta")
    four = _said(top, ROPE_DEFAULT)
    five = _said(new.get("rope_theta"), scaling.get("rope_theta"), top, ROPE_DEFAULT)
    four_kind = _said(scaling.get("rope_type"), scaling.get("type"), "default")
    five_kind = _said(new.get("rope_type"), new.get("type"), four_kind)
    found.readings["rope theta"] = (four, five, five)
    found.readings["rope kind"] = (four_kind, five_kind, five_kind)
    if four != five:
        found.warnings.append(
            f"transformers 4 reads rope_theta {four}, transformers 5 reads {five}: write the "
            "base both as rope_theta and under rope_parameters (dew export does)"
        )
    if four_kind != five_kind:
        found.warnings.append(
            f"transformers 4 reads rope kind {four_kind} from rope_scaling, transformers 5 "
            f"reads {five_kind} from rope_parameters: write both"
        )


def _said(*values: Any) -> str:
    """Return the first value that is there, on one line; a whole number without its `.0`."""
    value = next((value for value in values if value is not None), None)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:.12g}"
    return value if isinstance(value, str) and value.isprintable() else shown(value, 60)


def _dtype(files: _Files, found: Inspection) -> None:
    if not files.config:
        return
    old, new = files.config.get("torch_dtype"), files.config.get("dtype")
    old, new = (_said(value) if value else None for value in (old, new))
    said = new or old
    four = f"float32, or {old or new or 'float32'} with dtype='auto'"
    vllm = "bfloat16 or float16" if said in (None, "float32") else str(said)
    found.readings["dtype"] = (four, str(said or "as stored"), f"{vllm} (--dtype auto)")
    if old and new and old != new:
        found.warnings.append(f"config.json says torch_dtype {old} and dtype {new}")
    if new and not old:
        found.warnings.append(
            "config.json has dtype only; transformers before 4.56 wants torch_dtype"
        )


def _tokenizer(files: _Files, found: Inspection) -> None:
    name = files.tokenizer.get("tokenizer_class")
    name = _said(name) if name is not None else None
    fast = files.has("tokenizer.json")
    if not files.tokenizer and not fast:
        return
    default = f"by model type ({_said(files.config.get('model_type'), 'none')})"
    said = str(name or default)
    four = f"{said}: unknown" if name in ONLY_IN_FIVE else said
    found.readings["tokenizer class"] = (four, said, said)
    found.facts["tokenizer"] = "tokenizer.json" if fast else "no tokenizer.json"
    if name in ONLY_IN_FIVE:
        found.warnings.append(
            f"tokenizer_class {name} exists in transformers 5 only; transformers 4 fails. "
            "PreTrainedTokenizerFast is read by both"
        )


def _chat(files: _Files, found: Inspection) -> None:
    inside, beside = files.tokenizer.get("chat_template"), files.has("chat_template.jinja")
    if not inside and not beside:
        found.readings["chat template"] = ("none", "none", "none")
        return
    old = "tokenizer_config.json" if inside else "none before 4.50, then chat_template.jinja"
    new = "chat_template.jinja" if beside else "tokenizer_config.json"
    found.readings["chat template"] = (old if not (inside and beside) else new, new, new)
    if inside and beside:
        path = contained(files.folder, "chat_template.jinja")
        text = path.read_bytes().decode("utf-8", "replace")
        if text.strip() != str(inside).strip():
            found.warnings.append(
                "chat_template.jinja and tokenizer_config.json hold different chat templates; "
                "readers that know the file take the file"
            )


def _ends(files: _Files, found: Inspection) -> None:
    """Say which end tokens stop generation: those of generation_config, else of config."""
    ids = files.generation.get("eos_token_id")
    where = "generation_config.json"
    if ids is None:
        ids, where = files.config.get("eos_token_id"), "config.json"
    text = f"{shown(ids, 60)} ({where})" if ids is not None else "none"
    found.readings["end tokens"] = (text, text, f"{text} and the tokenizer's")
    if ids is None and files.config:
        found.warnings.append(
            "no eos_token_id in generation_config.json or config.json: generation "
            "runs to its length limit"
        )
    own = _token_id(files, _content(files.tokenizer.get("eos_token")))
    known = ids if isinstance(ids, list) else [ids]
    if own is not None and ids is not None and own not in known:
        found.warnings.append(
            f"the tokenizer's eos token has id {own}, which is not among the end tokens {known}"
        )


def _content(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else None


def _token_id(files: _Files, text: str | None) -> int | None:
    if text is None or not files.has("tokenizer.json"):
        return None
    added = _read(files.folder, "tokenizer.json").get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, Mapping) and token.get("content") == text:
            return token.get("id")
    return None


def _absent(files: _Files, found: Inspection) -> None:
    wanted = {
        "config.json": "no reader can tell the model type",
        "tokenizer.json": "readers need another tokenizer file",
        "tokenizer_config.json": "special tokens and the tokenizer's class are guessed",
        "generation_config.json": "end tokens and sampling come from config.json",
    }
    found.warnings.extend(
        f"no {name}: {why}" for name, why in wanted.items() if not files.has(name)
    )
