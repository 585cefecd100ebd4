"""Folders of image files, of whatever sizes, as features and their moments, in bounded memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dew.data.images import image_files, read_image
from dew.evaluation.frechet import Encoder, frechet_distance
from dew.evaluation.moments import Moments, merged, moments

BATCH, WORKERS = 50, 2
ROWS_AT_ONCE = 512
"""Rows whose moments are taken at once: a sum of D x D numbers costs as much as many rows."""

Seen = Callable[[int, int], None]
"""Told how many images are done, and how many there are."""


def folder_distance(
    generated: str | os.PathLike[str], real: str | os.PathLike[str], encoder: Encoder
) -> float:
    """Return the Fréchet distance of the images of two folders.

    Args:
        generated: a folder of image files; folders inside it are not looked into.
        real: the same.
        encoder: bytes [N, H, W, 3] to features [N, D], such as an `InceptionEncoder`.

    Raises:
        InputRefused: a folder without images, or a file that cannot be read.
        ValueError: fewer than two images in a folder.
    """
    made, wanted = folder_moments(generated, encoder), folder_moments(real, encoder)
    return frechet_distance(wanted, made)


def folder_moments(
    folder: str | os.PathLike[str],
    encoder: Encoder,
    *,
    batch: int = BATCH,
    workers: int = WORKERS,
    seen: Seen | None = None,
) -> Moments:
    """Return the moments of the features of all images right inside a folder.

    Images of one size among those read together are encoded together; each is resized by itself,
    so the value does not depend on which lie side by side. They are not turned as EXIF says, as
    the tools of FID do not.

    Args:
        folder: a folder of image files; folders inside it are not looked into.
        encoder: bytes [N, H, W, 3] to features [N, D].
        batch: images read together, at least 1; what bounds the memory.
        workers: threads that read the images to come; 0 reads none ahead.
        seen: told of each batch, or None.

    Raises:
        InputRefused: no image, or a file that cannot be read.
    """
    total: Moments | None = None
    waiting: list[NDArray[np.floating]] = []
    for rows in _batches(folder, encoder, batch, workers, seen):
        waiting.append(rows)
        if sum(map(len, waiting)) >= ROWS_AT_ONCE:
            total, waiting = _added(total, waiting), []
    if total is None or waiting:
        total = _added(total, waiting)
    return total


def folder_features(
    folder: str | os.PathLike[str],
    encoder: Encoder,
    *,
    batch: int = BATCH,
    workers: int = WORKERS,
    seen: Seen | None = None,
) -> NDArray[np.float64]:
    """Return the features [N, D] of all images right inside a folder, in the order of their names.

    Arguments and errors are those of `folder_moments`.
    """
    return np.concatenate(list(_batches(folder, encoder, batch, workers, seen))).astype(np.float64)


def _added(total: Moments | None, rows: Sequence[NDArray[np.floating]]) -> Moments:
    part = moments(np.concatenate(rows))
    return part if total is None else merged(total, part)


def _batches(
    folder: str | os.PathLike[str], encoder: Encoder, batch: int, workers: int, seen: Seen | None
) -> Iterator[NDArray[np.floating]]:
    """Yield the features [n, D] of each `batch` images."""
    files = image_files(folder)
    images, done = _images(files, batch + workers, workers), 0
    while done < len(files):
        together = [next(images) for _ in range(min(batch, len(files) - done))]
        yield _encoded(together, encoder)
        done += len(together)
        if seen is not None:
            seen(done, len(files))


def _encoded(images: Sequence[NDArray[np.uint8]], encoder: Encoder) -> NDArray[np.floating]:
    """Return the features [n, D] of images of unlike sizes, those of one size at a time."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, image in enumerate(images):
        places.setdefault(image.shape, []).append(place)
    order = [place for same in places.values() for place in same]
    parts = [encoder(np.stack([images[place] for place in same])) for same in places.values()]
    return np.concatenate(parts)[np.argsort(order)]


def _images(files: Sequence[Path], ahead: int, workers: int) -> Iterator[NDArray[np.uint8]]:
    """Yield the pixels of each file, read by threads, `ahead` files at most before their turn."""
    read = partial(read_image, turned=False)
    if not workers:
        yield from map(read, files)
        return
    with ThreadPoolExecutor(workers) as threads:
        coming: deque[Future[NDArray[np.uint8]]] = deque()
        try:
            for path in files:
                coming.append(threads.submit(read, path))
                if len(coming) > ahead:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for future in coming:
                future.cancel()
