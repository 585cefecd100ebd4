"""Rows of `test_bad_inputs.py`: weight files, shards and their index, pickles, GGUF."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import struct
import zipfile

import bad_files as files
import numpy as np
from bad_inputs import Case

ONE = "model.safetensors"
SHARD = "m-1.safetensors"


def whole(folder, content):
    """Write the GPT-2 folder with other bytes in the place of its weights."""
    files.gpt2(folder)
    files.write(folder, ONE, content)


def of_tensors(header, size):
    """Return a builder of the GPT-2 folder whose weights have this header and as many bytes."""
    return lambda folder: whole(folder, files.safetensors(header, bytes(size)))


def changed(change):
    """Return a builder of the GPT-2 folder after a change of its tensors."""

    def build(folder):
        tensors = files.gpt2_tensors()
        change(tensors)
        whole(folder, files.packed(tensors))

    return build


def polyglot(folder):
    """A zip archive behind the last tensor."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as z:
        z.writestr("x.py", "1")
    whole(folder, files.packed(files.gpt2_tensors()) + archive.getvalue())


def fifo(folder):
    """A named pipe in the place of the weights."""
    files.gpt2(folder)
    (folder / ONE).unlink()
    os.mkfifo(folder / ONE)


TWICE = (
    b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
    b'"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 5088\n"
MANY = 100_000
ESCAPES = "\x1b[2J\x1b]0;owned\x07\nINFO all good"
SAFETENSORS = [
    Case(
        "BP001",
        lambda f: whole(f, files.safetensors(b"{}", length=2**63 - 1)),
        (ONE, str(2**63 - 1), "has 10 bytes", "100000000"),
    ),
    Case("BP002", lambda f: whole(f, b""), (ONE, "empty file", "download")),
    Case(
        "BP003",
        lambda f: whole(f, files.packed(files.gpt2_tensors())[:-17]),
        (ONE, "cut off", r"take \d+ bytes, the file holds \d+"),
    ),
    Case(
        "BP004",
        of_tensors(
            {"w": files.entry("F32", [4194305, 4194305, 211106198978564], 0, 16)},
            16,
        ),
        (ONE, "'w'", str(4194305**2 * 211106198978564 * 4), "give 16"),
    ),
    Case(
        "BP005",
        of_tensors({"w": files.entry("I32", [1000, 1000], 0, 4)}, 4),
        (ONE, "'w'", "4000000 bytes", "give 4"),
    ),
    Case(
        "BP006",
        of_tensors({"a": files.entry("F32", [4], 0, 16), "b": files.entry("F32", [4], 0, 16)}, 16),
        (ONE, "'a' and 'b' overlap"),
    ),
    Case(
        "BP007",
        of_tensors({"a": files.entry("F32", [1], 0, 4), "b": files.entry("F32", [1], 8, 12)}, 12),
        (ONE, r"bytes 4\.\.8"),
    ),
    Case("BP008", polyglot, (ONE, r"\d+ bytes after the last tensor")),
    Case("BP009", of_tensors(TWICE, 8), (ONE, "'w' stands twice")),
    Case(
        "BP010",
        changed(lambda t: t.update({ESCAPES: np.ones(1, "<f4")})),
        ("left over", r"\\x1b\[2J\\x1b\]0;owned\\x07\\nINFO all good"),
    ),
    Case(
        "BP011",
        of_tensors(
            {f"t{i}": files.entry("F32", [1], 4 * i, 4 * i + 4) for i in range(MANY)}, 4 * MANY
        ),
        ("left over", r"\bt0 ", r"\bt19 ", "and 99980 more"),
        seconds=5.0,
        memory=512.0,
    ),
    Case(
        "BP012",
        changed(lambda t: t["transformer.wte.weight"].__setitem__((3, 3), np.nan)),
        accepted=lambda result: (
            len(result["warnings"]) == 1
            and "transformer.wte.weight" in result["warnings"][0]
            and result["warnings"][0].endswith(": 1")
        ),
    ),
    Case("BP013", lambda f: whole(f, POINTER), (ONE, "Git LFS pointer", "git lfs pull")),
    Case("BP014", fifo, (ONE, "named pipe", "regular file"), seconds=2.0),
]


def stolen(name):
    """Return a builder of an index that names a file elsewhere, by `name(folder)`."""

    def build(folder):
        files.write(folder.parent, "outside/s.safetensors", files.packed(files.gpt2_tensors(1)))
        files.sharded(folder, dict.fromkeys(files.gpt2_tensors(), name(folder)), {})

    return build


def absolute(folder):
    """An index that names a shard of its own folder by an absolute path."""
    path = files.write(folder, "abs.safetensors", files.packed(files.gpt2_tensors(1)))
    files.sharded(folder, dict.fromkeys(files.gpt2_tensors(), str(path.resolve())), {})


def linked(folder):
    """A shard that is a link out of the folder."""
    stolen(lambda _: SHARD)(folder)
    os.symlink("../outside/s.safetensors", folder / SHARD)


def linked_gguf(folder):
    """A lone GGUF file that is a link out of the folder."""
    path = files.write(folder.parent, "outside/a.gguf", files.gguf([files.LLAMA]))
    os.symlink(os.path.relpath(path, folder), folder / "a.gguf")


def cut_index(folder):
    """An index cut off."""
    tensors = files.gpt2_tensors()
    files.sharded(folder, dict.fromkeys(tensors, SHARD), {SHARD: files.packed(tensors)})
    files.cut(folder / files.INDEX, 60)


def broken_promise(folder):
    """A shard without three tensors that the index promises."""
    tensors = files.gpt2_tensors()
    rest = dict(list(tensors.items())[3:])
    files.sharded(folder, dict.fromkeys(tensors, SHARD), {SHARD: files.packed(rest)})


def two_bad_shards(folder):
    """One shard absent, one empty, one good."""
    tensors = files.gpt2_tensors()
    names = list(tensors)
    good = files.packed({name: tensors[name] for name in names[::3]})
    files.sharded(
        folder,
        {name: f"m-{i % 3}.safetensors" for i, name in enumerate(names)},
        {"m-0.safetensors": good, "m-1.safetensors": b""},
    )


SHARDS = [
    Case(
        "BP015",
        stolen(lambda _: "../outside/s.safetensors"),
        (files.INDEX, r"\.\./outside/s\.safetensors", "plain"),
    ),
    Case("BP016", absolute, (files.INDEX, r"abs\.safetensors", "plain")),
    Case("BP017", linked, (SHARD, "link", "outside the folder")),
    Case("BP017-gguf", linked_gguf, (r"a\.gguf", "link", "outside the folder")),
    Case("BP018", cut_index, (rf"{files.INDEX}:1:\d+",)),
    Case(
        "BP019",
        broken_promise,
        (SHARD, *list(files.gpt2_tensors())[:3]),
    ),
    Case(
        "BP020",
        two_bad_shards,
        (r"m-1\.safetensors: an empty file", r"m-2\.safetensors: no such file"),
    ),
]


def pickled(content):
    """Return a builder of a folder with pickled weights only."""

    def build(folder):
        files.write(folder, "config.json", files.gpt2_config())
        content(folder)

    return build


BIN = r"pytorch_model\.bin"
SYSTEM = (BIN, f"global '{os.system.__module__}.system'", "not allowed", "safetensors")
# An unknown class, where a reader might try again without its guard, and then the payload.
UNKNOWN_FIRST = pickle.dumps([pathlib.PurePosixPath("x"), files.Payload()], protocol=2)
TOO_LARGE_A_VIEW = files.pickled_view(1000, stored=4), {"archive/data/0": bytes(16)}
REPEATED = (
    # The stride of the same pickle set to 0.
    files.pickled_view(2**30, stored=1).replace(b"\x85K\x01\x85\x89", b"\x85K\x00\x85\x89"),
    {"archive/data/0": bytes(4)},
)
PICKLES = [
    Case(
        "BP033",
        pickled(lambda f: files.write(f, "pytorch_model.bin", files.pickled_payload())),
        SYSTEM,
    ),
    Case("BP034", pickled(lambda f: files.torch_zip(f, files.pickled_payload())), SYSTEM),
    Case(
        "BP035",
        pickled(lambda f: files.torch_zip(f, UNKNOWN_FIRST)),
        (BIN, "global 'pathlib.PurePosixPath'", "not allowed"),
    ),
    Case(
        "BP036",
        pickled(
            lambda f: files.torch_zip(
                f, pickle.dumps(files.Payload(), protocol=2)[:-1] + b"\xff garbage"
            )
        ),
        SYSTEM,
    ),
    Case(
        "BP037",
        pickled(lambda f: files.zip_bomb(f, 256)),
        (BIN, "'archive/version' is compressed", "stored uncompressed"),
        memory=32.0,
        seconds=1.0,
    ),
    Case(
        "BP038",
        pickled(lambda f: files.torch_zip(f, *TOO_LARGE_A_VIEW)),
        (BIN, "'w'", "needs 4000 bytes", "has 16"),
    ),
    Case(
        "BP039",
        pickled(lambda f: files.torch_zip(f, pickle.dumps({}), {"../../evil.txt": b"x"})),
        (BIN, r"'\.\./\.\./evil\.txt' leaves the archive"),
    ),
    Case(
        "bin of lists",  # as many objects in as few bytes as a pickle can ask for
        pickled(lambda f: files.torch_zip(f, b"\x80\x02" + b"]\x94" * (7 << 20))),
        (BIN, "more than 2000000 operations"),
    ),
    Case(
        "bin repeated",  # one byte that a view repeats 2^40 times
        pickled(lambda f: files.torch_zip(f, *REPEATED)),
        (BIN, "'w'", "repeats the 4 bytes"),
    ),
    Case("empty bin", pickled(lambda f: files.write(f, "pytorch_model.bin", b"")), (BIN, "empty")),
    Case(
        "bin pointer",
        pickled(lambda f: files.write(f, "pytorch_model.bin", POINTER)),
        (BIN, "Git LFS pointer", "git lfs pull"),
    ),
]


def a_gguf(fields=(files.LLAMA,), *arguments, **counts):
    """Return a builder of a lone GGUF file."""
    return lambda folder: files.write(folder, "a.gguf", files.gguf(fields, *arguments, **counts))


def endless_rank(folder):
    """A tensor of 2^32 - 1 dimensions."""
    start = files.gguf([files.LLAMA], tensor_count=1).rstrip(b"\0")
    rank = struct.pack("<I", 2**32 - 1)
    files.write(folder, "a.gguf", start + files.string("w") + rank + bytes(64))


def gguf_case(name, build, *words):
    """Return the row of a GGUF file."""
    return Case(name, build, (r"a\.gguf", *words), target="a.gguf")


HUGE = 2**64 - 1
TOKENS = "tokenizer.ggml.tokens"
GGUF = [
    gguf_case("BP040-magic", a_gguf(magic=b"FUGG"), "FUGG", "expected b'GGUF'"),
    gguf_case("BP040-version", a_gguf(version=999), "version 999", r"expected one of \(2, 3\)"),
    gguf_case("BP041", a_gguf(tensor_count=HUGE), f"tensors: .*{HUGE}", r"\d+ left"),
    gguf_case("BP042", a_gguf(field_count=HUGE), f"fields: .*{HUGE}", r"\d+ left"),
    gguf_case("BP043", a_gguf([("general.name", 8, struct.pack("<Q", 2**63))]), str(2**63), "left"),
    gguf_case(
        "BP044",
        a_gguf([files.LLAMA, (TOKENS, 9, struct.pack("<IQ", 8, 2**60))]),
        TOKENS,
        str(2**60),
        "left",
    ),
    gguf_case("BP045", endless_rank, "4294967295 dimensions", "at most 4"),
    gguf_case(
        "BP046",
        a_gguf([files.LLAMA], [("w", [2**32] * 3, 0, 0)], bytes(64)),
        "'w'",
        str(2**96 * 4),
    ),
    gguf_case(
        "BP047",
        a_gguf([files.LLAMA], [("token_embd.weight", [8, 32], 0, 2**40)], bytes(64)),
        "token_embd.weight",
        str(2**40),
        "holds 64",
    ),
    gguf_case(
        "BP048",
        a_gguf(
            [files.LLAMA, ("general.alignment", 4, struct.pack("<I", 0))],
            [("w", [8], 0, 0)],
            bytes(64),
        ),
        "general.alignment is 0",
        "power of two",
    ),
    gguf_case(
        "BP049", a_gguf([files.LLAMA], [("w", [8], 250, 0)], bytes(64)), "'w'", "250", "Q4_1"
    ),
]

ROWS = [*SAFETENSORS, *SHARDS, *PICKLES, *GGUF]
