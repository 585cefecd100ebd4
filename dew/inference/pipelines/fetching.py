"""The bytes behind an address: of an image or a sound that a pipeline was handed as a URL."""

from __future__ import annotations

import os

from dew.errors import InputRefused, shown

SCHEMES = ("http://", "https://")
OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")
SIZE_LIMIT = 256 << 20
SECONDS = 60.0


def is_url(value: object) -> bool:
    """Return whether `value` is an address of the web."""
    return isinstance(value, str) and value.lower().startswith(SCHEMES)


def fetched(url: str, *, timeout: float | None = None) -> bytes:
    """Return what an address gives.

    Args:
        url: beginning with http:// or https://.
        timeout: seconds to wait for each answer; None for 60.

    Raises:
        InputRefused: the network is switched off, does not answer, or gives more than 256 MiB.
    """
    from urllib.request import urlopen

    where = shown(url)[1:-1]
    off = [
        name for name in OFFLINE if os.environ.get(name, "").lower() in ("1", "true", "on", "yes")
    ]
    if off:
        raise InputRefused(
            f"{where}: the network is off ({off[0]} is set), so an address cannot be read. "
            f"Download the file and pass its path, or unset {off[0]}."
        )
    try:
        with urlopen(url, timeout=timeout or SECONDS) as answer:
            data = answer.read(SIZE_LIMIT + 1)
    except (OSError, ValueError) as error:
        raise InputRefused(
            f"{where}: not to be had ({shown(str(error))[1:-1]}). Check the address, or download "
            "the file and pass its path."
        ) from None
    if len(data) > SIZE_LIMIT:
        raise InputRefused(
            f"{where}: more than {SIZE_LIMIT >> 20} MiB. Download the file and pass its path."
        )
    return data
