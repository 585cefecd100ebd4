"""`dew generate`: continue a prompt, or answer it through the chat template."""

from __future__ import annotations

import sys
from typing import Any

from dew.cli.command import Command, Option, Settings
from dew.cli.source import model_of
from dew.errors import InputRefused

_DRAWS = {"do_sample": True}
SAMPLING = (
    Option("max_new_tokens", "integer", 64, "the most tokens to add", low=1, section="sampling"),
    Option(
        "do_sample",
        "switch",
        False,
        "draw tokens instead of taking the likeliest; temperature, top_k, top_p and min_p imply it",
        section="sampling",
    ),
    Option(
        "temperature",
        "number",
        None,
        "above 0; below 1 is sharper",
        low=0,
        implies=_DRAWS,
        section="sampling",
    ),
    Option(
        "top_k", "integer", None, "keep the k likeliest", low=0, implies=_DRAWS, section="sampling"
    ),
    Option(
        "top_p",
        "number",
        None,
        "keep the likeliest up to this probability",
        low=0,
        high=1,
        implies=_DRAWS,
        section="sampling",
    ),
    Option(
        "min_p",
        "number",
        None,
        "keep what is at least this likely beside the likeliest",
        low=0,
        high=1,
        implies=_DRAWS,
        section="sampling",
    ),
    Option("repetition_penalty", "number", None, "above 1 repeats less", low=0, section="sampling"),
    Option("stop", "texts", (), "texts that end the answer", ("stop_strings",), section="sampling"),
    Option("seed", "integer", 0, "of the draws", low=0, section="sampling"),
)

COMMAND = Command(
    "generate",
    "continue a prompt with a model",
    (
        Option(
            "model_name_or_path",
            "text",
            None,
            "a folder, a .gguf file, a run's output folder, or a hub id",
            ("model",),
            positional=True,
            required=True,
        ),
        Option("prompt", "text", None, "what to continue; - or nothing reads standard input"),
        Option(
            "chat", "switch", False, "put the prompt through the chat template as a user's turn"
        ),
        Option(
            "output_dir",
            "text",
            None,
            "in a run's config.yaml: its folder is the model, unless a flag names another",
            ("output",),
        ),
        Option("model_revision", "text", None, "branch, tag or commit on the hub"),
        Option(
            "dtype",
            "text",
            "float32",
            "what activations are computed in",
            choices=("float32", "bfloat16", "float16"),
        ),
        *SAMPLING,
    ),
    run="dew.cli.generate:run",
)


def run(settings: Settings) -> int:
    """Print the prompt and its continuation, piece by piece on a terminal; return 0."""
    import dew

    prompt = _prompt(settings["prompt"])
    source = model_of(settings)
    named = {"revision": settings["model_revision"], "dtype": settings["dtype"]}
    task = dew.pipeline(source, "text-generation", **named)
    inputs: Any = [{"role": "user", "content": prompt}] if settings["chat"] else prompt
    options = {
        option.name: settings[option.name]
        for option in SAMPLING
        if option.name != "stop" and settings[option.name] is not None
    }
    if settings["stop"]:
        options["stop_strings"] = list(settings["stop"])
    if sys.stdout.isatty():
        if not settings["chat"]:
            _write(prompt)
        task(inputs, on_text=_write, **options)
        print()
    else:
        print(_text(task(inputs, **options)[0]["generated_text"]))
    return 0


def _prompt(text: str | None) -> str:
    if text not in (None, "-"):
        return str(text)
    if text is None and sys.stdin.isatty():
        raise InputRefused("prompt is missing: give --prompt, or pipe a text into dew generate")
    return sys.stdin.read()


def _write(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _text(generated: Any) -> str:
    return generated if isinstance(generated, str) else generated[-1]["content"]
