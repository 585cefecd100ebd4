"""The files of a source and of one of its splits: paths, patterns, folders, hub repositories."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bridges.data.dataset_card import Configuration, configuration
from bridges.data.media_folders import METADATA, SOUNDS, media_kind
from bridges.data.text_sources import DESCRIPTIONS
from bridges.files.regular_file import contained, open_regular, shown_path
from bridges.hub import check_snapshot, checked_repository
from dew.data.images import SUFFIXES as IMAGES
from dew.errors import InputRefused, UnknownName, nearest, shown

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
SHARDS = (".tar",)
SPLITS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "val", "dev", "eval"},
    "test": {"test", "testing"},
}
MEDIA = [name for suffix in (*IMAGES, *SOUNDS) for name in (suffix, suffix.upper())]
HUB_FILES = [*(f"*{suffix}" for suffix in (*TABLES, *SHARDS, ".txt", *MEDIA)), "README.md"]
RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")
SHARDS_LIMIT = 100_000
SHOWN = 5


@dataclass(frozen=True)
class DataFiles:
    """The files of one split.

    Args:
        folder: what the names are seen from.
        paths: the tables, shards or texts, in the order they are read in.
        media: the names of the images or sounds and of their metadata, where there are no tables.
        ignored: what else lies in the folder, by name.
        described: the features that a description beside the files gives, as JSON.
    """

    folder: Path
    paths: tuple[Path, ...] = ()
    media: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    described: Mapping[str, Any] = field(default_factory=dict)


def data_files(
    source: str | os.PathLike[str],
    *,
    split: str = "train",
    name: str | None = None,
    patterns: str | Sequence[str] | None = None,
    lines: bool = False,
) -> DataFiles:
    """Return the files of one split of a source.

    Files are of the split that a word of their path names (`train-00000.parquet`, `val/a.csv`);
    where none is named after training, all that no other split claims are `train`. A single file
    is its source's only split. What `datasets.save_to_disk` wrote is known by its descriptions.

    Args:
        source: a file, a folder, a pattern with `*` or `{000..009}`, or the id of a dataset on
            the hub.
        split: `train`, `validation`, `test` or another word of the files' names.
        name: which configuration of a repository, where its README names several.
        patterns: the files of the folder or repository that are meant, all of them this split.
        lines: whether `.txt` files count.

    Raises:
        InputRefused: nothing there, or nothing of a kind that is read. UnknownName: no such split
            or configuration.
    """
    text = os.fspath(source)
    if "\0" in text:
        raise InputRefused(f"{shown(text)} is neither a path nor the id of a dataset.")
    path = Path(text).expanduser()
    shards = expanded(text)
    if shards != [text]:
        found = tuple(path for each in shards for path in data_files(each, lines=lines).paths)
        return DataFiles(Path(os.path.commonpath(found)), found)
    of_folder = partial(_of_folder, split=split, name=name, patterns=patterns, lines=lines)
    if any(mark in text for mark in "*?[") and not os.path.lexists(path):
        found = tuple(sorted(Path(name) for name in glob.glob(str(path), recursive=True)))
        if not found:
            raise InputRefused(f"{shown_path(text)}: no file of that pattern. Check the path.")
        return DataFiles(Path(os.path.commonpath(found)), found)
    if os.path.lexists(path):
        if path.is_dir():
            return of_folder(path)
        if name is not None or patterns is not None:
            raise InputRefused(
                f"{shown_path(path)}: a single file has no configurations and no files by pattern."
            )
        return _single(path, split, lines)
    if isinstance(source, os.PathLike) or text.startswith(("/", "./", "../", "~")) or _ends(text):
        raise InputRefused(
            f"{shown_path(text)}: no such file or folder. Expected {_expected(lines)}; check the "
            "path."
        )
    return of_folder(download(text))


def expanded(pattern: str) -> list[str]:
    """Return the names that a pattern such as `shard-{000..009}.tar` stands for, in order.

    Raises:
        InputRefused: a pattern of more than a hundred thousand names.
    """
    found = RANGE.search(pattern)
    if found is None:
        return [pattern]
    first, last = found.groups()
    numbers = range(int(first), int(last) + 1)
    if len(numbers) > SHARDS_LIMIT or not len(numbers):
        raise InputRefused(
            f"{shown_path(pattern)}: {len(numbers)} names. Expected a range of 1 to {SHARDS_LIMIT}."
        )
    width = len(first) if first.startswith("0") else 0
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [name for n in numbers for name in expanded(f"{before}{n:0{width}}{after}")]


def download(name: str, revision: str | None = None) -> Path:
    """Return the folder of a dataset of the hub: its data files, from the cache where it can be.

    No script of the repository is fetched or run.

    Raises:
        InputRefused: no such dataset, no access, no network and nothing cached, or files that
            changed on their way.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    name, revision = checked_repository(name, revision)
    try:
        folder = snapshot_download(
            name, repo_type="dataset", revision=revision, allow_patterns=HUB_FILES
        )
    except LocalEntryNotFoundError:
        raise InputRefused(
            f"{shown(name)}: no such file or folder here, and the hub's cache holds no dataset of "
            "that name. Check the path, or allow the network (unset HF_HUB_OFFLINE) and try again."
        ) from None
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = shown((str(error).splitlines() or [type(error).__name__])[0])
        raise InputRefused(
            f"{shown(name)}: the hub does not give the dataset: {reason}. Check the id, the "
            "network, the free disk space and your access (HF_TOKEN)."
        ) from None
    found = Path(folder)
    for part in (found, *(path for path in found.rglob("*") if path.is_dir())):
        check_snapshot(part)
    return found


def _single(path: Path, split: str, lines: bool) -> DataFiles:
    if path.suffix.lower() not in (*TABLES, *SHARDS, *((".txt",) if lines else ())):
        advice = " One row a line is read with lines=True." if path.suffix == ".txt" else ""
        raise InputRefused(
            f"{shown_path(path)}: data of the kind {shown(path.suffix)}; expected "
            f"{_expected(lines)}.{advice}"
        )
    if split != "train" and not _words(path.name) & _split_words(split):
        raise UnknownName(
            f"split: found {shown(split)}, but {shown_path(path)} is a single file, which is one "
            "split, 'train'. Name the file that holds the other, or a folder of both."
        )
    return DataFiles(path.parent, (path,))


def _of_folder(
    folder: Path,
    *,
    split: str,
    name: str | None,
    patterns: str | Sequence[str] | None,
    lines: bool,
) -> DataFiles:
    saved = _saved(folder, split)
    if saved is not None:
        return saved
    chosen = configuration(folder, name)
    if patterns is not None:
        given = [patterns] if isinstance(patterns, str) else list(patterns)
        chosen = Configuration("data_files", {split: [p.removeprefix("./") for p in given]})
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if not path.is_dir()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    )
    inside = names if chosen is None else chosen.inside(names)
    meant = None if chosen is None else chosen.files(inside, split)
    inside = inside if meant is None else meant
    suffixes = (*TABLES, *SHARDS, *((".txt",) if lines else ()))
    readable = [
        name
        for name in inside
        if Path(name).suffix.lower() in suffixes and Path(name).name not in DESCRIPTIONS
    ]
    tables = [name for name in readable if Path(name).name not in METADATA]
    media = not tables and media_kind(inside, folder) is not None
    tables = tables or ([] if media else readable)
    if not tables and not media:
        raise InputRefused(
            f"{shown_path(folder)}: a folder without data. Expected {_expected(lines)}, or images "
            "or sounds, in it; found "
            f"{', '.join(shown(name, 60) for name in names[:SHOWN]) or 'no file'}."
        )
    kept = inside if media else tables
    kept = of_split(kept, split, folder) if meant is None else kept
    ignored = tuple(sorted(set(names) - set(kept)))
    paths = tuple(contained((folder / name).parent, Path(name).name) for name in kept)
    if media:
        return DataFiles(folder, media=tuple(kept), ignored=ignored)
    return DataFiles(folder, paths, ignored=ignored)


def of_split(names: Sequence[str], split: str, folder: Path) -> list[str]:
    """Return the names of a split.

    Raises:
        UnknownName: there is none; the message says which splits there are.
    """
    found = {
        known: [name for name in names if _words(name) & words] for known, words in SPLITS.items()
    }
    if split == "train":
        others = set(found["validation"]) | set(found["test"])
        chosen = [name for name in names if name in found["train"] or name not in others]
    else:
        chosen = [name for name in names if _words(name) & _split_words(split)]
    if not chosen:
        there = [known for known, files in found.items() if files] or ["train"]
        raise UnknownName(
            f"split: found {shown(split)}, but {shown_path(folder)} has "
            f"{', '.join(there)}{nearest(split, there)}"
        )
    return chosen


def _saved(folder: Path, split: str) -> DataFiles | None:
    """Return the files that `datasets.save_to_disk` wrote here, or None if it did not."""
    if os.path.lexists(folder / "dataset_dict.json"):
        splits = _described(folder, "dataset_dict.json").get("splits")
        splits = [name for name in splits or [] if isinstance(name, str)]
        chosen = (
            split
            if split in splits
            else next((name for name in splits if _words(name) & _split_words(split)), None)
        )
        if chosen is None:
            raise UnknownName(
                f"split: found {shown(split)}, but {shown_path(folder)} has "
                f"{', '.join(map(shown, splits))}{nearest(split, splits)}"
            )
        return _saved(contained(folder, chosen), "train")
    if not os.path.lexists(folder / "state.json"):
        return None
    files = _described(folder, "state.json").get("_data_files")
    if not isinstance(files, list) or not all(isinstance(f, Mapping) for f in files):
        return None
    if split != "train":
        raise UnknownName(
            f"split: found {shown(split)}, but {shown_path(folder)} is one saved dataset, whose "
            "only split is 'train'."
        )
    paths = tuple(contained(folder, str(file.get("filename"))) for file in files)
    about = _described(folder, "dataset_info.json").get("features")
    return DataFiles(folder, paths, described=about if isinstance(about, Mapping) else {})


def _described(folder: Path, name: str) -> Mapping[str, Any]:
    path = contained(folder, name)
    if not os.path.lexists(path):
        return {}
    try:
        with open_regular(path) as file:
            value = json.loads(file.read(1 << 26))
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InputRefused(f"{shown_path(path)}: not a JSON object. Save the dataset again.")
    return value


def _split_words(split: str) -> set[str]:
    return next((words for words in SPLITS.values() if split in words), {split.lower()})


def _words(name: str) -> set[str]:
    """Return the words of a path, as `data/train-00000.parquet` holds `data` and `train`."""
    return set(re.split(r"[-_./]", name.lower()))


def _ends(text: str) -> bool:
    return Path(text).suffix.lower() in (*TABLES, *SHARDS, ".txt")


def _expected(lines: bool) -> str:
    kinds = [*TABLES, *SHARDS, *([".txt"] if lines else [])]
    return f"a file that ends in {', '.join(kinds[:-1])} or {kinds[-1]}, or a folder of them"
