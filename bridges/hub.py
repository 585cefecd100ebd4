"""Where a source lies: a path as it is given, or a repository of the hub, downloaded."""

from __future__ import annotations

import os
import re
from pathlib import Path

from bridges.files.regular_file import shown_path
from dew.errors import InputRefused, shown

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?"
REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}")
REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,253}[A-Za-z0-9_-])?")
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.gguf"]
# Other formats' and libraries' copies of the weights lie in folders of their own.
UNWANTED = ["*/*.json", "*/*.safetensors", "*/*.txt", "*/*.model", "*/*.gguf", "consolidated*"]
_LOOKS_LOCAL = ("/", "./", "../", "~")


def resolve(source: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Return the local path of a source, downloading a hub repository if it is one.

    Args:
        source: a folder, a file, or a repository id such as `owner/name`.
        revision: branch, tag or commit of a repository.

    Raises:
        InputRefused: nothing of that name, or an id or revision with path parts.
    """
    text = os.fspath(source)
    path = Path(text).expanduser()
    try:
        if os.path.lexists(path):
            return path
    except ValueError:
        raise InputRefused(f"{shown(text)} is neither a path nor a repository id") from None
    if isinstance(source, os.PathLike) or text.startswith(_LOOKS_LOCAL) or text.endswith(".gguf"):
        raise InputRefused(
            f"{shown_path(text)}: no such file or folder. Expected a folder with config.json and "
            "weights, a .gguf file, or a repository id of the hub (owner/name)."
        )
    return _download(*checked_repository(text, revision))


def checked_repository(name: str, revision: str | None) -> tuple[str, str | None]:
    """Return id and revision once both are sure to be plain names; nothing is asked or built.

    Raises:
        InputRefused: the id is not `name` or `owner/name`, or the revision has path parts.
    """
    if not REPOSITORY.fullmatch(name) or any(part in name for part in ("..", "--", ".git/")):
        raise InputRefused(
            f"{shown(name)}: no such path, and not a repository id of the hub. "
            "Expected a folder, a .gguf file, or an id such as 'owner/name'."
        )
    if revision is not None and (not REVISION.fullmatch(revision) or ".." in revision):
        raise InputRefused(f"revision {shown(revision)} is not the name of a branch, tag or commit")
    return name, revision


def _download(name: str, revision: str | None) -> Path:
    """Return the folder of a repository in the hub's cache; HF_HUB_OFFLINE asks nobody."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=WANTED, ignore_patterns=UNWANTED
        )
    except LocalEntryNotFoundError as error:
        raise InputRefused(
            f"{shown(name)}: no such folder here, and the hub's cache does not hold it. "
            "Check the path, or allow the network (unset HF_HUB_OFFLINE) and try again."
        ) from error
    except (HfHubHTTPError, HFValidationError) as error:
        raise InputRefused(
            f"{shown(name)}: the hub does not give it: {shown(str(error).splitlines()[0])}. "
            "Check the id, the revision and your access (HF_TOKEN)."
        ) from error
    except OSError as error:
        raise InputRefused(
            f"{shown(name)}: the download failed: {shown(str(error))}. Check the network and the "
            "free disk space, then try again; what is whole is kept."
        ) from error
    return Path(folder)
