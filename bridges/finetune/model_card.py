"""The model card: README.md with front matter the Hub accepts, how it was trained, results."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}")
_PACKAGES = ("dew", "jax", "flax", "optax", "numpy", "safetensors", "tokenizers")


def model_card(
    *,
    name: str,
    source: str,
    adapter: bool,
    pipeline: str,
    usage: str,
    settings: str,
    before: Mapping[str, float],
    results: Mapping[str, float],
    rows: int,
) -> str:
    """Return the text of README.md.

    Args:
        name: of the run.
        source: what it was trained from.
        adapter: whether the weights are a LoRA adapter.
        pipeline: the pipeline's task that the model does.
        usage: a call of that pipeline, a line of Python without the pipeline.
        settings: the run's YAML.
        before: scores of the model as it was loaded, by name.
        results: scores and counts of the finished run, by name.
        rows: training rows of one epoch.

    The front matter names a base model only where it is a hub id: the Hub rejects a path. For the
    same reason there is no `model-index`, which it rejects when partial.
    """
    import yaml

    front: dict[str, Any] = {"library_name": "peft" if adapter else "transformers"}
    if _HUB_ID.fullmatch(source) and not Path(source).exists():
        front["base_model"] = source
        front["base_model_relation"] = "adapter" if adapter else "finetune"
    front["tags"] = ["generated_from_trainer", "dew", "jax", pipeline]
    front["pipeline_tag"] = pipeline
    kind = "A LoRA adapter for" if adapter else "Fine-tuned from"
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {name}",
        f"{kind} `{Path(source).name if Path(source).exists() else source}` with dew, on JAX.",
        _use(adapter, pipeline, usage),
        f"## How it was trained\n\n{rows} rows an epoch. The settings, as in `config.yaml`:\n\n"
        f"```yaml\n{settings}```",
        _table("## Results", before, results),
        "## Versions\n\n" + "\n".join(f"- {line}" for line in versions()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def versions() -> list[str]:
    """Return the packages that made the numbers, with their versions."""
    import platform
    from importlib import metadata

    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return found


def _use(adapter: bool, pipeline: str, usage: str) -> str:
    lines = ["```python", "from transformers import pipeline", ""]
    if adapter:
        lines += ["# The adapter merged into its base lies in `merged`.", ""]
    folder = '"path/to/this/folder/merged"' if adapter else '"path/to/this/folder"'
    lines += [f'pipeline("{pipeline}", {folder}){usage}', "```"]
    return "\n".join(lines)


def _table(heading: str, before: Mapping[str, float], results: Mapping[str, float]) -> str:
    if not results:
        return ""
    lines = [heading, "", "| | before | after |", "|---|---|---|"]
    for name, value in results.items():
        first = f"{before[name]:.6g}" if name in before else ""
        lines.append(f"| {name} | {first} | {value:.6g} |")
    return "\n".join(lines)
