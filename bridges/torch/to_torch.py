"""`bridges.to_torch`: a JAX function as a step of torch's autograd."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bridges.torch import tensors
from dew.errors import InputRefused, shown


def to_torch(fn: Callable[..., Any], *, jit: bool = True) -> Callable[..., Any]:
    """Wrap a JAX function so that it takes tensors, gives tensors and takes part in backward().

    A dew model in a torch training loop:

        model = bridges.to_torch(
            lambda params, ids: bundle.apply({"params": params}, input_ids=ids)["logits"]
        )
        params = bridges.tensors.to_torch(bundle.variables["params"], copy=True)
        leaves = [leaf.requires_grad_() for leaf in jax.tree.leaves(params)]
        optimizer = torch.optim.AdamW(leaves)
        loss = torch.nn.functional.cross_entropy(model(params, ids).flatten(0, 1), labels)
        loss.backward()
        optimizer.step()

    Arguments may be trees. Their tensors are handed over by `bridges.tensors`, without a copy where
    that works; NumPy and JAX arrays are handed over too, without gradients. Numbers, strings and
    all else are fixed when the function is compiled: it is compiled anew for each value of theirs
    and each shape, so pass a tensor for a number that changes from call to call.

    The forward pass is compiled with the values that its derivative needs, which are kept until
    the graph is freed; backward() is compiled on its own. Gradients go to the floating and complex
    tensors that require them, in their own dtype. Outputs of integers and booleans have none.
    What torch's own functions demand holds here too: a tensor that is changed in place between
    forward and backward is an error there. There is no derivative of the derivative: backward()
    through a gradient made with `create_graph=True` is refused. Write `jax.grad` into `fn` instead.

    Args:
        fn: a pure function of arrays; it must be traceable.
        jit: whether to compile it; without, it runs operator by operator, for debugging.

    Returns:
        A function of the same arguments, by position and by name, whose tree of outputs holds
        tensors on the CPU, float64 and int64 only with `jax_enable_x64`. An output that is no array
        (a string, None) comes out as it was when the function was compiled.

    Raises:
        InputRefused: from the call: a tensor that `bridges.tensors.to_jax` refuses, or an argument
            that is neither tensor nor hashable.
    """
    call = _Call(fn, jit)

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return call(args, kwargs)

    return wrapped


_ARRAY = object()


@dataclass(frozen=True)
class _Fixed:
    """An argument that the compiled function knows; 1, 1.0 and True are three of them."""

    value: Any
    kind: type
    written: str


@dataclass(frozen=True)
class _Layout:
    """What a call's compiled passes depend on, beside shapes and dtypes.

    Attributes:
        structure: the tree of the arguments.
        leaves: `_ARRAY` or the `_Fixed` value, in the tree's order.
        is_tensor: of each array, whether it came from torch.
        wanted: of each tensor, whether it takes a gradient.
    """

    structure: Any
    leaves: tuple[Any, ...]
    is_tensor: tuple[bool, ...]
    wanted: tuple[bool, ...]


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Outcome:
    """What a compiled pass gave beside arrays.

    Attributes:
        structure: the tree of the outputs.
        leaves: `_ARRAY`, or what the function gave instead of one.
        differentiable: of each array, whether gradients flow through it.
        pull: the tree of the function that pulls gradients back.
        sources: of each of its leaves, which argument it is; None for a value of its own.
    """

    structure: Any
    leaves: tuple[Any, ...]
    differentiable: tuple[bool, ...]
    pull: Any = None
    sources: tuple[int | None, ...] = ()


class _Call:
    """One wrapped function with its compiled passes."""

    def __init__(self, fn: Callable[..., Any], jit: bool):
        self._fn, self.jit = fn, jit
        compiled: Any = functools.partial(jax.jit, static_argnums=0) if jit else lambda made: made
        self.plain = compiled(self._plain)
        self.forward = compiled(self._forward)
        self.backward = jax.jit(_pulled_back) if jit else _pulled_back

    def __call__(self, args: Any, kwargs: Any) -> Any:
        import torch

        leaves, structure = jax.tree.flatten((args, kwargs))
        given = [leaf for leaf in leaves if _is_array(leaf)]
        inputs = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        layout = _Layout(
            structure,
            tuple(_ARRAY if _is_array(leaf) else _fixed(leaf) for leaf in leaves),
            tuple(isinstance(leaf, torch.Tensor) for leaf in given),
            tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in inputs),
        )
        others = [leaf for leaf in given if not isinstance(leaf, torch.Tensor)]
        # A copy of NumPy's, which may change before the derivative is taken.
        others = [a if isinstance(a, jax.Array) else tensors.to_jax(a, copy=True) for a in others]
        outcomes: list[_Outcome] = []
        made = _autograd_function().apply(self, layout, others, outcomes, *inputs)
        arrays = iter(made)
        leaves = [next(arrays) if leaf is _ARRAY else leaf for leaf in outcomes[0].leaves]
        return jax.tree.unflatten(outcomes[0].structure, leaves)

    def _plain(self, layout: _Layout, inputs: Any, others: Any) -> tuple[list[Any], _Outcome]:
        given, rest = iter(inputs), iter(others)
        arrays = iter([next(given if tensor else rest) for tensor in layout.is_tensor])
        leaves = [next(arrays) if leaf is _ARRAY else leaf.value for leaf in layout.leaves]
        args, kwargs = jax.tree.unflatten(layout.structure, leaves)
        leaves, structure = jax.tree.flatten(self._fn(*args, **kwargs))
        leaves = [jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
        outputs = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        kept = tuple(_ARRAY if isinstance(leaf, jax.Array) else leaf for leaf in leaves)
        smooth = tuple(jnp.issubdtype(array.dtype, jnp.inexact) for array in outputs)
        return outputs, _Outcome(structure, kept, smooth)

    def _forward(self, layout: _Layout, inputs: Any, others: Any) -> Any:
        """Return the outputs, what their derivative needs beside the arguments, and the outcome."""

        def smooth_outputs(varied: Any) -> Any:
            moving = iter(varied)
            pairs = zip(inputs, layout.wanted, strict=True)
            merged = [next(moving) if wanted else array for array, wanted in pairs]
            outputs, outcome = self._plain(layout, merged, others)
            parted = list(zip(outputs, outcome.differentiable, strict=True))
            smooth = [output for output, yes in parted if yes]
            return smooth, ([output for output, yes in parted if not yes], outcome)

        varied = [a for a, wanted in zip(inputs, layout.wanted, strict=True) if wanted]
        smooth, pull, (rough, outcome) = jax.vjp(smooth_outputs, varied, has_aux=True)
        either = iter(smooth), iter(rough)
        outputs = [next(either[0] if yes else either[1]) for yes in outcome.differentiable]
        leaves, structure = jax.tree.flatten(pull)
        # An argument would come out of the compiled pass as a copy.
        places = {id(array): place for place, array in enumerate([*inputs, *others])}
        sources = tuple(places.get(id(leaf)) for leaf in leaves)
        own = [leaf for leaf, source in zip(leaves, sources, strict=True) if source is None]
        return outputs, own, replace(outcome, pull=structure, sources=sources)


def _pulled_back(pull: Any, gradients: list[Any]) -> list[Any]:
    # torch's gradient of a complex number is the conjugate of JAX's.
    return [jnp.conj(part) for part in pull([jnp.conj(part) for part in gradients])[0]]


@functools.cache
def _autograd_function() -> Any:
    import torch

    message = (
        "bridges.to_torch gives no derivative of the derivative, which create_graph=True asks for: "
        "take the first one inside the JAX function, by jax.grad"
    )

    class Refusal(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given: Any) -> Any:
            return tuple(tensor.view_as(tensor) for tensor in given[1:])

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            raise InputRefused(message)

    class JaxFunction(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, call: _Call, layout: _Layout, others: Any, outcomes: Any, *given: Any
        ) -> Any:
            inputs = tensors.to_jax([tensor.detach() for tensor in given])
            own: list[Any] = []
            if any(layout.wanted):
                outputs, own, outcome = call.forward(layout, inputs, others)
            else:
                outputs, outcome = call.plain(layout, inputs, others)
            # torch may write to the inputs as soon as this returns.
            jax.block_until_ready((outputs, own))
            outcomes.append(outcome)
            made = _handed_over(outputs, (inputs, others, own), call.jit)
            if any(layout.wanted):
                ctx.call, ctx.wanted, ctx.others, ctx.outcome = call, layout.wanted, others, outcome
                ctx.likes = [(tensor.dtype, tensor.device) for tensor in given]
                ctx.shapes = [(output.shape, output.dtype) for output in outputs]
                _keep(ctx, given, own)
                ctx.set_materialize_grads(False)
                pairs = zip(made, outcome.differentiable, strict=True)
                ctx.mark_non_differentiable(*(tensor for tensor, smooth in pairs if not smooth))
            return tuple(made)

        @staticmethod
        def backward(ctx: Any, *given: Any) -> Any:
            with torch.no_grad():
                gradients = _gradients(ctx, given)
            if torch.is_grad_enabled():
                gradients = Refusal.apply(torch.ones((), requires_grad=True), *gradients)
            results = iter(gradients)
            return None, None, None, None, *(next(results) if w else None for w in ctx.wanted)

    return JaxFunction


def _keep(ctx: Any, given: Sequence[Any], own: Sequence[Any]) -> None:
    """Leave what the derivative needs with torch, which frees it and sees whether it changed."""
    ctx.places = sorted({n for n in ctx.outcome.sources if n is not None and n < len(given)})
    ctx.strange = [None if array.dtype.name in tensors.SHARED_DTYPES else array for array in own]
    pairs = zip(own, ctx.strange, strict=True)
    plain = tensors.to_torch([array for array, strange in pairs if strange is None])
    ctx.save_for_backward(*(given[place] for place in ctx.places), *plain)


def _pull(ctx: Any) -> Any:
    """Return the function that pulls gradients back, from what was kept."""
    kept = tensors.to_jax([tensor.detach() for tensor in ctx.saved_tensors])
    count = len(ctx.places)
    arguments = dict(zip(ctx.places, kept[:count], strict=True))
    arguments |= dict(enumerate(ctx.others, len(ctx.wanted)))
    plain = iter(kept[count:])
    own = iter([next(plain) if strange is None else strange for strange in ctx.strange])
    leaves = [next(own) if place is None else arguments[place] for place in ctx.outcome.sources]
    return jax.tree.unflatten(ctx.outcome.pull, leaves)


def _gradients(ctx: Any, given: Sequence[Any]) -> list[Any]:
    """Return the gradients of the inputs that take one, in their own dtypes."""
    pull = _pull(ctx)
    parts = zip(given, ctx.shapes, ctx.outcome.differentiable, strict=True)
    arriving = [
        jnp.zeros(*shape) if gradient is None else tensors.to_jax(gradient.detach())
        for gradient, shape, smooth in parts
        if smooth
    ]
    pulled = jax.block_until_ready(ctx.call.backward(pull, arriving))
    made = _handed_over(pulled, (pull, arriving), ctx.call.jit)
    likes = [like for like, wanted in zip(ctx.likes, ctx.wanted, strict=True) if wanted]
    pairs = zip(made, likes, strict=True)
    return [tensor.to(dtype=dtype, device=device) for tensor, (dtype, device) in pairs]


def _handed_over(arrays: Sequence[Any], others: Any, jit: bool) -> list[Any]:
    """Return the arrays as tensors that may be written to: no other array has their memory.

    A compiled function gives memory of its own but for what it shares with `others`; one that
    runs operator by operator may give any array that it can reach.
    """
    taken = {_pointer(leaf) for leaf in jax.tree.leaves(others) if isinstance(leaf, jax.Array)}
    made = []
    for array in arrays:
        pointer = _pointer(array)
        made.append(tensors.to_torch(array, copy=True if pointer in taken or not jit else None))
        taken.add(pointer)
    return made


def _pointer(array: Any) -> int | None:
    """Return where an array's memory starts, or None where it is no single piece."""
    if len(array.devices()) > 1 or jnp.issubdtype(array.dtype, jax.dtypes.extended):
        return None
    return array.unsafe_buffer_pointer()


def _is_array(leaf: Any) -> bool:
    import torch

    return isinstance(leaf, torch.Tensor | np.ndarray | jax.Array)


def _fixed(leaf: Any) -> _Fixed:
    try:
        hash(leaf)
    except TypeError:
        raise InputRefused(
            f"an argument is a {type(leaf).__name__} ({shown(leaf)}): expected tensors, arrays, "
            "or what can be hashed, in dicts, lists and tuples"
        ) from None
    return _Fixed(leaf, type(leaf), repr(leaf) if isinstance(leaf, float | complex) else "")
