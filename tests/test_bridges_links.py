"""Links in a checkpoint folder: those of the hub's cache are followed, those out of it are not."""

from __future__ import annotations

import os
from pathlib import Path

import bad_files as files
import numpy as np
import pytest
from helpers import llama_config, llama_tensors
from test_bridges_gguf import write_gguf

import bridges
from bridges.files.tensors import open_tensors
from bridges.inspection import inspect_checkpoint
from bridges.text.processors import read_processor
from dew.errors import InputRefused

FILES = {
    "config.json": files.gpt2_config(),
    "model.safetensors": files.packed(files.gpt2_tensors()),
    "generation_config.json": {"eos_token_id": 0},
    "tokenizer.json": files.tokenizer(),
    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    "special_tokens_map.json": {},
    "added_tokens.json": {},
    "chat_template.jinja": b"{{ messages[0]['content'] }}",
    "additional_chat_templates/tools.jinja": b"tools",
}
TEMPLATES = "additional_chat_templates"


def write_checkpoint(folder: Path) -> Path:
    for name, content in FILES.items():
        files.write(folder, name, content)
    return folder


def lead_out(folder: Path, name: str) -> None:
    """Move a file or folder out of `folder` and leave a link to it."""
    outside = folder.parent / "outside"
    outside.mkdir()
    path, target = folder / name, outside / Path(name).name
    os.rename(path, target)
    path.symlink_to(os.path.relpath(target, path.parent))


def as_cache_entry(folder: Path, entry: Path) -> Path:
    """Lay a folder out as the hub's cache does, and return the snapshot."""
    snapshot, blobs = entry / "snapshots" / "abc", entry / "blobs"
    blobs.mkdir(parents=True)
    for number, path in enumerate(p for p in sorted(folder.rglob("*")) if p.is_file()):
        link = snapshot / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        (blobs / str(number)).write_bytes(path.read_bytes())
        link.symlink_to(os.path.relpath(blobs / str(number), link.parent))
    return snapshot


@pytest.mark.parametrize("name", [*FILES, TEMPLATES])
def test_a_link_that_leads_out_is_refused_whatever_it_stands_for(name, tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint")
    lead_out(folder, name)
    with pytest.raises(InputRefused, match=rf"{Path(name).name}: a link to .* outside the folder"):
        bridges.load(folder)


def test_chat_template_json_is_held_to_the_same(tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint")
    for name in ("chat_template.jinja", f"{TEMPLATES}/tools.jinja"):
        (folder / name).unlink()
    files.write(folder, "chat_template.json", {"chat_template": "a"})
    lead_out(folder, "chat_template.json")
    with pytest.raises(InputRefused, match=r"chat_template\.json: a link .* outside the folder"):
        bridges.load(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_link_to_nothing_is_refused_and_not_taken_for_absent(name, tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint")
    (folder / name).unlink()
    (folder / name).symlink_to("nowhere")
    with pytest.raises(InputRefused, match="a link to a file that is not there"):
        bridges.load(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_inspection_follows_no_link_that_leads_out(name, tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint")
    lead_out(folder, name)
    with pytest.raises(InputRefused, match="outside the folder"):
        inspect_checkpoint(folder)


def test_a_hub_snapshot_of_links_is_the_folder_itself(tmp_path):
    folder = write_checkpoint(tmp_path / "checkpoint")
    snapshot = as_cache_entry(folder, tmp_path / "models--org--name")
    ids = np.arange(6)[None]
    ours, theirs = bridges.load(snapshot), bridges.load(folder)
    np.testing.assert_array_equal(ours(input_ids=ids)["logits"], theirs(input_ids=ids)["logits"])
    read = [read_processor(path) for path in (snapshot, folder)]
    assert [sorted(p.templates.texts) for p in read if p] == [["default", "tools"]] * 2
    assert inspect_checkpoint(snapshot).readings == inspect_checkpoint(folder).readings


def test_a_gguf_file_is_held_to_the_same_as_safetensors(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    config = llama_config()
    write_gguf(folder / "a.gguf", config, llama_tensors(config), "F32")
    snapshot = as_cache_entry(folder, tmp_path / "models--org--name")
    whole = bridges.load(folder).variables["params"]["embed"]["table"]
    np.testing.assert_array_equal(
        bridges.load(snapshot).variables["params"]["embed"]["table"], whole
    )
    # A path that the user gives is the user's: the file is named, whatever lies behind it.
    np.testing.assert_array_equal(
        bridges.load(snapshot / "a.gguf").variables["params"]["embed"]["table"], whole
    )
    lead_out(folder, "a.gguf")
    for read in (bridges.load, open_tensors):
        with pytest.raises(InputRefused, match=r"a\.gguf: a link to .* outside the folder"):
            read(folder)
