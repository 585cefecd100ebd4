"""Building a text processor from what a checkpoint's tokenizer files say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from bridges.text.chat_template import ChatTemplates
from bridges.text.text_processor import TextProcessor
from bridges.text.tokenizer_files import TokenizerFiles, TokenSpec
from bridges.text.tokenizer_guard import (
    added_ids,
    check_definition,
    check_ids,
    check_merges,
    check_numbering,
)
from dew.errors import InputRefused, shown


def build_processor(
    files: TokenizerFiles,
    templates: ChatTemplates,
    *,
    generation_config: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> TextProcessor:
    """Build the processor that `files` describe.

    Args:
        files: what the checkpoint says.
        templates: its chat templates.
        generation_config: generation_config.json.
        config: config.json.

    Raises:
        InputRefused: ids, merges, patterns or tokens that cannot be used.
    """
    if files.definition is not None:
        where = f"{files.where}/tokenizer.json"
        check_definition(files.definition, where)
        tokenizer = load_tokenizer(files.raw["tokenizer.json"], where)
        declared = added_ids(files.definition, where)
        check_numbering(declared, tokenizer.token_to_id, where)
    else:
        tokenizer = byte_level_bpe(
            files.vocabulary or {},
            files.merges,
            files.where,
            add_prefix_space=files.settings.get("add_prefix_space") is True,
        )
    return finish_processor(
        tokenizer, files, templates, generation_config=generation_config, config=config
    )


def finish_processor(
    tokenizer: tokenizers.Tokenizer,
    files: TokenizerFiles,
    templates: ChatTemplates,
    *,
    generation_config: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> TextProcessor:
    """Add to a built tokenizer the tokens that `files` name, and wrap it.

    Args:
        tokenizer: with its vocabulary; changed in place.
        files: what the checkpoint says.
        templates: its chat templates.
        generation_config: generation_config.json.
        config: config.json.

    Raises:
        InputRefused: tokens that would get other ids than the checkpoint states.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, files)
    _set_ends(tokenizer, files)
    return TextProcessor(
        tokenizer, files, templates, generation_config=generation_config, config=config
    )


def load_tokenizer(data: bytes, where: str) -> tokenizers.Tokenizer:
    """Return the tokenizer of a checked tokenizer.json, or refuse it in the library's words."""
    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library panics with a BaseException of its own
        raise InputRefused(
            f"{where}: the tokenizers library {tokenizers.__version__} cannot read it: "
            f"{shown(str(error))}. Save it again with that version."
        ) from None


def byte_level_bpe(
    vocabulary: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    where: str,
    *,
    add_prefix_space: bool = False,
) -> tokenizers.Tokenizer:
    """Return GPT-2's byte-level pair encoding of a vocabulary.

    Args:
        vocabulary: token to id, bytes spelled as GPT-2 spells them.
        merges: pairs in order of rank.
        where: the source's name for messages.
        add_prefix_space: start every text with a space.

    Raises:
        InputRefused: as `check_ids` and `check_merges` say.
    """
    check_ids(list(vocabulary.items()), where)
    check_merges(merges, vocabulary, where)
    tokenizer = tokenizers.Tokenizer(models.BPE(dict(vocabulary), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _add_tokens(tokenizer: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Add the tokens that the settings name and tokenizer.json does not hold."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    named = {spec.content for spec in (*files.special.values(), *files.extra)}
    waiting = [spec for _, spec in sorted(files.added.items())]
    waiting += [*files.special.values(), *files.extra]
    for spec in waiting:
        if spec.content in known or not spec.content:
            continue
        known.add(spec.content)
        if spec.content in named:
            spec = replace(spec, special=True)
        if tokenizer.token_to_id(spec.content) is None and spec.content in named:
            number = tokenizer.get_vocab_size(with_added_tokens=True)
            if number not in files.added:
                warnings.warn(
                    f"{files.where}: the special token {shown(spec.content)} is not in the "
                    f"vocabulary; it becomes the new token {number}, as in transformers.",
                    stacklevel=4,
                )
        _add(tokenizer, spec)
    declared = [(spec.content, number) for number, spec in files.added.items()]
    where = f"{files.where}/tokenizer_config.json"
    check_numbering(declared, tokenizer.token_to_id, where)


def _add(tokenizer: tokenizers.Tokenizer, spec: TokenSpec) -> None:
    """Add one token as it is described."""
    token = tokenizers.AddedToken(
        spec.content,
        lstrip=spec.lstrip,
        rstrip=spec.rstrip,
        single_word=spec.single_word,
        normalized=spec.normalized,
        special=spec.special,
    )
    if spec.special:
        tokenizer.add_special_tokens([token])
    else:
        tokenizer.add_tokens([token])


def _set_ends(tokenizer: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
    """Make the tokenizer add start and end tokens where the settings say so.

    A tokenizer.json says so itself: transformers 5 drops these settings beside one.
    """
    settings = files.settings
    if files.definition is not None or not {"add_bos_token", "add_eos_token"} & settings.keys():
        return
    pieces, specials = ["$A:0"], []
    for key, name in (("add_bos_token", "bos_token"), ("add_eos_token", "eos_token")):
        if settings.get(key) is not True or name not in files.special:
            continue
        text = files.special[name].content
        number = tokenizer.token_to_id(text)
        if number is not None:
            specials.append((text, number))
            pieces.insert(0 if name == "bos_token" else len(pieces), f"{text}:0")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, pair=[*pieces, "$B:1"], special_tokens=specials
    )
