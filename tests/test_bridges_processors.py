"""Tokenizers read without transformers give its ids, keep their files, and refuse broken ones."""

from __future__ import annotations

import json
import warnings

import pytest
from helpers import SENTENCES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bridges.text.processors import gguf_processor, read_processor
from dew.errors import InputRefused

# The rows of OpenAI's GPT-2 vocabulary and merges that the sentence below passes through, with
# their own ids and in their own order; merges that a text never meets do not change its ids.
GPT2_BYTES = {
    "H": 39, "e": 68, "l": 75, "o": 78, "w": 86, "r": 81, "d": 67, ",": 11, "i": 72, "t": 83,
    "'": 6, "s": 82, "2": 17, "0": 15, "4": 19, "!": 0, "Ġ": 220, "<|endoftext|>": 50256,
}  # fmt: skip
GPT2_MERGES = {
    "Ġ w": 266, "i t": 270, "o r": 273, "l l": 297, "l d": 335, "' s": 338, "Ġ it": 340,
    "Ġ 2": 362, "Ġw or": 476, "e ll": 695, "Ġwor ld": 995, "Ġ2 0": 1160, "2 4": 1731,
    "ell o": 11109, "H ello": 15496, "Ġ20 24": 48609,
}  # fmt: skip
GPT2_SETTINGS = {
    "tokenizer_class": "GPT2Tokenizer",
    "model_max_length": 1024,
    "bos_token": "<|endoftext|>",
    "eos_token": "<|endoftext|>",
    "unk_token": "<|endoftext|>",
}
TEXTS = (
    "When shall we three meet again?",
    "  two  spaces\n\nand\ttabs ",
    "foul é ß 😀 \u200d\u0301 中文",
    "12345 it's DAY'S",
    "<|im_start|>user\nfair<|im_end|>\n<|endoftext|>",
    "",
)


def put(folder, **files):
    """Write files, `_` standing for the dot of their ending."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / ".".join(name.rsplit("_", 1))).write_text(text, encoding="utf-8")
    return folder


def change(folder, name, **values):
    """Change keys of a JSON file; None removes one."""
    path = folder / name
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def start_with(folder, token, number):
    """Let the folder's tokenizer.json start every text with a token, as Llama 3's does."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, number)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))


def exported(processor, folder):
    """Write what an export of `processor` holds and return the folder."""
    for name, data in processor.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def copied(source, folder):
    """Copy the files of one folder into another and return that."""
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


@pytest.fixture
def folder(tokenizer_folder, tmp_path):
    """A copy of the tiny folder to change."""
    return copied(tokenizer_folder, tmp_path)


@pytest.fixture(scope="module")
def gpt2(tokenizer_folder, tmp_path_factory):
    """The tiny vocabulary in GPT-2's layout, vocab.json and merges.txt."""
    folder = tmp_path_factory.mktemp("gpt2")
    model = json.loads((tokenizer_folder / "tokenizer.json").read_text())["model"]
    lines = ["#version: 0.2", *(" ".join(pair) for pair in model["merges"]), ""]
    return put(
        folder,
        vocab_json=model["vocab"],
        merges_txt="\n".join(lines),
        tokenizer_config_json=GPT2_SETTINGS,
        config_json={"model_type": "gpt2"},
    )


@pytest.fixture(scope="module")
def by_source(tokenizer_folder, gpt2, tokenizer_metadata):
    """The same tokenizer, read from each kind of source."""
    config = {"model_type": "gpt2"}
    return {
        "tiny": read_processor(tokenizer_folder, config),
        "gpt2": read_processor(gpt2, config),
        "gguf": gguf_processor(tokenizer_metadata),
    }


def test_gpt2s_ids_come_from_vocab_and_merges(tmp_path):
    # 15496, 995, 11, 340, 338, 48609, 0 are the ids that OpenAI's encoder gives this sentence.
    vocabulary = GPT2_BYTES | {line.replace(" ", ""): n for line, n in GPT2_MERGES.items()}
    put(
        tmp_path,
        vocab_json=vocabulary,
        merges_txt="#version: 0.2\n" + "\n".join(GPT2_MERGES) + "\n",
        tokenizer_config_json=GPT2_SETTINGS,
    )
    processor = read_processor(tmp_path, {"model_type": "gpt2"})
    assert processor.encode("Hello world, it's 2024!") == [15496, 995, 11, 340, 338, 48609, 0]
    assert processor.eos_token_ids == (50256,)
    assert (processor.bos_token_id, processor.pad_token_id) == (50256, 50256)
    assert processor.vocab_size == 50257
    assert processor.model_max_length == 1024


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["tokenizer.json", "vocab and merges", "start and end", "gguf"])
def test_ids_and_texts_equal_transformers(
    kind, tokenizer_folder, gpt2, tokenizer_metadata, tmp_path
):
    from transformers import AutoTokenizer

    if kind == "gguf":
        processor = gguf_processor(tokenizer_metadata)
        folder = exported(processor, tmp_path)
    else:
        folder = {"tokenizer.json": tokenizer_folder, "vocab and merges": gpt2}.get(kind, tmp_path)
        if kind == "start and end":
            copied(gpt2, tmp_path)
            ends = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
            change(
                tmp_path, "tokenizer_config.json", add_bos_token=True, add_eos_token=True, **ends
            )
        processor = read_processor(folder, {"model_type": "gpt2"})
    reference = AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = processor.encode(text)
        expected = reference(text).input_ids
        if kind == "start and end" and text.startswith("<|im_start|>"):
            assert expected[:2] == [1, 1]
            expected = expected[1:]  # transformers starts such a text twice, dew once
        assert ids == expected
        plain = processor.encode(text, add_special_tokens=False)
        assert plain == reference(text, add_special_tokens=False).input_ids
        for skip in (True, False):
            decoded = processor.decode(ids, skip_special_tokens=skip)
            assert decoded == reference.decode(ids, skip_special_tokens=skip)
    assert processor.encode_batch(TEXTS) == [processor.encode(text) for text in TEXTS]
    assert processor.vocab_size == len(reference)
    assert processor.eos_token_ids == (reference.eos_token_id,)
    assert processor.bos_token_id == reference.bos_token_id


@pytest.mark.torch
@pytest.mark.parametrize("source", ["tiny", "gpt2", "gguf"])
def test_an_export_gives_transformers_the_same_ids(source, by_source, tmp_path):
    from transformers import AutoTokenizer

    processor = by_source[source]
    exported(processor, tmp_path)
    put(tmp_path, config_json={"model_type": "gpt2" if source == "gpt2" else "llama"})
    reference = AutoTokenizer.from_pretrained(tmp_path)
    assert [reference(text).input_ids for text in TEXTS] == processor.encode_batch(TEXTS)


@pytest.mark.parametrize("source", ["tiny", "gpt2", "gguf"])
def test_a_folder_round_trip_keeps_files_ids_and_ends(source, by_source, tmp_path):
    processor = by_source[source]
    again = read_processor(exported(processor, tmp_path), {"model_type": "gpt2"})
    assert again.files == processor.files
    assert again.encode_batch(TEXTS) == processor.encode_batch(TEXTS)
    for name in ("bos_token_id", "eos_token_ids", "pad_token_id", "vocab_size", "chat_template"):
        assert getattr(again, name) == getattr(processor, name)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_any_text_survives_bytes_and_streams(text, gpt2):
    # Every byte is a token of the vocabulary, so decoding must undo encoding exactly.
    processor = read_once(gpt2)
    ids = processor.encode(text, add_special_tokens=False)
    assert processor.decode(ids, skip_special_tokens=False) == text
    stream = processor.stream_decoder(skip_special_tokens=False)
    assert "".join([stream.feed(number) for number in ids] + [stream.flush()]) == text


def read_once(folder, cache={}):  # noqa: B006
    """Read a folder once for all examples of a property."""
    if folder not in cache:
        cache[folder] = read_processor(folder, {"model_type": "gpt2"})
    return cache[folder]


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ids=st.lists(st.integers(0, 318), max_size=30))
def test_any_ids_stream_as_they_decode(ids, tokenizer_folder):
    # The whole decode is the reference; random bytes are mostly no UTF-8.
    processor = read_once(tokenizer_folder)
    stream = processor.stream_decoder()
    pieces = [stream.feed(number) for number in ids] + [stream.flush()]
    assert "".join(pieces) == processor.decode(ids)


def test_a_stream_gives_no_part_of_a_character(tokenizer_folder):
    processor = read_processor(tokenizer_folder)
    ids = processor.encode("a😀b")
    stream = processor.stream_decoder()
    assert [stream.feed(number) for number in ids] == ["a", "", "", "", "😀", "b"]


def test_offsets_cover_the_characters_of_each_token(tokenizer_folder):
    text = "fair é 😀 day"
    processor = read_processor(tokenizer_folder)
    ids, offsets = processor.encode_with_offsets(text)
    assert ids == processor.encode(text)
    # The four bytes of the emoji are four tokens over one character; it counts once.
    assert "".join(text[start:end] for start, end in dict.fromkeys(offsets)) == text


def test_an_end_id_may_be_a_list_and_stands_in_for_a_missing_pad(folder):
    # P047: generation_config's list comes first, config's is not asked then, and the tokenizer's
    # own end token joins them.
    change(folder, "tokenizer_config.json", pad_token=None, eos_token="<|im_end|>")
    put(folder, generation_config_json={"eos_token_id": [9, 3]})
    processor = read_processor(folder, {"eos_token_id": 7})
    assert processor.eos_token_ids == (9, 3, 2)
    assert processor.pad_token_id == 9
    (folder / "generation_config.json").unlink()
    assert read_processor(folder, {"eos_token_id": 7}).eos_token_ids == (7, 2)
    assert read_processor(folder, {"pad_token_id": -1}).pad_token_id == 2


@pytest.mark.parametrize("value", ["2", 2.0, True, [1, None]])
def test_an_end_id_that_is_no_id_is_refused(folder, value):
    with pytest.raises(InputRefused, match="eos_token_id"):
        read_processor(folder, {"eos_token_id": value})


def test_the_start_token_comes_exactly_once(folder, tokenizer_folder):
    # P048: added by the tokenizer, written by the chat template, or both: one start token.
    start_with(folder, "<|im_start|>", 1)
    change(
        folder,
        "tokenizer_config.json",
        bos_token="<|im_start|>",
        chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}",
    )
    processor = read_processor(folder)
    start = processor.bos_token_id
    prompt = processor.apply_chat_template([{"role": "user", "content": "fair"}])
    assert prompt == "<|im_start|>fair"
    plain = processor.encode("fair", add_special_tokens=False)
    assert start not in plain
    assert processor.encode("fair") == [start, *plain]
    assert processor.encode(prompt) == [start, *plain]
    assert processor.encode(prompt, add_special_tokens=False) == [start, *plain]
    assert processor.encode_batch([prompt, "fair"]) == [[start, *plain]] * 2
    assert processor.encode_with_offsets(prompt, add_special_tokens=True)[0] == [start, *plain]
    # Two in the text are the text's own affair where the tokenizer adds none.
    twice = read_processor(tokenizer_folder).encode("<|endoftext|>" * 2)
    assert twice == [0, 0]


def test_a_conversation_is_tokenized_once_and_its_mask_comes_from_offsets(folder):
    # P049: the assistant's span ends inside of what the tokenizer merges ("fa" + "ir"); the ids
    # must be those of the whole text.
    template = (
        "{{ messages[0].content }}{% generation %}{{ messages[1].content }}{% endgeneration %}ir"
    )
    change(folder, "tokenizer_config.json", chat_template=template)
    processor = read_processor(folder)
    messages = [{"role": "user", "content": "foul "}, {"role": "assistant", "content": "and fa"}]
    ids, mask = processor.encode_chat(messages)
    text = "foul and fair"
    assert processor.apply_chat_template(messages) == text
    assert ids == processor.encode(text)
    apart = [n for part in ("foul ", "and fa", "ir") for n in processor.encode(part)]
    assert apart != ids
    offsets = processor.encode_with_offsets(text)[1]
    assert mask == [5 <= start < 11 for start, _ in offsets]
    assert any(mask)
    assert not all(mask)


@pytest.mark.torch
def test_assistant_masks_equal_transformers(folder):
    from transformers import AutoTokenizer

    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
        "<|im_end|>{% endif %}\n{% endfor %}"
    )
    change(folder, "tokenizer_config.json", chat_template=template)
    messages = [
        {"role": "user", "content": "Fair is foul?"},
        {"role": "assistant", "content": "é 😀 and foul is fair"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "day"},
    ]
    reference = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, mask = read_processor(folder).encode_chat(messages)
    assert ids == list(reference["input_ids"])
    assert [int(flag) for flag in mask] == list(reference["assistant_masks"])


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("TokenizersBackend", "PreTrainedTokenizerFast"),
        (None, "PreTrainedTokenizerFast"),
        ("GPT2Tokenizer", "GPT2Tokenizer"),
        ("LlamaTokenizerFast", "LlamaTokenizerFast"),
    ],
)
def test_the_exported_class_is_one_that_both_versions_know(folder, source, written):
    # P112: transformers 5 writes TokenizersBackend, which 4 does not know.
    extra = ["<|im_start|>"]
    change(folder, "tokenizer_config.json", tokenizer_class=source, extra_special_tokens=extra)
    settings = json.loads(read_processor(folder).files["tokenizer_config.json"])
    assert settings["tokenizer_class"] == written
    # transformers 4 takes only an object there, and both read the older name.
    assert "extra_special_tokens" not in settings
    assert settings["additional_special_tokens"] == extra


def test_special_tokens_are_the_tokenizers_own(folder):
    # P116: two added tokens and a renamed end token come back as they are.
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken("<|stop|>", special=True)])
    tokenizer.add_tokens([AddedToken("murder", normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    end = {"content": "<|stop|>", "lstrip": False, "rstrip": True, "__type": "AddedToken"}
    change(folder, "tokenizer_config.json", eos_token=end, pad_token=None)
    before = (folder / "tokenizer.json").read_bytes()
    processor = read_processor(folder)
    assert processor.files["tokenizer.json"] == before
    stop = tokenizer.token_to_id("<|stop|>")
    assert processor.eos_token_ids == (stop,)
    assert json.loads(processor.files["special_tokens_map.json"]) == {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|stop|>",
    }
    ids = processor.encode("fair murder<|stop|>")
    assert ids[-2:] == [tokenizer.token_to_id("murder"), stop]
    assert processor.decode(ids) == "fair murder"
    assert processor.token(stop) == "<|stop|>"


def test_tokens_that_only_the_settings_name_are_added_in_their_places(folder):
    # transformers' added_tokens_decoder: ids follow the vocabulary, flags are kept.
    size = read_processor(folder).vocab_size
    decoder = {
        str(size): {"content": "<a>", "special": True},
        str(size + 1): {"content": "<b>", "special": False},
    }
    change(folder, "tokenizer_config.json", added_tokens_decoder=decoder)
    processor = read_processor(folder)
    assert processor.encode("<a><b>") == [size, size + 1]
    assert processor.decode([size, size + 1]) == "<b>"
    assert processor.max_token_id == size + 1
    decoder = {str(size + 5): {"content": "<a>", "special": True}}
    change(folder, "tokenizer_config.json", added_tokens_decoder=decoder)
    with pytest.raises(InputRefused, match=f"says id {size + 5}, the library would use {size}"):
        read_processor(folder)


def test_a_special_token_outside_the_vocabulary_is_named(folder):
    change(folder, "tokenizer_config.json", pad_token="[PAD]")
    size = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    with pytest.warns(UserWarning, match=r"\[PAD\].*new token"):
        processor = read_processor(folder)
    assert processor.pad_token_id == size


def test_a_folder_without_a_tokenizer_has_none(tmp_path):
    assert read_processor(tmp_path) is None
    put(tmp_path, tokenizer_config_json=GPT2_SETTINGS)
    assert read_processor(tmp_path) is None


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.txt"])
def test_a_tokenizer_of_another_form_is_named_in_a_warning(tmp_path, name):
    (tmp_path / name).write_bytes(b"x")
    with pytest.warns(UserWarning, match=f"{name}.*tokenizer.json"):
        assert read_processor(tmp_path) is None


def test_vocab_and_merges_of_another_kind_are_not_guessed(gpt2, tmp_path):
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((gpt2 / name).read_bytes())
    put(tmp_path, tokenizer_config_json={"tokenizer_class": "CLIPTokenizer"})
    with pytest.warns(UserWarning, match="CLIPTokenizer"):
        assert read_processor(tmp_path) is None


def test_a_tokenizers_own_template_of_special_tokens_is_kept(folder):
    # Llama 3's form: the start token comes from tokenizer.json, and no setting mentions it.
    start_with(folder, "<|im_start|>", 1)
    processor = read_processor(folder)
    assert processor.encode("fair")[0] == 1
    assert processor.encode("fair", add_special_tokens=False)[0] != 1


def test_word_tokenizers_of_any_model_are_read(tmp_path):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        processor = read_processor(tmp_path)
    assert processor.encode(SENTENCES[3]) == tokenizer.encode(SENTENCES[3]).ids
    assert processor.decode(processor.encode(SENTENCES[3])) == SENTENCES[3]
