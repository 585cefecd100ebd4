"""Replacing a folder's checkpoint by another at one instant, whatever happens in between."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from bridges.files.regular_file import shown_path
from dew.errors import InputRefused

# What a checkpoint consists of. Everything else in the folder belongs to somebody else and stays.
OWN_NAMES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
        "adapter_config.json",
        "adapter_model.safetensors",
        "preprocessor_config.json",
        "processor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tokenizer.model",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates",
    }
)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_WEIGHTS = ("model.safetensors.index.json", "model.safetensors")
_CANNOT = (
    errno.EBUSY,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTSUP,
    errno.EPERM,
    errno.EXDEV,
    errno.EMLINK,
)


def is_checkpoint(name: str) -> bool:
    """Say whether a file of that name belongs to a checkpoint."""
    shard = name.startswith(("model-", "pytorch_model-")) and name.endswith(
        (".safetensors", ".bin")
    )
    return name in OWN_NAMES or shard


@contextlib.contextmanager
def staged(directory: Path, *, own: Callable[[str], bool] = is_checkpoint) -> Iterator[Path]:
    """Give a folder to write to; when the block ends without an error, it becomes `directory`.

    Until the last moment nothing of `directory` is touched, and then the old checkpoint and the
    new one change places in one system call: every reader, and every kill, finds one of them
    whole. Other files in `directory` (a run's checkpoints and logs) go along as hard links. Where
    a file system cannot exchange folders, files are renamed one by one, the weights out first and
    in last: a kill within those moments leaves a folder that nobody loads, not a mixture, and the
    old files beside the new ones.

    Args:
        directory: where the checkpoint is to stand; it need not exist.
        own: says of a name in `directory` whether it is replaced or goes away.

    Yields:
        An empty folder on the same file system.

    Raises:
        InputRefused: `directory` is a file.
    """
    directory = Path(os.path.abspath(directory))
    if directory.exists() and not directory.is_dir():
        raise InputRefused(
            f"{shown_path(directory)}: a file, expected a folder to write to; give another name"
        )
    directory.parent.mkdir(parents=True, exist_ok=True)
    folder = _staging_place(directory)
    shutil.rmtree(folder, ignore_errors=True)  # what an export that was killed left behind
    folder.mkdir()
    try:
        yield folder
        _sync_tree(folder)
        _commit(folder, directory, own)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def own_entries(directory: Path, own: Callable[[str], bool] = is_checkpoint) -> list[str]:
    """Return the names in a folder that belong to its checkpoint."""
    return sorted(entry.name for entry in os.scandir(directory) if own(entry.name))


def _staging_place(directory: Path) -> Path:
    """Return where to write: beside `directory`, or inside where beside is no place to write."""
    beside = directory.parent / f".{directory.name}.export-tmp"
    inside = directory / ".export-tmp"
    if directory.is_dir() and (os.path.ismount(directory) or not os.access(beside.parent, os.W_OK)):
        return inside
    return beside


def _commit(folder: Path, directory: Path, own: Callable[[str], bool]) -> None:
    """Put the finished folder in its place."""
    if not directory.exists():
        os.rename(folder, directory)
        sync_folder(directory.parent)
        return
    old = own_entries(directory, own)
    if not old:
        _move_in(folder, directory)
        return
    if folder.parent != directory:
        try:
            _link_others(directory, folder, frozenset(old))
            _exchange(folder, directory)
            sync_folder(directory.parent)
            return
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            _unlink_others(directory, folder, frozenset(old))
    _replace_in_place(folder, directory, old)


def _exchange(one: Path, two: Path) -> None:
    """Let two folders change their names in one step (Linux); `OSError` where that cannot be."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        raise OSError(errno.ENOSYS, "no exchange of folders on this system") from None
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(two), _RENAME_EXCHANGE):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(two))


def _link_others(source: Path, target: Path, skip: frozenset[str]) -> None:
    """Give everything in `source` but `skip` a second name in `target`."""
    for entry in os.scandir(source):
        if entry.name in skip or os.path.lexists(target / entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            (target / entry.name).mkdir()
            _link_others(Path(entry.path), target / entry.name, frozenset())
            shutil.copystat(entry.path, target / entry.name)
        else:
            os.link(entry.path, target / entry.name, follow_symlinks=False)
    sync_folder(target)


def _unlink_others(source: Path, target: Path, skip: frozenset[str]) -> None:
    """Take back what `_link_others` gave; the files keep their first name."""
    for entry in os.scandir(source):
        twin = target / entry.name
        if entry.name in skip or not os.path.lexists(twin):
            continue
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(twin)
        elif os.path.samestat(os.lstat(twin), entry.stat(follow_symlinks=False)):
            twin.unlink()


def _move_in(folder: Path, directory: Path) -> None:
    """Rename every file into `directory`, what makes a reader find the weights last."""
    names = [name for name in os.listdir(folder) if name not in _WEIGHTS]
    last = [name for name in _WEIGHTS if (folder / name).exists()]
    for name in (*sorted(names), *last):
        if (directory / name).is_dir():
            shutil.rmtree(directory / name)
        os.replace(folder / name, directory / name)
    sync_folder(directory)


def _replace_in_place(folder: Path, directory: Path, old: list[str]) -> None:
    """Replace the old files by the new ones where folders cannot be exchanged."""
    new = set(os.listdir(folder))
    same = {name for name in old if name in new and _equal(folder / name, directory / name)}
    for name in same:
        (folder / name).unlink()
    changed = (set(old) | new) - same
    if changed <= new and len(changed) <= 1:
        _move_in(folder, directory)  # one rename at most: that is one step, too
        return
    aside = directory / ".export-old"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    first = [name for name in _WEIGHTS if name in old and name not in same]
    for name in (*first, *(n for n in old if n not in same and n not in first)):
        os.rename(directory / name, aside / name)
    _move_in(folder, directory)
    shutil.rmtree(aside)


def _equal(one: Path, two: Path) -> bool:
    """Say whether two files hold the same bytes."""
    if not (one.is_file() and two.is_file()) or one.stat().st_size != two.stat().st_size:
        return False
    with open(one, "rb") as a, open(two, "rb") as b:
        while piece := a.read(1 << 20):
            if piece != b.read(1 << 20):
                return False
    return True


def _sync_tree(folder: Path) -> None:
    """Sync a folder and every folder in it; the files were synced when they were written."""
    for place, _, _ in os.walk(folder):
        sync_folder(Path(place))
