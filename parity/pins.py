"""What a reference needs to be installed, and how what is not so is named: with the pin."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version

DISTRIBUTIONS = {
    "skimage": "scikit-image",
    "PIL": "pillow",
    "cleanfid": "clean-fid",
    "sklearn": "scikit-learn",
}
"""Modules whose distribution has another name, beyond a dash for an underscore."""
NAME = re.compile(r"[A-Za-z0-9._-]+")


@cache
def unmet(needs: tuple[str, ...]) -> str:
    """Return what is not installed as it is needed and the command that mends it, or nothing.

    Args:
        needs: requirements as pip writes them, such as `("pytorch-fid==0.3.0", "scipy<1.18")`.
    """
    told, pins = [], []
    for need in needs:
        found = _found(need)
        if found:
            told.append(found)
            pins.append(need)
    return f"{'; '.join(told)}: {mend(pins)}" if told else ""


def mend(needs: Sequence[str]) -> str:
    """Return the command that installs what is needed."""
    return f"pip install {' '.join(repr(need) for need in needs)}"


def pin_of(module: str) -> str:
    """Return what dew's extras ask of the distribution that holds a module, or nothing."""
    wanted = DISTRIBUTIONS.get(module, module).replace("_", "-")
    for line in requires("dew") or ():
        need = line.split(";")[0].strip()
        if _name(need).replace("_", "-").lower() == wanted.lower() and "[" not in need:
            return need
    return ""


def import_hint(error: BaseException) -> str:
    """Return the command that installs what an error could not import, or nothing."""
    module = (getattr(error, "name", None) or "").split(".")[0]
    pin = pin_of(module) if isinstance(error, ImportError) and module else ""
    return f": {mend([pin])}" if pin else ""


def _found(need: str) -> str:
    """Return what is wrong with the installed version, or nothing."""
    name = _name(need)
    try:
        installed = version(name)
    except PackageNotFoundError:
        return f"{name} is not installed"
    # It comes with transformers, not with dew.
    from packaging.requirements import Requirement

    fits = Requirement(need).specifier.contains(installed, prereleases=True)
    return "" if fits else f"{name} {installed} is installed where {need} is needed"


def _name(need: str) -> str:
    matched = NAME.match(need)
    return matched.group() if matched else need
