"""The house itself: what importing costs, what is public, and that README shows every room."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dew

ROOT = Path(__file__).parent.parent
PACKAGES = ("dew", "bridges", "parity")


def _fresh(code: str) -> str:
    """Run `code` in a new interpreter and return what it prints."""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_importing_dew_loads_no_heavy_package():
    loaded = {name.split(".")[0] for name in _fresh("import sys, dew; print(*sys.modules)").split()}
    heavy = {"jax", "jaxlib", "flax", "optax", "orbax", "torch", "transformers", "numpy", "bridges"}
    assert not loaded & heavy


@pytest.mark.parametrize("package", ["bridges", "parity"])
def test_importing_the_other_packages_loads_neither_jax_nor_torch(package):
    loaded = _fresh(f"import sys, {package}; print(*sys.modules)").split()
    assert not {"jax", "torch", "transformers"} & set(loaded)


def test_importing_dew_is_quick_beside_starting_python():
    # A ratio, since machines differ: an import that loads numpy alone takes several starts.
    def seconds(code: str) -> float:
        began = time.perf_counter()
        _fresh(code)
        return time.perf_counter() - began

    start = min(seconds("pass") for _ in range(5))
    assert min(seconds("import dew") for _ in range(5)) < start + 0.2


def test_training_and_writing_text_import_no_torch():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from dew import Trainer, Checkpoints, evaluate, pipeline, metrics, LocalTracker\n"
        "import bridges; bridges.load, bridges.export, bridges.dataset\n"
        "print('ok')"
    )
    assert _fresh(code) == "ok"


def test_every_public_name_exists_and_is_documented():
    assert sorted(dew.__all__) == sorted(dew._EXPORTS)
    for name in dew.__all__:
        value = getattr(dew, name)
        assert value.__doc__, f"dew.{name} has no docstring"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dew.nothing


def test_registries_give_classes_and_offer_the_nearest_name():
    from dew.nn.backbones.causal_transformer import CausalTransformer
    from dew.objectives.lm import LMObjective
    from dew.registry import objectives

    assert dew.models["causal_transformer"] is CausalTransformer
    assert objectives.lm is LMObjective
    assert dew.metrics.perplexity().name == "perplexity"
    with pytest.raises(dew.InputRefused, match=r"did you mean 'perplexity'"):
        dew.metrics["perplexty"]
    for registry in (dew.models, dew.datasets, dew.metrics, objectives):
        for name in registry:
            assert isinstance(registry[name], type)


def test_no_module_hides_a_lazy_name():
    # The first import of `dew/metrics/` would replace the registry dew.metrics.
    beside = {path.stem for path in (ROOT / "dew").iterdir()}
    assert not beside & set(dew.__all__)


def test_readme_names_every_room_and_no_room_that_is_not_there():
    tree = re.search(r"```\n(pyproject\.toml.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert tree, "README.md has no tree"
    shown = set(re.findall(r"([a-z_]+)/", tree.group(1)))
    there = {
        path.name
        for package in PACKAGES
        for path in (ROOT / package, *(ROOT / package).iterdir())
        if path.is_dir() and path.name != "__pycache__"
    }
    there |= {
        name for name in ("tests", "benchmarks", "notebooks", "docs") if (ROOT / name).is_dir()
    }
    assert there - shown == set(), "folders that README's tree does not show"
    deeper = {
        path.name for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_dir()
    }
    assert shown - there - deeper == set(), "README's tree shows folders that are not there"


def test_files_are_short_enough_to_read():
    long = [
        f"{path.relative_to(ROOT)} has {count} lines"
        for package in (*PACKAGES, "tests", "benchmarks")
        for path in (ROOT / package).rglob("*.py")
        if (count := len(path.read_text().splitlines())) > 500
    ]
    assert not long, "\n".join(long)
