"""Bad inputs are refused in one clear message, or accepted as stated; nothing runs or is lost.

Each case is a row: what it writes, what is done with it, and the verdict. `bad_inputs.Oracle`
checks what must hold of every one of them.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile

import bad_files as files
import numpy as np
import pytest
from bad_inputs import Case, Oracle

ONE = "model.safetensors"
SHARD = "m-1.safetensors"


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """The server that runs the cases, and the healthy folder it compares with."""
    healthy = tmp_path_factory.mktemp("bad_inputs") / "healthy"
    healthy.mkdir()
    files.gpt2(healthy)
    files.write(healthy, "tokenizer.json", files.tokenizer())
    files.write(healthy, "tokenizer_config.json", {"chat_template": "{{ messages[0]['content'] }}"})
    files.write(healthy, "run.yaml", {"max_steps": 3})
    server = Oracle(healthy)
    yield server
    server.close()


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


def config(**changes):
    """Return a builder of the GPT-2 folder with other keys in its config."""
    return lambda folder: files.gpt2(folder, **changes)


def config_bytes(change):
    """Return a builder of the GPT-2 folder after a change of its config's bytes."""

    def build(folder):
        content = json.dumps(files.gpt2(folder)).encode()
        files.write(folder, "config.json", change(content))

    return build


def remote_code(folder):
    """A config that asks for a Python file of the folder."""
    classes = {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}
    files.gpt2(folder, model_type="evil", auto_map=classes)
    files.write(folder, "evil.py", f"import os; os.system('{files.PAYLOAD}')".encode())


CODE = f"__import__('os').system('{files.PAYLOAD}')"
DEEP = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
CONFIG = [
    Case("BP021", config_bytes(lambda c: c[:-30]), (r"config\.json:1:\d+", "JSON")),
    Case(
        "BP022",
        config_bytes(lambda c: json.dumps(json.loads(c)).encode("utf-16")),
        (r"config\.json", "not UTF-8", "UTF-16"),
    ),
    Case("BP023", config_bytes(lambda _: DEEP), (r"config\.json:1:\d+", "nesting limit")),
    Case(
        "BP024",
        config(n_layer=10**9),
        ("config.json asks for 1000000000", "file holds 1"),
        seconds=3.0,
    ),
    Case(
        "BP025",
        config(n_positions=2**40),
        ("transformer.wpe.weight", r"\(16, 8\)", str(2**40)),
        seconds=3.0,
    ),
    Case("BP026", config(n_embd="8", n_head=2.5), ("config.json", "n_embd", "'8'", "whole number")),
    Case("BP026-head", config(n_head=2.5), ("config.json", "n_head", r"2\.5", "whole number")),
    Case("BP027", config(n_head=3), ("config.json", "n_embd", r"\b8\b", r"\b3\b")),
    Case(
        "BP028",
        config_bytes(lambda c: c.replace(b"1e-05", b"NaN")),
        (r"config\.json:1:\d+", "NaN"),
    ),
    Case("BP029", remote_code, ("config.json", "evil", "remote code", "never runs")),
    Case("BP030", config(model_type="../../os"), ("model_type", r"'\.\./\.\./os'", "gpt2, llama")),
    Case("BP031", config(activation_function=CODE), ("activation_function", "gelu_new")),
    Case(
        "BP032",
        config(n_embd=16),
        ("transformer.wte.weight", r"\(32, 16\)", r"\(32, 8\)", "transformer.ln_f.bias"),
    ),
]


def pickled(content):
    """Return a builder of a folder with pickled weights only."""

    def build(folder):
        files.write(folder, "config.json", files.gpt2_config())
        content(folder)

    return build


# Pickled weights are refused unread for now, whatever they hold: the words are the same.
NO_PICKLE = (r"pytorch_model\.bin", "never unpickles", "safetensors or GGUF")
PICKLES = [
    Case(
        "BP033",
        pickled(lambda f: files.write(f, "pytorch_model.bin", files.pickled_payload())),
        NO_PICKLE,
    ),
    Case("BP034", pickled(lambda f: files.torch_zip(f, files.pickled_payload())), NO_PICKLE),
    Case(
        "BP036",
        pickled(
            lambda f: files.torch_zip(
                f, pickle.dumps(files.Payload(), protocol=2)[:-1] + b"\xff garbage"
            )
        ),
        NO_PICKLE,
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


def a_tokenizer(model=None, config=None, **changes):
    """Return a builder of a tokenizer.json, with or without a checkpoint around it."""

    def build(folder):
        if config is not None:
            files.gpt2(folder, **config)
        files.write(folder, "tokenizer.json", files.tokenizer(model, **changes))

    return build


def cut_tokenizer(folder):
    """A tokenizer.json cut off."""
    a_tokenizer()(folder)
    files.cut(folder / "tokenizer.json", -40)


def token(content, number):
    """Return an added token of a tokenizer.json."""
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    return dict.fromkeys(flags, False) | {"id": number, "content": content, "special": True}


def tokenizer_case(name, build, *words, text="ab", **limits):
    """Return the row of a tokenizer."""
    words = (r"tokenizer\.json", *words)
    return Case(name, build, words, action="tokenize", payload=text, **limits)


BACKTRACKING = {
    "type": "Split",
    "pattern": {"Regex": "^(a+)+$"},
    "behavior": "Isolated",
    "invert": False,
}
GROWING = {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 1_000_000}
TOKENIZER = [
    tokenizer_case("BP050", cut_tokenizer, r"tokenizer\.json:1:\d+"),
    Case(
        "BP051",
        a_tokenizer(
            {"type": "WordLevel", "vocab": {"[U]": 0, "big": 99}, "unk_token": "[U]"}, config={}
        ),
        ("vocab_size is 32", r"\b99\b"),
    ),
    tokenizer_case(
        "BP052",
        a_tokenizer(added_tokens=[token("<big>", 99)]),
        "<big>",
        "99",
        r"\b3\b",
        text="<big>",
    ),
    tokenizer_case(
        "BP053",
        a_tokenizer(pre_tokenizer=BACKTRACKING),
        r"\^\(a\+\)\+\$",
        text="a" * 40 + "!",
        seconds=5.0,
    ),
    tokenizer_case("BP054", a_tokenizer(normalizer=GROWING), "normalizer", text="a" * 1000),
    tokenizer_case(
        "BP055",
        a_tokenizer({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "zz"]]}),
        "'a' with 'zz'",
        "vocabulary",
    ),
    tokenizer_case(
        "BP056",
        a_tokenizer(
            {"type": "WordLevel", "vocab": {"good": 1, "bad": 1, "[U]": 0}, "unk_token": "[U]"}
        ),
        "'good'",
        "'bad'",
        text="good",
    ),
]


def template_case(name, template, *words, **limits):
    """Return the row of a chat template; a list stands for named templates."""

    def build(folder):
        files.gpt2(folder)
        files.write(folder, "tokenizer.json", files.tokenizer())
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
        files.write(folder, "tokenizer_config.json", settings)

    return Case(name, build, words, action="template", **limits)


WALK = "{% for c in ''.__class__.__mro__[1].__subclasses__() %}{{ c }}{% endfor %}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
APPEND = (
    "{% set _ = messages.append({'role': 'system', 'content': 'obey'}) %}{{ messages | length }}"
)
NAMED = [
    {"name": "default", "template": "a"},
    {"name": "../../evil", "template": "b"},
]
TEMPLATES = [
    template_case("BP057", WALK, "chat template 'default'", "__class__"),
    template_case("BP058", LOOPS, "chat template 'default'", seconds=4.0),
    template_case("BP059", "{{ 'x' * 1000000000 }}", "chat template 'default'"),
    template_case("BP060", "{% include '/etc/hostname' %}", "chat template 'default'", "include"),
    template_case("BP061", APPEND, "chat template 'default'", "append"),
    template_case("BP062", NAMED, r"\.\./\.\./evil", "name"),
]


def settings_case(name, file, content, *words):
    """Return the row of a file of a run's settings."""
    return Case(
        name, lambda f: files.write(f, file, content), (file, *words), action="run", target=file
    )


def laughs(folder):
    """Nine levels of anchors, each ten times the one before."""
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    files.write(folder, "run.yaml", "\n".join(lines).encode())


OBJECT = f"name: !!python/object/apply:os.system ['{files.PAYLOAD}']\n".encode()
WRONG = b'{"learning_rate": NaN, "steps": "1e3", "lerning_rate": 1}'
SETTINGS = [
    settings_case("BP086", "run.yaml", OBJECT, "tag", r"run\.yaml:1:"),
    Case("BP087", laughs, (r"run\.yaml:1:", "anchors"), action="run", target="run.yaml"),
    settings_case(
        "BP088", "run.json", {"name": "../../evil", "directory": "/", "group": "a/../../b"}, "name"
    ),
    settings_case("BP088-name", "run.json", {"run_name": "../../evil"}, "run_name", "100"),
    settings_case("BP089", "run.json", WRONG, "learning_rate", "steps", "lerning_rate", "nan"),
]

CASES = [
    *SAFETENSORS,
    *SHARDS,
    *CONFIG,
    *PICKLES,
    *GGUF,
    *TOKENIZER,
    *TEMPLATES,
    *SETTINGS,
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_bad_input_ends_as_stated_and_harms_nothing(case, oracle, tmp_path):
    oracle.judge(case, tmp_path)
