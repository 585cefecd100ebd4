"""`dew export RUN_OR_MODEL OUT`: write a checkpoint as a Hugging Face folder, and prove it."""

from __future__ import annotations

from dew.cli.command import Command, Option, Settings

COMMAND = Command(
    "export",
    "write a model or a run as a Hugging Face folder, reload it and compare",
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
        Option(
            "output_dir",
            "text",
            None,
            "the folder to write",
            ("output",),
            positional=True,
            required=True,
        ),
        Option("model_revision", "text", None, "branch, tag or commit on the hub"),
        Option("verify", "switch", True, "reload what was written and compare (--no-verify)"),
        Option("max_shard_size", "integer", 5 * 2**30, "bytes a weight file; takes 5G", low=1),
    ),
    run="bridges.commands.export:run",
)


def run(settings: Settings) -> int:
    """Export and say what was compared; a difference is a failure, status 1."""
    import bridges
    from dew.cli.source import merged_copy

    source, target = merged_copy(settings["model_name_or_path"]), settings["output_dir"]
    bundle = bridges.load(source, revision=settings["model_revision"])
    bridges.export(
        bundle, target, shard_bytes=settings["max_shard_size"], verify=settings["verify"]
    )
    how = "reloaded and equal to the source" if settings["verify"] else "not verified"
    print(f"{target}: written from {source}, {how}")
    return 0
