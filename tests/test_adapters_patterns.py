"""Expressions over module names: Python's answers, in time that does not explode."""

from __future__ import annotations

import re
import time

import pytest

from bridges.adapter_patterns import NamePattern
from bridges.adapter_settings import AdapterSettings
from dew.errors import InputRefused

NAMES = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.12.mlp.up_proj",
    "h.11.attn.c_attn",
    "decoder.block.0.layer.1.EncDecAttention.q",
    "encoder.q",
    "q",
    "aabc",
    "abcdd",
    "a.b.c.d",
    "line\nbreak",
)
EXPRESSIONS = (
    r".*decoder.*(SelfAttention|EncDecAttention).*(q|v)$",
    r"model\.layers\.[01]\.self_attn\.q_proj",
    r"(?:.*?(?:layers|text).*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)|(?:\bh\.[\d]{1,}\..*)",
    r"[^.]+(\.[a-z_]+){2,4}",
    r"^h\.\d+\.attn\.c_attn$",
    r"a{2}b{0,2}c{1,}|x{,2}|{",
    r"(ab|a)(c|bcd)(d*)",
    r".*\Bo\B.*|(?P<name>en)coder\..",
    r"[]a-c.]*|[^\W\d_]+?",
    r"^(([a-z])+.)+[A-Z]([a-z])+$",
    r"",
    r".*\A|\w\Z|\s|\S\D",
)


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_pythons_answers_are_given(expression):
    # PEFT's: fullmatch for targets, `(.*\.)?(...)$` from the start for ranks and alphas.
    pattern = NamePattern(expression)
    for name in NAMES:
        assert pattern.fullmatch(name) == bool(re.fullmatch(expression, name)), name
        ended = bool(re.match(rf"(.*\.)?({expression})$", name))
        if "\n" not in name:
            assert pattern.matches_end(name) == ended, name


def test_what_backtracks_takes_no_time():
    # BAD-INPUTS BP083; Python's own matcher doubles its time with every letter.
    started = time.process_time()
    for expression in (r"^(([a-z])+.)+[A-Z]([a-z])+$", r"(a+)+$", r"(a|aa)*b", r"(.*a){25}"):
        assert not NamePattern(expression).fullmatch("a" * 2_000 + "!")
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        (r"(a)\1", r"\\1 is not matched"),
        ("(?=a)b", "only plain groups"),
        ("(a", "it ends too early"),
        ("a)", "an unexpected"),
        ("*a", "nothing before"),
        ("a**", "a repeat of a repeat"),
        ("[a", "it ends too early"),
        ("[z-a]", "the range z-a"),
        ("a{5,2}", r"a repeat of \{5,2\}"),
        ("((a{100}){100}){100}", "too large"),
        ("(" * 60, "groups within each other"),
        ("a" * 3_000, "longer than"),
    ],
)
def test_other_syntax_is_refused(expression, why):
    with pytest.raises(InputRefused, match=why):
        NamePattern(expression)


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        {"targets": ("q_proj", "c_attn")},
        {"targets": r".*\.(q_proj|q)", "layers": (3,)},
        {"targets": ("q_proj", "up_proj"), "layers": (12,)},
        {"targets": ("q_proj", "c_attn"), "layers": (11, 0)},
        {"targets": ("q_proj", "c_attn"), "layers": (0, 11), "layers_pattern": ("layers",)},
        {"targets": ("q_proj", "c_attn"), "layers": (11,), "layers_pattern": ("h", "layers")},
        {"targets": ("q_proj", "up_proj", "q"), "excluded": ("up_proj", "encoder.q")},
        {"targets": ("q_proj", "up_proj"), "excluded": r".*mlp.*"},
        {"targets": ("q_proj", "up_proj"), "saved": ("mlp",)},
    ],
)
def test_peft_chooses_the_same_modules(options):
    from peft import LoraConfig
    from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists

    def listed(value):
        return list(value) if isinstance(value, tuple) else value

    theirs = LoraConfig(
        target_modules=listed(options["targets"]),
        layers_to_transform=None,
        exclude_modules=listed(options.get("excluded")),
        modules_to_save=listed(options.get("saved")),
    )
    # The constructor refuses layers beside an expression; a config file may hold both.
    theirs.layers_to_transform = listed(options.get("layers"))
    theirs.layers_pattern = listed(options.get("layers_pattern"))
    ours = AdapterSettings(8, 8.0, **options)
    for name in NAMES:
        found = check_target_module_exists(theirs, name)
        wanted = bool(found) and not isinstance(found, _ExcludedModule)
        assert ours.chooses(name) == wanted, name
