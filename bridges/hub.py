"""Where a source lies: a path as it is given, or a repository of the hub, downloaded."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from bridges.assets import cache_directory
from bridges.files.regular_file import open_regular, shown_path
from dew.errors import InputRefused, listed, shown

_PART = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_-])?"
REPOSITORY = re.compile(rf"(?:{_PART}/)?{_PART}")
REVISION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,253}[A-Za-z0-9_-])?")
WANTED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model", "*.gguf"]
# Other formats' and libraries' copies of the weights lie in folders of their own.
UNWANTED = ["*/*.json", "*/*.safetensors", "*/*.txt", "*/*.model", "*/*.gguf", "consolidated*"]
# Wanted only where a repository has no weights of another kind.
PICKLED = ["pytorch_model*.bin"]
WEIGHTS = (".safetensors", ".gguf")
SHA256, GIT_OBJECT = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")
CHUNK_BYTES = 1 << 20
_LOOKS_LOCAL = ("/", "./", "../", "~")


def resolve(source: str | os.PathLike[str], revision: str | None = None) -> Path:
    """Return the local path of a source, downloading a hub repository if it is one.

    Args:
        source: a folder, a file, or a repository id such as `owner/name`.
        revision: branch, tag or commit of a repository.

    Raises:
        InputRefused: nothing of that name, an id or revision with path parts, or a downloaded file
            whose bytes are not those that the hub names it by.
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
    """Return the folder of a repository in the hub's cache, its files checked.

    HF_HUB_OFFLINE asks nobody.
    """
    folder = _snapshot(name, revision, WANTED)
    if not any(entry.name.endswith(WEIGHTS) for entry in folder.iterdir()):
        folder = _snapshot(name, revision, [*WANTED, *PICKLED])
    check_snapshot(folder)
    return folder


def check_snapshot(folder: Path) -> None:
    """Compare the files of a snapshot with the hashes that the hub's cache names them by.

    A file is read once: what was found whole is noted beside dew's other downloads, and read
    again only when it has changed since.

    Args:
        folder: `snapshots/<revision>`, whose files are links to `blobs/<hash>`.

    Raises:
        InputRefused: files with other bytes; they are set aside, so that the next load fetches
            them again.

    Source: huggingface_hub 2.4, whose names are sha256 for large files and git's object ids for
        the others.
    """
    problems = []
    for entry in sorted(folder.iterdir()):
        if not entry.is_symlink() or not entry.exists():
            continue
        blob = entry.parent / entry.readlink()
        problem = None if _is_noted(blob) else _blob_problem(blob)
        if problem is None:
            continue
        problems.append(f"{entry.name}: {problem}; {_set_aside(blob)}")
    if problems:
        raise InputRefused(
            listed(
                f"{shown_path(folder)}: files that changed on their way here or since. Load again "
                "to download them again:",
                problems,
            )
        )


def _set_aside(blob: Path) -> str:
    """Take a file out of the cache's way, and say where it is."""
    aside = blob.with_name(f"{blob.name}.damaged")
    try:
        os.replace(blob.resolve(), aside)
        if blob.is_symlink():  # into the store that all repositories share
            blob.unlink()
    except OSError as error:
        return f"it cannot be set aside ({error.strerror}), so delete {shown_path(blob)}"
    return f"set aside as {shown_path(aside)}"


def _blob_problem(blob: Path) -> str | None:
    """Return how a file of the cache differs from its name, or note that it does not."""
    if SHA256.fullmatch(blob.name):
        kind, digest = "sha256", hashlib.sha256()
    elif GIT_OBJECT.fullmatch(blob.name):
        kind, digest = "git object id", hashlib.sha1(usedforsecurity=False)
        digest.update(b"blob %d\0" % blob.stat().st_size)
    else:
        return None  # another server's names say nothing
    with open_regular(blob) as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
    found = digest.hexdigest()
    if found != blob.name:
        return f"its {kind} is {found}, the hub says {blob.name}"
    note = _note(blob)
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(_state(blob))
    except OSError:
        pass  # read again the next time
    return None


def _is_noted(blob: Path) -> bool:
    """Say whether a file was found whole before and has not been touched since."""
    try:
        return _note(blob).read_text() == _state(blob)
    except OSError:
        return False


def _note(blob: Path) -> Path:
    place = hashlib.sha256(os.fsencode(blob.resolve())).hexdigest()
    return cache_directory() / "whole" / place


def _state(blob: Path) -> str:
    """Return what changes when a file is written."""
    found = blob.stat()
    return f"{blob.name} {found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _snapshot(name: str, revision: str | None, wanted: list[str]) -> Path:
    """Return the folder with the files of a repository that fit the patterns."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=wanted, ignore_patterns=UNWANTED
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
