"""Rows of `test_bad_inputs.py`: config.json, tokenizers, chat templates, settings of a run."""

from __future__ import annotations

import json

import bad_files as files
from bad_inputs import Case


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
    Case(
        "BP026",
        config(n_embd="8", n_head=2.5),
        ("config.json", "n_embd is '8': .*whole number", r"n_head is 2\.5: .*whole number"),
    ),
    Case("BP027", config(n_head=3), ("config.json", "n_embd", r"\b8\b", r"\b3\b")),
    Case(
        "BP028",
        config_bytes(lambda c: c.replace(b"1e-05", b"NaN")),
        (r"config\.json:1:\d+", "NaN"),
    ),
    Case("BP029", remote_code, ("config.json", "evil", "remote code", "never runs")),
    Case("BP030", config(model_type="../../os"), ("model_type", r"'\.\./\.\./os'", r"gpt2.*llama")),
    Case("BP031", config(activation_function=CODE), ("activation_function", "gelu_new")),
    Case(
        "BP032",
        config(n_embd=16),
        ("transformer.wte.weight", r"\(32, 16\)", r"\(32, 8\)", "transformer.ln_f.bias"),
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
    settings_case(
        "BP090", "sweep.json", {"grid": {f"p{i}": list(range(10)) for i in range(9)}}, "'grid'"
    ),
    settings_case("BP088-name", "run.json", {"run_name": "../../evil"}, "run_name", "100"),
    settings_case("BP089", "run.json", WRONG, "learning_rate", "steps", "lerning_rate", "nan"),
]

ROWS = [*CONFIG, *TOKENIZER, *TEMPLATES, *SETTINGS]
