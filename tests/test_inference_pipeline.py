"""pipeline() gives transformers' dicts: prompts, chats, stop strings, streams."""

from __future__ import annotations

import json
import warnings

import helpers
import numpy as np
import pytest

import dew
from dew.errors import InputRefused, UnknownName
from dew.inference.streaming import TextStream
from dew.inference.text_generation import TextGeneration

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT = [{"role": "user", "content": "Fair is foul"}]
GREEDY = {"do_sample": False, "max_new_tokens": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny random llama with a tokenizer that has a chat template."""
    folder = helpers.write_llama(
        tmp_path_factory.mktemp("llama"), seed=5, max_position_embeddings=128
    )
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def task(folder) -> TextGeneration:
    return dew.pipeline(str(folder))


def texts(task, *args, **options):
    return task(*args, **GREEDY, **options)


@pytest.fixture(scope="module")
def theirs(folder):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformers.pipeline("text-generation", model=str(folder), device="cpu")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("When shall we", {}),
        ("When shall we", {"return_full_text": False}),
        (["When shall we", "So foul and fair a day"], {}),
        (CHAT, {}),
        (CHAT, {"return_full_text": False}),
        ([CHAT, [*CHAT, {"role": "assistant", "content": "and foul"}]], {}),
        ("When shall we", {"return_tensors": True}),
    ],
    ids=["text", "new text", "texts", "chat", "chat's answer", "chats", "ids"],
)
def test_outputs_equal_transformers_pipeline(task, theirs, inputs, options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = theirs(inputs, **GREEDY, **options)
    assert task(inputs, **GREEDY, **options) == expected


@pytest.mark.torch
def test_stop_strings_end_where_transformers_ends(task, theirs):
    # The string is cut out of the middle of the greedy text, so it falls inside tokens.
    whole = texts(task, "When shall we", return_full_text=False)[0]["generated_text"]
    for start, length in ((3, 1), (5, 2), (8, 4)):
        stop = whole[start : start + length]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = theirs("When shall we", stop_sequence=stop, **GREEDY)
        assert texts(task, "When shall we", stop_sequence=stop) == expected
        assert texts(task, "When shall we", stop_strings=[stop, "never"]) == expected


def test_a_list_gives_each_prompts_own_result(task):
    prompts = ["When shall we", "So", "Fair is foul, and foul"]
    together = texts(task, prompts)
    assert together == [texts(task, prompt) for prompt in prompts]
    assert together == texts(task, prompts, batch_size=2)
    assert texts(task, []) == []


def test_draws_do_not_depend_on_the_batch_size(task):
    options = {"do_sample": True, "max_new_tokens": 8, "seed": 3, "num_return_sequences": 2}
    together = task(["When", "So", "Fair"], **options)
    assert [len(rows) for rows in together] == [2, 2, 2]
    assert together == task(["When", "So", "Fair"], batch_size=1, **options)
    assert together[0][0] != together[0][1]


def test_streamed_pieces_make_up_the_new_text(task):
    pieces: list[str] = []
    (result,) = texts(task, "When shall we", on_text=pieces.append, return_full_text=False)
    assert "".join(pieces) == result["generated_text"]
    assert len(pieces) > 3
    assert not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_a_stream_stops_with_the_stop_string(task):
    whole = texts(task, "When shall we", return_full_text=False)[0]["generated_text"]
    pieces: list[str] = []
    (result,) = texts(
        task,
        "When shall we",
        on_text=pieces.append,
        stop_strings=whole[9:12],
        return_full_text=False,
    )
    assert "".join(pieces) == result["generated_text"]
    assert whole.startswith(result["generated_text"])
    assert result["generated_text"] != whole


class Bytes:
    """A processor whose ids are UTF-8 bytes, so that characters come in parts."""

    bos_token_id = None
    eos_token_ids = ()
    pad_token_id = None
    vocab_size = 256

    def decode(self, ids, *, skip_special_tokens=True):
        return bytes(ids).decode("utf-8", "replace")


def test_a_character_is_handed_over_whole():
    pieces: list[str] = []
    stream = TextStream(Bytes(), pieces.append)
    stream.put(np.asarray([[1, 2]]))
    for byte in "aé€😀z".encode():
        stream.put(np.asarray([byte]))
    stream.put(np.asarray(["é".encode()[0]]))
    assert pieces == ["a", "é", "€", "😀", "z"]
    stream.end()
    assert pieces[-1] == "\ufffd"


class WithStart:
    """Counts how often the start token goes in; the text of id n is `n`."""

    bos_token_id = 1
    eos_token_ids = (2,)
    pad_token_id = None
    vocab_size = 320

    def encode(self, text, *, add_special_tokens=True):
        ids = [1] if text.startswith("<s>") else []
        return [1] * (add_special_tokens and not ids) + ids + [7, 8]

    def decode(self, ids, *, skip_special_tokens=True):
        return " ".join(map(str, ids))

    def apply_chat_template(self, messages, *, add_generation_prompt=False):
        return "<s>" + messages[0]["content"]


def test_the_start_token_comes_once_with_and_without_a_template(task):
    # P048: the tokenizer's own defaults for a text, the template's own start for a chat.
    started = TextGeneration(task.bundle.replace(processor=WithStart()))
    for inputs in ("hello", CHAT):
        (result,) = started(inputs, return_tensors=True, do_sample=False, max_new_tokens=1)
        assert result["generated_token_ids"][:3] == [1, 7, 8]


@pytest.mark.parametrize("order", ["source", "source and task", "task and model", "transformers'"])
def test_every_order_of_source_and_task_gives_the_task(task, order):
    bundle = task.bundle
    made = {
        "source": lambda: dew.pipeline(bundle),
        "source and task": lambda: dew.pipeline(bundle, "text-generation"),
        "task and model": lambda: dew.pipeline("text-generation", model=bundle),
        "transformers'": lambda: dew.pipeline("text-generation", bundle),
    }[order]()
    assert isinstance(made, TextGeneration)
    assert made.bundle is bundle


def test_an_unknown_task_offers_the_nearest(task):
    with pytest.raises(UnknownName, match="text-generation"):
        dew.pipeline(task.bundle, "text-genration")
    with pytest.raises(UnknownName, match="text-generation"):
        dew.pipeline("text-genration", model=task.bundle)
    with pytest.raises(InputRefused, match="needs a model"):
        dew.pipeline("text-generation")


def test_a_pipelines_defaults_hold_and_are_checked_at_once(task):
    made = dew.pipeline(task.bundle, max_new_tokens=2, do_sample=False, return_full_text=False)
    assert made("When") == task("When", max_new_tokens=2, do_sample=False, return_full_text=False)
    with pytest.raises(UnknownName, match="did you mean 'temperature'"):
        dew.pipeline(task.bundle, temprature=1.0)


def test_no_tokenizer_is_refused(task):
    with pytest.raises(InputRefused, match="needs a tokenizer"):
        dew.pipeline(task.bundle.replace(processor=None))


@pytest.mark.parametrize(
    ("inputs", "part"),
    [
        (3, "text_inputs is 3"),
        (b"bytes", "text_inputs is b'bytes'"),
        (["fine", 3], "text_inputs[1] is 3"),
        ([{"role": "user"}], "role and content"),
        ([[]], "text_inputs[0] is []"),
    ],
    ids=str,
)
def test_inputs_that_are_neither_text_nor_chat_are_named(task, inputs, part):
    with pytest.raises(InputRefused) as refused:
        task(inputs)
    assert part in str(refused.value)


def test_several_prompts_cannot_be_streamed(task):
    with pytest.raises(InputRefused, match="2 sequences at once"):
        task(["a", "b"], on_text=print)
