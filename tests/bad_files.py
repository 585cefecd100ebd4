"""Inputs made by hand, healthy and broken: what the cases of `test_bad_inputs.py` write.

Every function takes the folder that it writes into. Bytes are laid out here and not by the
libraries under test, since a library would refuse to write most of it.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

CANARY = "CANARY"
PAYLOAD = f"touch {CANARY}"
INDEX = "model.safetensors.index.json"
WIDTH, HEADS, TOKENS, POSITIONS = 8, 2, 32, 16


class Payload:
    """What runs a harmless command when it is unpickled."""

    def __reduce__(self):
        return os.system, (PAYLOAD,)


def write(folder: Path, name: str, content: Any) -> Path:
    """Write bytes as they are and anything else as JSON; return the path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def cut(path: Path, keep: int) -> None:
    """Keep the first `keep` bytes of a file; a negative number drops so many at the end."""
    path.write_bytes(path.read_bytes()[:keep])


def damaged(content: bytes, generator: np.random.Generator, reach: int) -> bytes:
    """Return the content with one to three faults among its first `reach` bytes."""
    raw = bytearray(content)
    extremes = (b"\xff" * 8, bytes(8), struct.pack("<Q", 2**63), struct.pack("<Q", 2**31))
    for _ in range(generator.integers(1, 4)):
        place, kind = int(generator.integers(reach)), generator.integers(4)
        if kind == 0:
            raw[place] = generator.integers(256)
        elif kind == 1:
            raw[place] ^= 1 << int(generator.integers(8))
        elif kind == 2:
            raw[place : place + 8] = extremes[generator.integers(4)]
        else:
            del raw[place : place + int(generator.integers(1, 20))]
    return bytes(raw)


def entry(dtype: str, shape: Sequence[int], start: int, end: int) -> dict[str, Any]:
    """Return a tensor's fields in a safetensors header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file; `length` is what it claims of its header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def packed(tensors: Mapping[str, np.ndarray]) -> bytes:
    """Return a good safetensors file of float32 tensors."""
    header, data = {}, b""
    for name, array in tensors.items():
        header[name] = entry("F32", array.shape, len(data), len(data) + array.nbytes)
        data += array.tobytes()
    return safetensors(header, data)


def gpt2_tensors(seed: int = 0, scale: float = 0.02) -> dict[str, np.ndarray]:
    """Return the tensors of a one-layer GPT-2, float32 of standard deviation `scale`."""
    generator, block = np.random.default_rng(seed), "transformer.h.0."
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (TOKENS, WIDTH),
        "transformer.wpe.weight": (POSITIONS, WIDTH),
    }
    for norm in (f"{block}ln_1", f"{block}ln_2", "transformer.ln_f"):
        shapes |= {f"{norm}.weight": (WIDTH,), f"{norm}.bias": (WIDTH,)}
    kernels = {
        "attn.c_attn": (WIDTH, 3 * WIDTH),
        "attn.c_proj": (WIDTH, WIDTH),
        "mlp.c_fc": (WIDTH, 4 * WIDTH),
        "mlp.c_proj": (4 * WIDTH, WIDTH),
    }
    for name, shape in kernels.items():
        shapes |= {f"{block}{name}.weight": shape, f"{block}{name}.bias": shape[1:]}
    return {name: generator.normal(0, scale, shape).astype("<f4") for name, shape in shapes.items()}


def gpt2_config(**changes: Any) -> dict[str, Any]:
    """Return the config of `gpt2_tensors`."""
    config: dict[str, Any] = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": 1,
        "n_embd": WIDTH,
        "n_head": HEADS,
        "n_positions": POSITIONS,
        "vocab_size": TOKENS,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    }
    return config | changes


def gpt2(folder: Path, **changes: Any) -> dict[str, Any]:
    """Write the healthy GPT-2 folder, with some keys of its config changed; return the config."""
    config = gpt2_config(**changes)
    write(folder, "config.json", config)
    write(folder, "model.safetensors", packed(gpt2_tensors()))
    return config


def sharded(folder: Path, weight_map: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
    """Write the GPT-2 folder with an index and shards in the place of the one file."""
    write(folder, "config.json", gpt2_config())
    write(folder, INDEX, {"metadata": {}, "weight_map": dict(weight_map)})
    for name, content in files.items():
        write(folder, name, content)


def string(text: str | bytes) -> bytes:
    """Return a GGUF string: its length and its bytes."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def gguf(
    fields: Sequence[tuple[str, int, bytes]] = (),
    tensors: Sequence[tuple[str, Sequence[int], int, int]] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    field_count: int | None = None,
) -> bytes:
    """Return a GGUF file of raw fields (key, type, bytes) and tensors (name, dims, type, offset).

    The counts are what the header claims; without them, the true ones.
    """
    counts = (
        len(tensors) if tensor_count is None else tensor_count,
        len(fields) if field_count is None else field_count,
    )
    raw = magic + struct.pack("<IQQ", version, *counts)
    for key, kind, value in fields:
        raw += string(key) + struct.pack("<I", kind) + value
    for name, dimensions, kind, offset in tensors:
        raw += string(name) + struct.pack("<I", len(dimensions))
        raw += struct.pack(f"<{len(dimensions)}Q", *dimensions)
        raw += struct.pack("<IQ", kind, offset)
    return raw + bytes(-len(raw) % 32) + data


LLAMA = ("general.architecture", 8, string("llama"))


def torch_zip(folder: Path, pickled: bytes, entries: Mapping[str, bytes] = {}) -> None:
    """Write pickle bytes, and further entries by full name, in the zip layout of torch.save."""
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        for name, content in entries.items():
            archive.writestr(name, content)


def zip_bomb(folder: Path, mebibytes: int) -> None:
    """Write torch's zip layout with a compressed pickle of so many MiB of zeros."""
    path = folder / "pytorch_model.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/version", "3\n")
        with archive.open("archive/data.pkl", "w", force_zip64=True) as entry:
            for _ in range(mebibytes):
                entry.write(bytes(2**20))


def pickled_view(shape: int, stored: int) -> bytes:
    """Return torch's pickle of a float32 tensor [shape] over a storage of `stored` elements."""
    text = b"X%s%s"
    parts = [
        b"\x80\x02}",  # protocol 2, an empty dict
        text % (struct.pack("<I", 1), b"w"),
        b"ctorch._utils\n_rebuild_tensor_v2\n((",
        text % (struct.pack("<I", 7), b"storage"),
        b"ctorch\nFloatStorage\n",
        text % (struct.pack("<I", 1), b"0"),
        text % (struct.pack("<I", 3), b"cpu"),
        b"J" + struct.pack("<i", stored),
        b"tQ",  # the storage, by its persistent id
        b"K\x00J" + struct.pack("<i", shape) + b"\x85K\x01\x85\x89",  # offset, size, stride
        b"ccollections\nOrderedDict\n)R",  # no hooks
        b"tRs.",
    ]
    return b"".join(parts)


def pickled_payload() -> bytes:
    """Return a state dict whose unpickling runs the payload."""
    return pickle.dumps({"w": Payload()}, protocol=2)


def tokenizer(model: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Return a healthy tokenizer.json of three tokens, with some sections changed."""
    merging = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}
    empty = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    whole = {"version": "1.0", "added_tokens": [], "model": dict(model or merging)}
    return dict.fromkeys(empty) | whole | changes
