"""From a torch module to a graph, through `torch.export`."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from bridges.torch.graph import Graph, Input, Node, Ref, Structure
from bridges.torch.module import leaves_of
from dew.errors import InputRefused

# Kept whole: their own derivative is the right one at its edges, or they run faster so.
_WHOLE = (
    "linear.default",
    "linalg_vector_norm.default",
    "silu.default",
    "softplus.default",
    "hardswish.default",
    "hardsigmoid.default",
    "mish.default",
    "log_sigmoid.default",
    "logsumexp.default",
    "_safe_softmax.default",
    "rms_norm.default",
    "pixel_shuffle.default",
    "pixel_unshuffle.default",
    "grid_sampler_2d.default",
    "upsample_linear1d.vec",
    "upsample_bilinear2d.vec",
    "upsample_trilinear3d.vec",
    "upsample_bicubic2d.vec",
    "upsample_nearest1d.vec",
    "upsample_nearest2d.vec",
    "upsample_nearest3d.vec",
    "_upsample_bilinear2d_aa.vec",
    "_upsample_bicubic2d_aa.vec",
    "cdist.default",
    "im2col.default",
    "col2im.default",
)

# What says where and how torch holds an array means nothing here.
_PLACES = ("device", "layout", "memory_format", "pin_memory", "generator", "requires_grad")


class NotExportable(InputRefused):
    """A module that `torch.export` cannot follow; the message gives its reason and the line."""


def traced_graph(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, dynamic: bool
) -> tuple[Graph, dict[str, Any]]:
    """Export a module and return its graph, with the values that the graph brings itself.

    Args:
        module: a `torch.nn.Module`, in the mode (train or eval) to be traced.
        args: example inputs by position, torch tensors or plain values.
        kwargs: example inputs by name.
        dynamic: let all lengths of all arrays vary where the module allows it.

    Returns:
        The graph, and its constants as NumPy arrays by name.

    Raises:
        NotExportable: `torch.export` does not follow the module.
    """
    program = _exported(module, args, kwargs, dynamic)
    _keep_stopped_gradients(program)
    return _read(program.run_decompositions(_decompositions()))


def _exported(module: Any, args: Any, kwargs: Any, dynamic: bool) -> Any:
    import torch
    from torch.utils._pytree import tree_map

    shapes = None
    if dynamic:
        shapes = tree_map(_free, (tuple(args), dict(kwargs)))
        shapes = shapes[0] if not kwargs else shapes[1] if not args else None
    said = io.StringIO()
    try:
        with (
            _quiet(),
            contextlib.redirect_stderr(said),  # of a failure torch prints the whole graph so far
            torch.enable_grad(),
            transformers_patches(module, kwargs),
        ):
            program = torch.export.export(
                module, tuple(args), dict(kwargs), dynamic_shapes=shapes, strict=False
            )
    except Exception as error:
        raise NotExportable(_reason(module, error)) from error
    sys.stderr.write(said.getvalue())
    return program


def _free(leaf: Any) -> Any:
    import torch

    if not isinstance(leaf, torch.Tensor):
        return None
    return {axis: torch.export.Dim.AUTO for axis in range(leaf.ndim)}


def _reason(module: Any, error: Exception) -> str:
    """Return what torch found and the line of the module's own code that it was at."""
    import traceback

    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "/torch/" not in frame.filename and not frame.filename.startswith("<")
    ]
    frame = own[-1] if own else None
    place = f" at {frame.filename}:{frame.lineno}: {frame.line}" if frame else ""
    text = str(error).strip().split("\n\n")[0]
    return (
        f"torch.export cannot follow {type(module).__name__}{place}. torch says: "
        f"{type(error).__name__}: {text[:1500]}. What depends on an input's values (`if`, "
        "`.item()`, `.tolist()`, boolean indexing) has to be written with torch.where or "
        "torch.cond, or kept out of the module."
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def transformers_patches(module: Any, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Put transformers' own mends for export in place, where the module is one of its models."""
    found = sys.modules.get("transformers")
    if found is None or not isinstance(module, found.PreTrainedModel):
        yield
        return
    try:
        from transformers.exporters import exporter_dynamo as exporters
        from transformers.exporters.utils import apply_patches
    except ImportError:
        yield
        return
    exporters.register_cache_pytrees_for_model(module)
    with (
        apply_patches("dynamo"),
        exporters.reset_model_state(module),
        _settled_outputs(module, found.utils.ModelOutput),
        _solved_at_once(module),
        exporters.patch_forward_signature(module, dict(kwargs)) if kwargs else _nothing(),
    ):
        yield


@contextlib.contextmanager
def _solved_at_once(module: Any) -> Iterator[None]:
    """Let gated delta rules solve their triangular systems in one call, as outside an export.

    For exporters without such a solver transformers substitutes row by row, which is thousands of
    operators a layer, and minutes of compiling.
    """
    homes = {sys.modules[type(part).__module__] for part in module.modules()}
    asked = "is_torchdynamo_exporting"
    found = [h for h in homes if hasattr(h, asked) and hasattr(h, "torch_chunk_gated_delta_rule")]
    before = [getattr(home, asked) for home in found]
    for home in found:
        setattr(home, asked, lambda: False)
    try:
        yield
    finally:
        for home, value in zip(found, before, strict=True):
            setattr(home, asked, value)


@contextlib.contextmanager
def _settled_outputs(module: Any, output_class: type) -> Iterator[None]:
    """Let the fields of a model's outputs stand in the order of their class.

    torch takes an output apart and puts it together again, which brings them into that order,
    and goes on to read it by the order that the model had set them in.
    """

    def settled(value: Any) -> Any:
        if isinstance(value, output_class):
            return type(value)(**{name: settled(part) for name, part in value.items()})
        if type(value) is dict:
            return {name: settled(part) for name, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)(settled(part) for part in value)
        return value

    forward = module.forward

    @functools.wraps(forward)
    def settled_forward(*args: Any, **kwargs: Any) -> Any:
        return settled(forward(*args, **kwargs))

    own = vars(module).get("forward")
    module.forward = settled_forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


@cache
def _stop_gradient() -> Any:
    """Return an operator that survives decomposition, where torch drops `detach`."""
    import torch

    def stop_gradient(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    stop_gradient.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    made = torch.library.custom_op("bridge::stop_gradient", mutates_args=())(stop_gradient)
    made.register_fake(lambda x: torch.empty_like(x))
    return torch.ops.bridge.stop_gradient.default


def _keep_stopped_gradients(program: Any) -> None:
    """Turn `detach`, and what is computed under `no_grad`, into an operator that stays."""
    import torch

    graph = program.graph_module.graph
    detached = (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
    stop = _stop_gradient()
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in detached:
            node.target = stop
        elif node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not node.args[0]:
            same = _handed_through(program.graph_module, node)
            for part in list(node.users):
                if part.args[1] in same:
                    part.replace_all_uses_with(same[part.args[1]])
                else:
                    _stop_after(graph, part, stop)
    program.graph_module.recompile()


def _handed_through(module: Any, region: Any) -> dict[int, Any]:
    """Return which outputs of a `no_grad` region are operands of it, by their index.

    `to` and `contiguous` give back the tensor itself where they change nothing; whatever uses that
    tensor later then seems to use the region's output, though its gradient goes on.
    """
    body = getattr(module, region.args[1].target).graph
    operands = dict(zip(body.find_nodes(op="placeholder"), region.args[2:], strict=True))
    (outputs,) = body.output_node().args
    found = {}
    for index, value in enumerate(outputs):
        while value not in operands and _is_same(value):
            value = value.args[0]
        if value in operands:
            found[index] = operands[value]
    return found


def _is_same(node: Any) -> bool:
    """Return whether a node gives back its first operand, as `to` without a change does."""
    if str(getattr(node.target, "overloadpacket", "")) not in ("aten.to", "aten.contiguous"):
        return False
    names = (argument.name for argument in node.target._schema.arguments)
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    after, before = node.meta["val"], node.args[0].meta["val"]
    kept = after.dtype == before.dtype and after.stride() == before.stride()
    return kept and not given.get("copy", False)


def _stop_after(graph: Any, node: Any, stop: Any) -> None:
    value = node.meta.get("val")
    if value is None or not getattr(value, "is_floating_point", lambda: False)():
        return
    with graph.inserting_after(node):
        stopped = graph.call_function(stop, (node,))
    stopped.meta = dict(node.meta)
    node.replace_all_uses_with(stopped, delete_user_cb=lambda user: user is not stopped)


def _decompositions() -> Any:
    import torch

    table = torch.export.default_decompositions()
    for name in _WHOLE:
        packet, _, overload = name.partition(".")
        found = getattr(getattr(torch.ops.aten, packet, None), overload, None)
        if found is not None:
            table.pop(found, None)
    return table


def _read(program: Any) -> tuple[Graph, dict[str, Any]]:
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    specs = program.graph_signature.input_specs
    params: dict[str, str] = {}
    buffers: dict[str, str] = {}
    constants: dict[str, Any] = {}
    leaves: list[tuple[str, Any]] = []
    for node, spec in zip(placeholders, specs, strict=True):
        kind = spec.kind.name
        if kind == "PARAMETER":
            params[node.name] = spec.target
        elif kind == "BUFFER":
            buffers[node.name] = spec.target
        elif kind == "CONSTANT_TENSOR":
            constants[node.name] = program.constants[spec.target]
        elif kind == "USER_INPUT":
            leaves.append((node.name, spec.arg))
        else:
            raise NotExportable(f"the module holds a {kind.lower()} ({spec.target})")
    nodes, attributes = _nodes(program)
    constants |= attributes
    outputs, mutations = _outputs(program)
    graph = Graph(
        nodes=nodes,
        inputs=_inputs(program, leaves, {node.name: node for node in placeholders}),
        params=params,
        buffers=buffers,
        constants=tuple(constants),
        outputs=outputs,
        structure=_structure(program.call_spec.out_spec),
        mutations=mutations,
    )
    return graph, {name: numpy_of(value) for name, value in constants.items()}


def numpy_of(tensor: Any) -> Any:
    """Return a tensor's values as a NumPy array of the same dtype, bfloat16 included."""
    import ml_dtypes
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def dtype_name(dtype: Any) -> str:
    """Return torch's dtype by name."""
    return str(dtype).removeprefix("torch.")


def _nodes(program: Any) -> tuple[tuple[Node, ...], dict[str, Any]]:
    nodes, attributes = [], {}
    for node in program.graph.nodes:
        if node.op == "get_attr":
            attributes[node.name] = getattr(program.graph_module, node.target)
        elif node.op == "call_function":
            value = node.meta.get("val")
            dtype = dtype_name(value.dtype) if hasattr(value, "dtype") else None
            kwargs = {k: _argument(v) for k, v in node.kwargs.items() if k not in _PLACES}
            args = tuple(_argument(part) for part in node.args)
            nodes.append(Node(node.name, _op_name(node.target), args, kwargs, dtype, _where(node)))
    return tuple(nodes), attributes


def _op_name(target: Any) -> str:
    """Return torch's name of an operator; Python's own functions are `python.add` and so on."""
    if hasattr(target, "overloadpacket"):
        return str(target)
    if getattr(target, "namespace", None) == "higher_order":
        return f"higher_order.{target.name()}"
    name = getattr(target, "__name__", str(target))
    return f"python.{name.removeprefix('_sym_') if name.startswith('_sym_') else name}"


def _argument(value: Any) -> Any:
    import torch

    if isinstance(value, torch.fx.Node):
        return Ref(value.name)
    if isinstance(value, torch.dtype):
        return dtype_name(value)
    if isinstance(value, torch.device | torch.layout | torch.memory_format):
        return None
    if isinstance(value, list | tuple):
        return [_argument(part) for part in value]
    if isinstance(value, Mapping):
        return {key: _argument(part) for key, part in value.items()}
    if value is None or isinstance(value, bool | int | float | complex | str):
        return value
    raise NotExportable(f"the graph holds a {type(value).__name__}, which has no plain form")


def _where(node: Any) -> str:
    """Return the submodule that a node comes from, and its line of code."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    trace = (node.meta.get("stack_trace") or "").strip().splitlines()
    line = next((text.strip() for text in reversed(trace) if text.strip().startswith("File")), "")
    return ", ".join(part for part in (path.removeprefix("L['self']").strip("."), line) if part)


def _inputs(
    program: Any, leaves: list[tuple[str, Any]], nodes: Mapping[str, Any]
) -> tuple[Input, ...]:
    args, kwargs = program.example_inputs
    paths = [*leaves_of(list(args), ()), *leaves_of(dict(kwargs), ())]
    found = []
    for (name, spec), (path, _) in zip(leaves, paths, strict=True):
        value = nodes[name].meta.get("val")
        if hasattr(value, "shape"):
            shape = tuple(_length(size) for size in value.shape)
            found.append(Input(name, path, shape, dtype_name(value.dtype)))
        else:
            constant = getattr(spec, "value", None)
            found.append(Input(name, path, constant=constant))
    return tuple(found)


def _length(size: Any) -> int | str:
    """Return a length, or its symbol; torch may hold a settled length as a symbol too."""
    text = str(size)
    return int(text) if text.isdecimal() else text


def _outputs(program: Any) -> tuple[tuple[Any, ...], dict[str, Ref]]:
    outputs: list[Any] = []
    mutations: dict[str, Ref] = {}
    for spec in program.graph_signature.output_specs:
        kind = spec.kind.name
        if kind == "BUFFER_MUTATION":
            mutations[spec.target] = Ref(spec.arg.name)
        elif kind == "USER_OUTPUT":
            named = hasattr(spec.arg, "name") and type(spec.arg).__name__ != "ConstantArgument"
            outputs.append(Ref(spec.arg.name) if named else spec.arg.value)
        elif kind != "USER_INPUT_MUTATION":
            raise NotExportable(f"the module has an output of kind {kind.lower()}")
    return tuple(outputs), mutations


def _structure(spec: Any) -> Structure:
    if spec.is_leaf():
        return Structure("leaf")
    parts = tuple(_structure(part) for part in spec.children())
    if spec.type in (tuple, list):
        return Structure(spec.type.__name__, (), parts)
    if spec.type is dict:
        return Structure("dict", tuple(map(str, spec.context)), parts)
    keys = _field_names(spec)
    if keys is None or len(keys) != len(parts):
        return Structure("tuple", (), parts)
    return Structure("output", tuple(keys), parts)


def _field_names(spec: Any) -> list[str] | None:
    if hasattr(spec.type, "_fields"):
        return list(spec.type._fields)
    context = spec.context
    if isinstance(context, tuple) and context and isinstance(context[0], list | tuple):
        context = context[0]
    if isinstance(context, list | tuple) and all(isinstance(key, str) for key in context):
        return list(context)
    return None
