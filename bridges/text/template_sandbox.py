"""The Jinja environment of chat templates: sandboxed, without a loader, every step counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from bridges.text.template_budget import Budget
from dew.errors import InputRefused

FILTERS = (
    "abs attr batch capitalize center count d default dictsort e escape first float forceescape "
    "format groupby indent int items join last length list lower map max min reject rejectattr "
    "replace reverse round safe select selectattr slice sort string sum title trim truncate "
    "unique upper wordcount"
)
TEXTS = ("capitalize", "center", "lower", "safe", "string", "title", "trim", "upper")
WIDTHS = ("center", "ljust", "rjust", "zfill", "expandtabs")
WIDEST_DATE = 32
REFUSED = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
TICK, MADE, TEXT = "_dew_tick", "_dew_made", "_dew_text"


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Renders chat templates as transformers does, within a `Budget`."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self):
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be computed at compile time, uncounted
            finalize=_finalize,
            extensions=[_Generation, loopcontrols],
        )
        self._local = threading.local()
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": _SafeNamespace,
            "raise_exception": _raise_exception,
            "strftime_now": self._strftime_now,
            **{name: self.globals[name] for name in ("cycler", "joiner")},
        }
        filters = {name: self.filters[name] for name in FILTERS.split()}
        self.filters = {name: self._counted(name, found) for name, found in filters.items()}
        self.tests = {name: self._stepped(found) for name, found in self.tests.items()}
        self.filters["tojson"] = self._tojson
        self.filters["join"] = self._join
        self.filters[TICK] = self._tick
        self.filters[MADE] = lambda value: self.budget.made(value)
        self.filters[TEXT] = lambda values: self.budget.joined(values)
        self.concat = lambda parts: self.budget.joined(parts)

    @property
    def budget(self) -> Budget:
        """The budget of the rendering that this thread is in."""
        return self._local.budget

    @property
    def position(self) -> int:
        """How many characters the rendering has put out so far."""
        return self._local.position

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where `{% generation %}` blocks stand in the output."""
        return self._local.spans

    @contextmanager
    def rendering(self, budget: Budget) -> Iterator[None]:
        """Count what happens inside against `budget`."""
        self._local.budget, self._local.position, self._local.spans = budget, 0, []
        try:
            yield
        finally:
            del self._local.budget

    def advance(self, text: str) -> None:
        """Count one piece of output."""
        self.budget.write(text)
        self._local.position += len(text)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for node in tree.find_all(REFUSED):
            tag = type(node).__name__.lower().replace("fromimport", "from ... import")
            raise InputRefused(f"line {node.lineno}: {{% {tag} %}} reads another file")
        return _Counting().visit(tree)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Keep templates from bytes, whose methods nothing here bounds."""
        as_bytes = isinstance(obj, bytes) or attr in ("encode", "to_bytes")
        return not as_bytes and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute an operation once its result is sure to be small enough."""
        self.budget.operation(operator, left, right)
        return self.budget.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls, counted; methods of texts are looked at first."""
        self, callee = __self, __obj
        self.budget.step()
        owner, name = getattr(callee, "__self__", None), getattr(callee, "__name__", "")
        if isinstance(owner, str):
            self._check_method(owner, name, args, kwargs)
        return self.budget.made(super().call(__context, callee, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return a `str.format` whose result is sure to be short, in the sandbox's own."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def formatted(*args: Any, **kwargs: Any) -> str:
            values = [*args, *kwargs.values()]
            self.budget.formatted(str(value.__self__), values)
            return inner(*args, **kwargs)

        return formatted

    def _check_method(
        self, text: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Refuse a call of a text's method whose result would be too long."""
        if name in WIDTHS:
            self.budget.width(*args, *kwargs.values())
            tabs = text.count("\t") + 1 if name == "expandtabs" else 1
            width = max((value for value in args if isinstance(value, int)), default=8)
            self.budget.length(len(text) + tabs * width)
        elif name == "replace" and len(args) >= 2 and all(isinstance(a, str) for a in args[:2]):
            self.budget.replaced(text, args[0], args[1])
        elif name == "join" and args:
            if not isinstance(args[0], str | list | tuple | Mapping):
                raise InputRefused("it joins something other than a list; use the join filter")
            self.budget.joined(args[0], text)
        elif name == "translate" and args:
            table = args[0].values() if isinstance(args[0], Mapping) else ()
            longest = max((len(v) for v in table if isinstance(v, str)), default=1)
            self.budget.length(len(text) * max(1, longest))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return Jinja's filter with its arguments and its result counted."""

        def counted(*args: Any, **kwargs: Any) -> Any:
            # Some filters take the environment or a context before the value.
            value, *rest = args[1:] if takes_context else args
            if name in ("batch", "slice", "truncate", "round", "center"):
                self.budget.width(*rest, *kwargs.values())
            if name in TEXTS:
                self.budget.shown(value)
            elif name == "replace":
                self._check_replace(value, [*rest, *kwargs.values()])
            elif name == "indent":
                self._check_indent(value, [*rest, *kwargs.values()])
            elif name == "format":
                self.budget.formatted(self.budget.shown(value), [*rest, *kwargs.values()])
            elif name in ("e", "escape", "forceescape"):
                self.budget.length(6 * len(self.budget.shown(value)))
            return self.budget.made(function(*args, **kwargs))

        takes_context = hasattr(function, "jinja_pass_arg")
        if takes_context:
            counted.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return counted

    def _stepped(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """Return Jinja's test, counted: `select` runs one on every entry of a list."""

        def stepped(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            return test(*args, **kwargs)

        if hasattr(test, "jinja_pass_arg"):
            stepped.jinja_pass_arg = test.jinja_pass_arg  # type: ignore[attr-defined]
        return stepped

    def _check_replace(self, value: Any, rest: list[Any]) -> None:
        old, new = (self.budget.shown(part) for part in (*rest, "", "")[:2])
        self.budget.replaced(self.budget.shown(value), old, new)

    def _check_indent(self, value: Any, rest: list[Any]) -> None:
        self.budget.width(*rest)
        text = self.budget.shown(value)
        width = max((len(w) if isinstance(w, str) else int(w) for w in rest), default=4)
        self.budget.length(len(text) + (len(text.splitlines()) + 1) * width)

    def _tick(self, value: Any) -> bool:
        self.budget.step()
        return True

    def _join(self, values: Any, d: str = "", attribute: str | int | None = None) -> str:
        """Join values, or an attribute of each, as Jinja's own filter does."""
        if attribute is not None:
            values = [self.getitem(value, attribute) for value in values]
        return self.budget.joined(values, self.budget.shown(d))

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """Write JSON in insertion order; neither HTML nor non-ASCII characters are escaped."""
        self.budget.made(value)
        self.budget.width(indent)
        steps = json.JSONEncoder(
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators and tuple(separators),
            sort_keys=sort_keys,
        ).iterencode(value)
        return self.budget.joined(steps)

    def _strftime_now(self, pattern: str) -> str:
        self.budget.length(WIDEST_DATE * len(pattern))
        if any(character.isdigit() for character in pattern):
            raise InputRefused("its date format has a width; use plain fields such as %Y")
        return datetime.now().strftime(pattern)


class _Counting(NodeTransformer):
    """Puts a count into every loop, every literal list and every joining of texts."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        if node.test is not None:
            node.test = nodes.And(_filter(nodes.Const(True), TICK, node.lineno), node.test)
            node.test.set_lineno(node.lineno)
        tick = nodes.ExprStmt(_filter(nodes.Const(True), TICK, node.lineno))
        node.body.insert(0, tick.set_lineno(node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes).set_lineno(node.lineno), TEXT, node.lineno)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        return _filter(self.generic_visit(node), MADE, node.lineno)

    def visit_List(self, node: nodes.List) -> nodes.Node:
        return _filter(self.generic_visit(node), MADE, node.lineno)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _filter(node, MADE, node.lineno) if node.ctx == "load" else node


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}`: notes where the assistant's text stands."""

    tags = {"generation"}  # noqa: RUF012, as Jinja declares it

    def parse(self, parser: Any) -> nodes.Node:
        """Turn the block into a call of `_note` with its body."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

    def _note(self, caller: Callable[[], str]) -> str:
        text = caller()
        environment: Any = self.environment
        start = environment.position
        environment.spans.append((start, start + len(text)))
        return text


class _SafeNamespace(Namespace):
    """Jinja's namespace without names that start with an underscore."""

    def __init__(*args: Any, **kwargs: Any):  # `self` may be a name that a template gives
        for name in dict(*args[1:], **kwargs):
            _check_name(name)
        Namespace.__init__(*args, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    """Refuse a namespace's attribute that Python's internals might have."""
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace may not have the attribute {name!r}")


@pass_context  # with a context, so that Jinja does not compute constant output at compile time
def _finalize(context: Any, value: Any) -> str:
    """Return the text of an expression's value, counted."""
    return context.environment.budget.shown(value)


def _raise_exception(message: Any) -> None:
    """Let a template refuse a conversation."""
    raise TemplateError(str(message))


def _filter(node: nodes.Node, name: str, line: int) -> nodes.Filter:
    """Return `node | name`."""
    counted = nodes.Filter(node, name, [], [], None, None)
    counted.set_lineno(line)
    return counted
