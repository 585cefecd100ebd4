"""Summaries, translations and answers as transformers 4.57.6's pipelines gave them.

transformers 5 has no such pipelines: its `generate` on the same weights gives the right ids in the
fast tests, and version 4's own pipelines, in an environment of their own, in the slow one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SENTENCES, TINY_VOCABULARY, write_tokenizer
from pipeline_four import answers
from pipeline_pictures import assert_same

import dew
from dew.errors import InputRefused
from parity.four import install

pytestmark = pytest.mark.torch
SLOW = pytest.mark.slow
SIZES = {"vocab_size": TINY_VOCABULARY, "d_model": 32}
T5 = {
    **SIZES,
    "d_kv": 12,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
}
BART = {
    **SIZES,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 40,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}
MODELS = {
    "t5": ("T5ForConditionalGeneration", T5),
    "bart": ("BartForConditionalGeneration", BART),
    "marian": ("MarianMTModel", {**BART, "decoder_vocab_size": TINY_VOCABULARY}),
    "pegasus": ("PegasusForConditionalGeneration", BART),
}
PARAMS = {
    "summarization": {"prefix": "summarize: ", "min_length": 3, "num_beams": 2, "max_length": 30},
    "translation_en_to_de": {"prefix": "in German: ", "max_length": 30},
}
INPUTS = [
    "So foul and fair a day.",
    " ",
    "\U0001f451 \U0001f9d9\u200d\u2640\ufe0f!",
    "thunder",
    SENTENCES[0],
    SENTENCES[4][:40],
    "Ünïcödé ßtraße, naïve",
    "<|endoftext|> within a text",
    "line\none\ttwo\r\nthree",
    "12,345.678 ... ???",
    "雷と稲妻",
    "a " * 12,
]
SHORT = {"max_new_tokens": 8}


def save(name: str, folder: Path, **changes: Any) -> Path:
    """Write a tiny random model that reads and writes, and its tokenizer."""
    import torch
    import transformers

    kind, sizes = MODELS[name]
    made = getattr(transformers, kind)
    torch.manual_seed(0)
    model = made(made.config_class(**sizes, **changes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folders of the models by name, each written when it is first wanted."""
    pytest.importorskip("torch").set_num_threads(1)
    import transformers

    transformers.utils.logging.set_verbosity_error()
    root, made = tmp_path_factory.mktemp("models"), {}

    def folder(name: str) -> Path:
        if name not in made:
            made[name] = save(name, root / name, task_specific_params=PARAMS)
        return made[name]

    return folder


@pytest.fixture(scope="module")
def bart(folders: Any) -> Any:
    return dew.pipeline(str(folders("bart")))


def theirs(folder: Path, text: str, **options: Any) -> list[str]:
    """Return the texts of transformers' `generate`."""
    import transformers

    kind, _ = next(value for name, value in MODELS.items() if folder.name == name)
    model = getattr(transformers, kind).from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    return tokenizer.batch_decode(model.generate(**ids, **options), skip_special_tokens=True)


@pytest.mark.parametrize("name", ["bart", pytest.param("t5", marks=SLOW)])
def test_answers_come_of_four_beams(folders, name):
    ours = dew.pipeline(str(folders(name)))
    texts = [INPUTS[0], INPUTS[2]]
    found = ours(texts, **SHORT)
    for text, one in zip(texts, found, strict=True):
        expected = theirs(folders(name), text, num_beams=4, **SHORT)
        assert one == {"generated_text": expected[0]}


def test_the_forms_of_inputs_decide_those_of_results(bart):
    one, two = bart(INPUTS[0], **SHORT), bart(INPUTS[3], **SHORT)
    assert [*one, *two] == bart([INPUTS[0], INPUTS[3]], **SHORT)
    assert list(one[0]) == ["generated_text"]
    several = bart([INPUTS[0], INPUTS[3]], num_return_sequences=2, **SHORT)
    assert [len(records) for records in several] == [2, 2]
    assert several[1][0] == two[0]
    assert list(bart(iter([INPUTS[0], INPUTS[3]]), **SHORT)) == [one, two]
    assert bart([], **SHORT) == []
    tensors = bart(INPUTS[0], return_tensors=True, **SHORT)[0]["generated_token_ids"]
    assert bart.processor.decode(tensors.tolist()) == one[0]["generated_text"]
    typed = bart.typed([INPUTS[0], INPUTS[3]], **SHORT)
    assert typed.texts == (one[0]["generated_text"], two[0]["generated_text"])
    assert typed.tokens[0, : len(tensors)].tolist() == tensors.tolist()


def test_each_task_has_its_key_and_its_parameters(folders):
    folder = folders("bart")
    with pytest.warns(UserWarning, match=r"max_length is 30 and the text has \d+ tokens only"):
        found = dew.pipeline("summarization", model=str(folder))(INPUTS[0], **SHORT)
    prefixed = f"summarize: {INPUTS[0]}"
    expected = theirs(folder, prefixed, num_beams=2, min_length=3, **SHORT)
    assert found == [{"summary_text": expected[0]}]
    translate = dew.pipeline("translation_en_to_de", str(folder))
    expected = theirs(folder, f"in German: {INPUTS[3]}", num_beams=4, **SHORT)
    assert translate(INPUTS[3], **SHORT) == [{"translation_text": expected[0]}]
    with pytest.warns(UserWarning, match=r"tokens and max_length is 9: the translation may be cut"):
        translate(INPUTS[3], max_length=9, **SHORT)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, r"the input is 7; expected a text"),
        (["a", None], r"input 1 is None \(NoneType\); expected a text"),
        ("", "has no token"),
        ("when " * 60, r"the text is \d+ tokens long, the model has 64 positions"),
        ("x" * 10_000, r"the text is \d+ tokens long, the model has 64 positions; .*truncation"),
    ],
)
def test_what_cannot_be_read_is_refused(bart, given, words):
    with pytest.raises(InputRefused, match=words):
        bart(given, **SHORT)


@SLOW
def test_long_texts_are_cut_where_that_is_asked(bart, folders):
    import transformers

    text = "When shall we three meet again? " * 300
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders("bart"))
    cut = tokenizer.decode(tokenizer(text, truncation=True)["input_ids"])
    found = bart(text, truncation=True, **SHORT)
    assert found[0]["generated_text"] == theirs(folders("bart"), cut, num_beams=4, **SHORT)[0]


def test_options_are_checked_when_the_task_is_made(folders, bart):
    with pytest.raises((InputRefused, KeyError), match="unknown generation option 'max_tokns'"):
        dew.pipeline(bart.bundle, max_tokns=3)
    with pytest.raises(InputRefused, match="needs a tokenizer"):
        dew.pipeline(bart.bundle.replace(processor=None))
    with pytest.raises(InputRefused, match="does not do fill-mask; it is fit for"):
        dew.pipeline(bart.bundle, "fill-mask")


def calls(folder: Path) -> list[tuple[str, str, Any, dict[str, Any]]]:
    """Return calls of all three tasks on a model, for both sides."""
    where = str(folder)
    plain = [("text2text-generation", where, text, {**SHORT}) for text in INPUTS]
    return [
        *plain,
        *(("summarization", where, text, {**SHORT}) for text in INPUTS),
        *(("translation_en_to_de", where, text, {**SHORT}) for text in INPUTS),
        ("text2text-generation", where, INPUTS, {**SHORT}),
        ("text2text-generation", where, INPUTS[:3], {"num_return_sequences": 3, **SHORT}),
        ("text2text-generation", where, INPUTS[0], {"num_beams": 1, "max_length": 30}),
        ("text2text-generation", where, INPUTS[4], {"max_length": 12, "min_length": 5}),
        ("text2text-generation", where, INPUTS[4], {"stop_sequence": "e", **SHORT}),
        ("text2text-generation", where, INPUTS[4], {"return_tensors": True, **SHORT}),
        (
            "text2text-generation",
            where,
            INPUTS[4],
            {"clean_up_tokenization_spaces": True, "repetition_penalty": 1.5, **SHORT},
        ),
        ("summarization", where, INPUTS[4], {"min_length": 6, "length_penalty": 2.0, **SHORT}),
        ("translation", where, INPUTS[4], {**SHORT}),
        ("translation", where, INPUTS[:2], {"src_lang": "en", "tgt_lang": "fr", **SHORT}),
        ("text2text-generation", where, "when " * 200, {"truncation": True, **SHORT}),
    ]


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("four"))


def plain(found: Any) -> Any:
    """Return results as JSON holds them."""
    return json.loads(json.dumps(found, default=lambda value: np.asarray(value).tolist()))


@SLOW
@pytest.mark.filterwarnings("ignore:max_length is", "ignore:the text has", "ignore:.*no native")
@pytest.mark.parametrize("name", MODELS)
def test_version_four_gives_the_same(folders, packages, name):
    folder, tasks = folders(name), {}
    for (task, _, inputs, options), wanted in zip(
        calls(folder), answers(packages, calls(folder)), strict=True
    ):
        if task not in tasks:
            tasks[task] = dew.pipeline(task, model=str(folder))
        if isinstance(wanted, dict):  # version 4 ran past BART's positions
            with pytest.raises(InputRefused, match="the model has 64 positions"):
                tasks[task](inputs, **options)
            continue
        assert_same(plain(tasks[task](inputs, **options)), wanted)


@SLOW
@pytest.mark.filterwarnings("ignore:max_length is")
@pytest.mark.parametrize(
    "stored",
    [
        {"num_beams": 2, "max_new_tokens": 5},
        {"max_length": 9},
        {"max_length": 9, "max_new_tokens": 5},
    ],
)
def test_the_checkpoints_lengths_count_as_they_did_in_version_four(
    tmp_path, packages, folders, stored
):
    folder = save("bart", tmp_path / "bart")
    config = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**config, **stored}))
    options = ({"max_new_tokens": 6}, {"max_length": 7}, {"num_beams": 1, "max_length": 7}, {})
    wanted = [("summarization", str(folder), INPUTS[4], one) for one in options]
    ours = dew.pipeline("summarization", model=str(folder))
    for given, expected in zip(options, answers(packages, wanted), strict=True):
        if "error" not in expected:
            assert_same(plain(ours(INPUTS[4], **given)), expected)
