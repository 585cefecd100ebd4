"""How much memory a run took at its highest."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_memory() -> int | None:
    """Return the most bytes in use so far: on a device, or of the process where that is the host.

    None where the backend does not say.
    """
    import jax

    devices = jax.local_devices()
    if devices[0].platform == "cpu":
        return _peak_of_process()
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in devices]
    known = [peak for peak in peaks if peak is not None]
    return max(known) if known else None


def _peak_of_process() -> int:
    """Return the peak resident bytes of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # getrusage begins with the peak of the process that this one was forked from.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
