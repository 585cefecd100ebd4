"""Tiny random text encoders with tokenizers, transformers' pipelines, and how results compare."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from parity import random_models, reference

TOLERANCE = 1e-5
_WORDS = """
when shall we three meet again in thunder lightning or rain the hurly burly is done battle lost won
fair foul and hover through fog filthy air macbeth lady duncan scotland day night king this example
about politics sport weather who what where
"""
WORDS = _WORDS.split()
PIECES = [f"##{piece}" for piece in ("s", "ing", "er", "ed", "bur", "ly", "fog")]
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
SIGNS = list(".,!?:;-'()")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY = [*SPECIAL, *SIGNS, *LETTERS, *(f"##{x}" for x in LETTERS), *WORDS, *PIECES]
VOCABULARY = list(dict.fromkeys(VOCABULARY))
LONGEST = 64
SIZES = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "pad_token_id": 0,
}
BERT = {"model_type": "bert", "max_position_embeddings": LONGEST, **SIZES}
ROBERTA = {
    "model_type": "roberta",
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    **SIZES,
    "max_position_embeddings": LONGEST + 2,
    "pad_token_id": 1,
}
ALBERT = {**BERT, "model_type": "albert", "embedding_size": 24}
TEXTS = (
    "",
    "Macbeth",
    "When shall we three meet again, in thunder, lightning, or in rain?",
    "fair is foul",
    "hurlyburly's done!!! \N{GRINNING FACE} \N{FAMILY}",
    "d\N{LATIN SMALL LETTER E WITH ACUTE}j\N{LATIN SMALL LETTER A WITH GRAVE} vu in Scotland",
    "\u4e2d\u6587 and fog",
    "  spaces\tand\nlines  ",
    "the [SEP] king",
    "2026-11-30",
    "a" * 40,
    "who, what: where? (this) is an example; fogs, foggy, fogging - thundered",
)
LONG = "fair is foul and foul is fair " * 334
"""More than 10,000 characters."""


def write_encoder(
    folder: Path, architecture: str, *, labels: Sequence[str] = (), seed: int = 3, **more: Any
) -> Path:
    """Write a random encoder with a tokenizer of word pieces, or of bytes for RoBERTa.

    Args:
        folder: where to.
        architecture: the class of transformers, of BERT, ALBERT or RoBERTa.
        labels: the names of the classes.
        seed: of the weights.
        **more: of the config.
    """
    kinds = {"Bert": BERT, "Roberta": ROBERTA, "Albert": ALBERT}
    kind = next(name for name in kinds if architecture.startswith(name))
    named = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    config = {
        **kinds[kind],
        "architectures": [architecture],
        **(named if labels else {}),
        **more,
    }
    random_models.save_random(config, folder, seed=seed)
    told = (
        {}
        if kind != "Bert"
        else {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    )
    tokenizer = _byte_tokenizer() if kind == "Roberta" else _piece_tokenizer(**told)
    tokenizer.save_pretrained(folder)
    # transformers 4 knows the class by its older name alone.
    path = folder / "tokenizer_config.json"
    path.write_text(path.read_text().replace("TokenizersBackend", "PreTrainedTokenizerFast"))
    return folder


def _piece_tokenizer(**told: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    numbered = {piece: number for number, piece in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordPiece(numbered, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL, strict=True))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LONGEST,
        **told,
        **{f"{name}_token": token for name, token in names.items()},
    )


def _byte_tokenizer() -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    space = "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}"
    merges = [(space, "t"), (f"{space}t", "h"), ("i", "n"), ("e", "r"), (space, "f"), ("o", "u")]
    tokens = [*special, *alphabet, *(first + second for first, second in merges)]
    numbered = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(numbered, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = dict(zip(("cls", "pad", "sep", "unk"), special, strict=False))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=LONGEST,
        bos_token="<s>",
        eos_token="</s>",
        mask_token=AddedToken("<mask>", lstrip=True, special=True, normalized=False),
        **{f"{name}_token": token for name, token in names.items()},
    )


class Theirs:
    """transformers' pipeline, quiet when it is called.

    Args:
        task: its name.
        folder: the model's.
        **options: of the pipeline.
    """

    def __init__(self, task: str, folder: Path, **options: Any) -> None:
        import transformers

        with reference.quiet():
            self.pipe: Any = transformers.pipeline(task, model=str(folder), device="cpu", **options)

    def __call__(self, *inputs: Any, **given: Any) -> Any:
        with reference.quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.pipe(*inputs, **given)


def assert_same(found: Any, expected: Any, where: str = "result") -> None:
    """Hold keys, lengths, strings and whole numbers equal, and other numbers to `TOLERANCE`."""
    if isinstance(expected, dict):
        assert list(found) == list(expected), f"{where}: {list(found)} != {list(expected)}"
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}[{key!r}]")
    elif isinstance(expected, list | tuple):
        assert isinstance(found, list | tuple), f"{where}: {found!r} != {expected!r}"
        assert len(found) == len(expected), f"{where}: {found!r} != {expected!r}"
        for place, value in enumerate(expected):
            assert_same(found[place], value, f"{where}[{place}]")
    elif isinstance(expected, float | np.floating):
        assert isinstance(found, float), f"{where}: {found!r} is a {type(found)}"
        assert abs(found - float(expected)) <= TOLERANCE, f"{where}: {found} != {expected}"
    else:
        assert found == expected, f"{where}: {found!r} != {expected!r}"
        assert type(found) is type(expected), f"{where}: {type(found)} != {type(expected)}"


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Give a list that grows by one for every program that is compiled inside."""
    compiled: list[str] = []

    def listen(event: str, *_: Any, **__: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
