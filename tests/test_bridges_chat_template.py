"""Chat templates render as transformers renders them, within bounds, from every place they lie."""

from __future__ import annotations

import json
import resource
import threading
import time

import pytest

from bridges.text.chat_template import ChatTemplates, read_templates
from dew.errors import InputRefused

MESSAGES = [
    {"role": "system", "content": "Be brief. é <b>&'\"</b> 😀"},
    {"role": "user", "content": "  Hi there \n"},
    {"role": "assistant", "content": "Hello.", "tool_calls": [
        {"function": {"name": "add", "arguments": {"b": 1, "a": "é<"}}}]},
    {"role": "tool", "content": "2", "name": None},
    {"role": "assistant", "content": "It is <think>easy</think>2."},
]  # fmt: skip
TOOLS = [{"function": {"name": "add", "parameters": {"b": 1, "a": "é<", "list": [1, 2.5, None]}}}]
# SmolLM2's own template, as its checkpoint carries it.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
ALIKE = {
    "smollm2": SMOLLM2,
    "blocks and spaces": """
{%- set ns = namespace(index=0, system='') %}
{%- for message in messages -%}
    {% if message.role == 'system' %}
        {%- set ns.system = ns.system + message['content'] | trim %}
        {% continue %}
    {% elif loop.index0 > 3 %}{% break %}{% endif %}
    {{ loop.index }}/{{ loop.length }} {{ message.role.upper() }}: {{ message.content.strip() }}
    {%- set ns.index = ns.index + 1 %}
{% endfor %}
{{ ns.index }} {{ ns.system ~ ns.index ~ none }}
""",
    "tools": """
{%- if tools %}{{ tools | tojson }}
{{ tools | tojson(indent=4) }}{% for t in tools %}{{ t.function | tojson }}{% endfor %}{% endif %}
{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}
{{ c.function.arguments | tojson(ensure_ascii=True) }}
{%- for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}
{{ c.function | dictsort }}{% endfor %}{% endfor %}
""",
    "values": """
{{ messages[1:] | map(attribute='role') | list }} {{ messages | length }} {{ [1, 'a', (2, none)] }}
{{ {'b': 1, 'a': [true]} }} {{ 7 // 2 }} {{ 2 ** 3 }} {{ '%s-%02d' % ('x', 3) }}
{{ '{}'.format(3) }} {{ 'a %s' | format('b') }} {{ 'c' | center(5) }}
{{ messages[0] | items | list }}
{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | join(', ') }}
{{ messages[-1].content.split('</think>')[-1] }} {{ messages[0].content[:4] | upper }}
{{ missing }} {{ missing is defined }} {{ missing | default('d') }} {{ messages[3].name is none }}
{{ 'a' in 'abc' }} {{ 3 if false }} {{ range(5) | list }} {{ dict(a=1) }} {{ 'x' * 3 }} {{ 1.5 }}
{{ 'a-b' | replace('-', '+') }} {{ 'line\nline' | indent(2) }} {{ ' t ' | trim }} {{ '<b>' | safe }}
{{ messages | rejectattr('role', 'in', ['user', 'tool']) | list | length }} {{ '<' | e }}
{{ [3, 1, 2] | sort | join('-') }} {{ [1, 2, 3] | sum }} {{ 'ab' | reverse }} {{ 'é' | tojson }}
""",
    "macros": """
{%- macro turn(role, text='') -%}<{{ role }}>{{ text }}{{ caller() if caller }}</{{ role }}>
{%- endmacro -%}
{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}
{% call turn('assistant') %}{{ messages | length }}{% endcall %}
{% set block %}{% for m in messages %}{{ m.role }},{% endfor %}{% endset %}{{ block | title }}
{%- filter upper %}quiet{% endfilter %}
""",
    "date": "{{ strftime_now('%Y') }}{% if strftime_now is defined %} yes{% endif %}",
    "prompt": "{{ bos_token }}{{ messages[0].role }}{% if add_generation_prompt %}<a>{% endif %}",
}  # fmt: skip


def render(template, messages=MESSAGES, **variables):
    """Render one template."""
    return ChatTemplates({"default": template}, "folder").render(messages, **variables)


@pytest.mark.torch
@pytest.mark.parametrize("prompt", [False, True])
@pytest.mark.parametrize("name", ALIKE)
def test_texts_equal_transformers(name, prompt):
    from transformers.utils.chat_template_utils import render_jinja_template

    [expected], _ = render_jinja_template(
        [[{k: v for k, v in m.items() if v is not None} for m in MESSAGES]],
        tools=TOOLS,
        chat_template=ALIKE[name],
        add_generation_prompt=prompt,
        bos_token="<s>",
    )
    given = {"tools": TOOLS, "add_generation_prompt": prompt, "bos_token": "<s>"}
    assert render(ALIKE[name], **given).text == expected


def test_smollm2s_conversation_is_written_out_as_its_authors_do():
    # The text that the model card of SmolLM2-135M-Instruct shows for one user message.
    text = render(SMOLLM2, [{"role": "user", "content": "Hi"}], add_generation_prompt=True).text
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_json_keeps_its_order_and_its_characters():
    # P049: neither sorted nor escaped for HTML or ASCII.
    schema = {"b": 1, "a": "é<"}
    assert render("{{ tools | tojson }}", tools=[schema]).text == '[{"b": 1, "a": "é<"}]'


def test_the_assistants_spans_are_those_of_its_blocks():
    template = (
        "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}.{% endgeneration %}{% endif %}{% endfor %}"
    )
    rendered = render(template)
    spans = [rendered.text[start:end] for start, end in rendered.assistant]
    assert spans == [MESSAGES[2]["content"] + ".", MESSAGES[4]["content"] + "."]


def test_a_long_conversation_is_no_attack():
    # Ten thousand turns of two kilobytes: past the usual output limit, as the caller's own text is.
    messages = [{"role": "user", "content": "x" * 2000}] * 2000
    text = render(SMOLLM2, messages).text
    assert text.count("x" * 2000) == 2000


def test_the_callers_messages_stay_as_they_were():
    messages = [{"role": "user", "content": ["a"], "more": None}]
    for template in (
        "{% set _ = messages.append(1) %}",
        "{% set _ = messages[0].content.append(1) %}",
        "{% set _ = messages[0].update(a=1) %}",
        "{% do messages.clear() %}",
    ):
        with pytest.raises(InputRefused):
            render(template, messages)
    assert messages == [{"role": "user", "content": ["a"], "more": None}]


ENDLESS = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "filtered loops": (
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "recursive loop": (
        "{% for i in range(99999) recursive %}{{ loop(range(99999)) if loop.depth < 3 }}"
        "{% endfor %}"
    ),
    "macros": (
        "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "tests": "{{ range(99999) | select('in', range(99999) | list) | list | length }}",
    "comparisons": (
        "{% set a = range(99999) | list %}{% set b = range(99999) | list %}"
        "{% for i in range(99999) %}{{ a == b }}{% endfor %}"
    ),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_not_end_stops_within_its_time(name, monkeypatch):
    monkeypatch.setattr("bridges.text.template_budget.SECONDS", 0.3)
    started = time.thread_time()
    with pytest.raises(InputRefused, match="processor time"):
        render(ENDLESS[name])
    assert time.thread_time() - started < 1.0


TWICE = "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
NESTED = "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}"
GIANT = {
    "repeated text": "{{ 'x' * 1000000000 }}",
    "repeated text, other order": "{{ 1000000000 * 'x' }}",
    "repeated list": "{{ [1] * 1000000000 }}",
    "output": "{% for i in range(99999) %}" + "x" * 60 + "{% endfor %}",
    "captured output": (
        "{% set x %}{% for i in range(99999) %}" + "x" * 60 + "{% endfor %}{% endset %}"
    ),
    "generation": "{% generation %}{{ 'x' * 1000000000 }}{% endgeneration %}",
    "doubled by ~": TWICE + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubled by +": TWICE + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "many texts": "{% set ns = namespace(l=[]) %}{% for i in range(999) %}"
    "{% set ns.l = ns.l + ['x' * 1000000 ~ i] %}{% endfor %}",
    "lists of one list": NESTED + "{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "objects of one object": (
        NESTED + "{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x | tojson }}"
    ),
    "dict": NESTED + "{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x | string }}",
    "power": "{{ 99 ** 99999 }}",
    "squares": (
        "{% set ns = namespace(x=9) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}"
        "{% endfor %}"
    ),
    "center": "{{ 'x'.center(1000000000) }}",
    "center filter": "{{ 'x' | center(1000000000) }}",
    "zfill": "{{ 'x'.zfill(1000000000) }}",
    "tabs": "{{ ('\\t' * 1000).expandtabs(tabsize=10000) }}",
    "format": "{{ '{:>1000000000}'.format('x') }}",
    "nested format": "{{ '{:{}}'.format('x', 1000000000) }}",
    "format_map": "{{ '{a:>1000000000}'.format_map({'a': 'x'}) }}",
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "percent often": "{{ ('%s' * 10000) % ('x' * 1000000,) }}",
    "format filter": "{{ '%1000000000d' | format(1) }}",
    "replace": "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
    "replace filter": "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}",
    "join": "{{ ('x' * 1000000).join(['a'] * 100000) }}",
    "join filter": "{{ (['a'] * 100000) | join('x' * 1000000) }}",
    "indent": "{{ ('a\\n' * 10000) | indent(width='x' * 10000) }}",
    "json": "{{ range(99999) | list | tojson(indent='x' * 10000) }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "lists of ranges": "{{ ([range(99999)] * 99999) | map('list') | list | length }}",
    "batch": "{{ [1] | batch(1000000000, 'x') | list }}",
    "bytes": "{{ 'x'.encode().center(1000000000) }}",
    "bytes of a number": "{{ (1).to_bytes(1000000000, 'big') }}",
    "date": "{{ strftime_now('%1000000000d') }}",
}  # fmt: skip


@pytest.mark.parametrize("name", GIANT)
def test_a_giant_is_refused_before_it_is_made(name):
    before = peak_bytes()
    with pytest.raises(InputRefused, match="chat template 'default'"):
        render(GIANT[name])
    assert peak_bytes() - before < 200 << 20


def peak_bytes():
    """Return the most resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for c in ''.__class__.__mro__[1].__subclasses__() %}{{ c }}{% endfor %}", "__class__"),
        ("{{ messages.__init__.__globals__['os'] }}", "__init__"),
        ("{{ (''|attr('__class__')).x }}", "__class__"),
        ("{{ raise_exception.__globals__ }}{{ raise_exception.__globals__.x }}", "__globals__"),
        ("{% set ns = namespace(__class__=1) %}", "__class__"),
        ("{% include '/etc/hostname' %}", "line 1: .*include"),
        ("\n{% import 'x' as y %}", "line 2: .*import"),
        ("{% from 'x' import y %}", "import"),
        ("{% extends 'x' %}", "extends"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
        ("{% for i in [1] %}" * 120 + "{% endfor %}" * 120, "Error"),
        ("x\n{% for %}", "line 2: TemplateSyntaxError"),
        ("{{ 'x' | nonesuch }}", "nonesuch"),
        ("{{ missing.field }}", "missing"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
    ],
)
def test_what_a_template_may_not_do_is_refused_on_one_line(template, words):
    with pytest.raises(InputRefused, match=words) as refusal:
        render(template)
    message = str(refusal.value)
    assert "\n" not in message
    assert message.isprintable()
    assert len(message) < 1000


@pytest.mark.parametrize("message", ["hi", {"role": "user", "content": object()}])
def test_messages_that_json_could_not_hold_are_refused(message):
    with pytest.raises(InputRefused, match="chat messages: found"):
        render("x", [message])


def test_threads_render_side_by_side():
    templates = ChatTemplates({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    results = {}

    def work(name):
        for _ in range(50):
            text = templates.render([{"content": name}] * 50).text
            results[name] = results.get(name, True) and text == name * 50

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys("abcd", True)


def test_the_newest_place_that_has_a_template_counts(tmp_path):
    # The order of transformers: jinja files, then chat_template.json, then the settings.
    settings = {"chat_template": "oldest"}
    assert read_templates(tmp_path, settings).texts == {"default": "oldest"}
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "older"}))
    assert read_templates(tmp_path, settings).texts == {"default": "older"}
    (tmp_path / "chat_template.jinja").write_text("newest é")
    assert read_templates(tmp_path, settings).texts == {"default": "newest é"}
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    texts = {"default": "newest é", "tool_use": "tools"}
    assert read_templates(tmp_path, settings).texts == texts


def test_no_template_is_none_and_says_so(tmp_path):
    templates = read_templates(tmp_path, {})
    assert templates.default is None
    assert templates.files() == {}
    with pytest.raises(InputRefused, match="no chat template"):
        templates.render(MESSAGES)


def test_named_templates_are_chosen_by_name_or_by_tools():
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    templates = read_templates_of(named)
    assert templates.render(MESSAGES).text == "plain"
    assert templates.render(MESSAGES, tools=TOOLS).text == "tools"
    assert templates.render(MESSAGES, template="tool_use").text == "tools"
    with pytest.raises(InputRefused, match="did you mean 'tool_use'"):
        templates.render(MESSAGES, template="tool_uses")
    assert templates.legacy() == named
    assert templates.files() == {
        "chat_template.jinja": b"plain",
        "additional_chat_templates/tool_use.jinja": b"tools",
    }


def read_templates_of(value):
    """Read the templates of settings alone."""
    from pathlib import Path

    return read_templates(Path("nowhere"), {"chat_template": value})


@pytest.mark.parametrize(
    "name", ["../../evil", "a/b", "/abs", "", "..", "a\\b", "nul\0", "x" * 300, ".hidden"]
)
def test_a_name_that_is_no_plain_name_is_refused_on_reading_and_on_writing(name):
    with pytest.raises(InputRefused, match="plain names"):
        read_templates_of([{"name": name, "template": "b"}])
    with pytest.raises(InputRefused, match="plain names"):
        ChatTemplates({name: "b"}).files()


@pytest.mark.parametrize("value", [3, ["a"], [{"name": "x"}], {"default": 3}, "x" * (1 << 21)])
def test_a_template_that_is_no_text_is_refused(value):
    with pytest.raises(InputRefused, match=r"chat.template"):
        read_templates_of(value)
