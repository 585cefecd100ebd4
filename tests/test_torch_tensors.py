"""`bridges.tensors`: memory is shared where it can be, copied by rule, refused by name.

The right values are torch's and NumPy's own; whether memory is shared is read off the addresses.
"""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import typing

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import bridges
from bridges import tensors
from bridges.torch.tensors import NARROWER, SHARED_DTYPES
from dew.errors import InputRefused

pytestmark = pytest.mark.torch

FLOAT8 = ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"]


class Pair(typing.NamedTuple):
    left: object
    right: object


def shared(array: jax.Array, tensor: torch.Tensor) -> bool:
    return array.unsafe_buffer_pointer() == tensor.data_ptr()


def same_values(array, tensor) -> bool:
    return torch.equal(torch.from_numpy(np.array(array.astype(jnp.float32))), tensor.float())


@pytest.mark.parametrize("name", sorted(SHARED_DTYPES - set(NARROWER)))
def test_every_dtype_that_both_have_shares_memory_both_ways(name):
    tensor = torch.tensor([0.0, 1.0, 1.0, 0.0]).to(getattr(torch, name))
    array = tensors.to_jax(tensor, copy=False)
    assert array.dtype.name == name
    assert shared(array, tensor)
    back = tensors.to_torch(array, copy=False)
    assert back.dtype == tensor.dtype
    assert back.data_ptr() == tensor.data_ptr()
    if name.startswith("complex"):
        tensor, array = torch.view_as_real(tensor), jnp.stack([array.real, array.imag], -1)
    assert same_values(array, tensor)


@pytest.mark.parametrize(("wide", "narrow"), NARROWER.items())
def test_wide_dtypes_are_copied_to_half_their_width(wide, narrow):
    tensor = torch.tensor([0, 1, 7]).to(getattr(torch, wide))
    array = tensors.to_jax(tensor)
    assert array.dtype.name == narrow
    assert not shared(array, tensor)
    np.testing.assert_array_equal(np.asarray(array), tensor.numpy())
    with pytest.raises(InputRefused, match=rf"{wide} tensor .* becomes {narrow}.*copy=None"):
        tensors.to_jax(tensor, copy=False)


@pytest.mark.parametrize("wide", ["int64", "uint64", "float64", "complex128"])
def test_wide_dtypes_are_shared_where_jax_holds_them(wide):
    tensor = torch.tensor([0, 1, 7]).to(getattr(torch, wide))
    with jax.enable_x64(True):
        array = tensors.to_jax(tensor, copy=False)
        assert array.dtype.name == wide
        assert shared(array, tensor)
        assert tensors.to_torch(array).data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_an_integer_that_does_not_fit_is_refused_not_wrapped(value):
    limits = torch.tensor([2**31 - 1, -(2**31)])
    np.testing.assert_array_equal(np.asarray(tensors.to_jax(limits)), limits.numpy())
    with pytest.raises(InputRefused, match=rf"at \['ids'\].*{value}.*int32.*jax_enable_x64"):
        tensors.to_jax({"ids": torch.tensor([0, value])})


def test_float64_rounds_as_torch_rounds_it():
    tensor = torch.tensor([1 / 3, 1e300, -1e300, float("nan"), 1e-46], dtype=torch.float64)
    np.testing.assert_array_equal(np.asarray(tensors.to_jax(tensor)), tensor.float().numpy())


def test_sharing_means_that_writes_show_and_copying_that_they_do_not():
    tensor = torch.zeros(16)
    alias, copied = tensors.to_jax(tensor), tensors.to_jax(tensor, copy=True)
    jax.block_until_ready((alias, copied))
    tensor += 1
    assert float(alias.sum()) == 16
    assert float(copied.sum()) == 0
    array = jnp.arange(4.0) + 0
    back, own = tensors.to_torch(array), tensors.to_torch(array, copy=True)
    own += 1
    assert array.tolist() == [0, 1, 2, 3]
    back += 1
    assert array.tolist() == [1, 2, 3, 4]


def test_the_memory_outlives_its_first_owner():
    tensor = torch.full((1000,), 3.0)
    array = tensors.to_jax(tensor)
    del tensor
    _ = [torch.zeros(1000) for _ in range(20)]
    assert float(array.sum()) == 3000
    back = tensors.to_torch(jnp.full((1000,), 5.0))
    _ = [jnp.zeros(1000) for _ in range(20)]
    assert float(back.sum()) == 5000


LAYOUTS = {
    "transposed": lambda: torch.arange(12.0).reshape(3, 4).t(),
    "strided": lambda: torch.arange(64.0).reshape(8, 8)[:, ::2],
    "expanded": lambda: torch.arange(3.0)[:, None].expand(3, 5),
    "channels_last": lambda: (
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    ),
    "offset": lambda: torch.arange(40.0)[3:],
    "negated": lambda: torch.arange(6.0).to(torch.complex64).conj().imag,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_awkward_layouts_are_copied_and_copy_false_says_why(name):
    tensor = LAYOUTS[name]()
    array = tensors.to_jax(tensor)
    assert array.shape == tuple(tensor.shape)
    np.testing.assert_array_equal(np.asarray(array), tensor.resolve_neg().numpy())
    reason = {"offset": "12 bytes past a multiple of 64", "negated": "negated view"}
    with pytest.raises(InputRefused, match=reason.get(name, "not contiguous")):
        tensors.to_jax([tensor], copy=False)


def test_a_conjugated_view_gives_the_conjugate():
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    np.testing.assert_array_equal(np.asarray(tensors.to_jax(tensor)), [1 - 2j, 3 + 4j])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3, 2), (1, 1)])
@pytest.mark.parametrize("copy", [None, True, False])
def test_scalars_and_empty_tensors_keep_their_shapes(shape, copy):
    array = tensors.to_jax(torch.ones(shape), copy=copy)
    assert array.shape == shape
    back = tensors.to_torch(array, copy=copy)
    assert back.shape == shape
    assert torch.equal(back, torch.ones(shape))


def test_containers_keep_their_types_order_and_what_is_no_tensor():
    tree = {
        "b": torch.ones(2),
        "a": [torch.zeros(()), None, "text", 3],
        7: Pair(torch.ones(1), (torch.ones(1),)),
        "ordered": collections.OrderedDict(z=torch.ones(1), y=torch.ones(2)),
        "max": torch.tensor([[1.0, 2.0]]).max(dim=1),
        "size": torch.Size([2, 3]),
    }
    made = tensors.to_jax(tree)
    assert list(made) == list(tree)
    assert made["a"][1:] == [None, "text", 3]
    assert isinstance(made["a"], list)
    assert isinstance(made[7], Pair)
    assert isinstance(made[7].right, tuple)
    assert list(made["ordered"]) == ["z", "y"]
    assert isinstance(made["ordered"], collections.OrderedDict)
    assert isinstance(made["max"].indices, jax.Array)
    assert made["size"] == torch.Size([2, 3])
    assert not [leaf for leaf in jax.tree.leaves(made["b"]) if isinstance(leaf, torch.Tensor)]
    back = tensors.to_torch(made)
    assert torch.equal(back[7].left, torch.ones(1))
    assert isinstance(tree["b"], torch.Tensor)


def test_outputs_of_transformers_and_of_traced_modules_keep_their_names():
    from transformers.modeling_outputs import BaseModelOutput

    from bridges.torch.outputs import Output

    made = tensors.to_jax(BaseModelOutput(last_hidden_state=torch.ones(1, 2)))
    assert isinstance(made, BaseModelOutput)
    assert isinstance(made.last_hidden_state, jax.Array)
    back = tensors.to_torch(Output(logits=jnp.ones(3)))
    assert torch.equal(back.logits, torch.ones(3))


def test_a_tensor_that_stands_twice_becomes_one_array():
    tied = torch.ones(3, dtype=torch.float64)
    made = tensors.to_jax({"embed": tied, "head": tied})
    assert made["embed"] is made["head"]


def test_a_parameter_gives_its_value_and_a_computed_tensor_is_refused():
    layer = torch.nn.Linear(2, 3)
    made = tensors.to_jax(dict(layer.named_parameters()), copy=False)
    assert shared(made["weight"], layer.weight)
    with pytest.raises(InputRefused, match=r"gradient would end here.*detach\(\)"):
        tensors.to_jax(layer(torch.ones(1, 2)))
    assert tensors.to_jax(layer(torch.ones(1, 2)).detach()).shape == (1, 3)
    with torch.no_grad():
        assert tensors.to_jax(layer(torch.ones(1, 2))).shape == (1, 3)


def quantised():
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def fake():
    from torch._subclasses import FakeTensorMode

    return FakeTensorMode().from_tensor(torch.ones(2))


REFUSED = {
    r"sparse \(sparse_coo\).*to_dense": lambda: torch.eye(3).to_sparse(),
    r"sparse \(sparse_csr\).*to_dense": lambda: torch.eye(3).to_sparse_csr(),
    r"quantised \(qint8\).*dequantize": quantised,
    "meta device": lambda: torch.empty(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    "complex32": lambda: torch.zeros(2, dtype=torch.complex32),
    "FakeTensor": fake,
}


@pytest.mark.parametrize("reason", REFUSED)
@pytest.mark.filterwarnings("ignore")  # torch calls these prototypes
def test_tensors_without_plain_values_are_refused_by_name_and_place(reason):
    tensor = REFUSED[reason]()
    with pytest.raises(InputRefused, match=rf"at \[1\].*{reason}"):
        tensors.to_jax((torch.ones(1), tensor))


def test_a_tensor_of_torchvision_is_a_tensor():
    from torchvision.tv_tensors import Image

    image = Image(torch.ones(3, 2, 2))
    assert shared(tensors.to_jax(image, copy=False), image)


NUMPY = {
    "backwards": lambda: np.arange(5.0, dtype=np.float32)[::-1],
    "read-only": lambda: np.broadcast_to(np.float32(2), (3, 2)),
    "bytes swapped": lambda: np.arange(4, dtype=">f4"),
    "no multiples": lambda: np.zeros(3, [("a", "f4"), ("b", "i1")])["a"],
}


@pytest.mark.parametrize("reason", NUMPY)
def test_numpy_arrays_that_torch_cannot_hold_are_copied_or_refused(reason):
    array = NUMPY[reason]()
    for made in (tensors.to_torch({"x": array})["x"], tensors.to_jax(array)):
        np.testing.assert_array_equal(np.asarray(made), array)
    with pytest.raises(InputRefused, match=rf"at \['x'\].*{reason}"):
        tensors.to_torch({"x": array}, copy=False)


def test_numpy_arrays_share_their_memory():
    array = np.arange(4.0)
    assert tensors.to_torch(array, copy=False).data_ptr() == array.ctypes.data
    half = np.ones(4, ml_dtypes.bfloat16)
    tensor = tensors.to_torch(half)
    assert tensor.dtype == torch.bfloat16
    assert tensor.data_ptr() == half.ctypes.data
    assert tensors.to_torch(half, copy=True).data_ptr() != half.ctypes.data
    with pytest.raises(InputRefused, match="dtype"):
        tensors.to_torch(np.array(["a"]))


@pytest.mark.parametrize("name", FLOAT8)
def test_numpys_float8_keeps_its_bits(name):
    array = np.array([0.5, -1.5, 16], dtype=name)
    assert tensors.to_torch(array).float().tolist() == [0.5, -1.5, 16]


def test_arrays_that_torch_cannot_read_are_refused():
    with pytest.raises(InputRefused, match=r"at \['k'\].*jax.random.key_data"):
        tensors.to_torch({"k": jax.random.key(0)})
    with pytest.raises(InputRefused, match="int4"):
        tensors.to_torch(jnp.ones(2, jnp.int4))
    gone = jnp.ones(3)
    gone.delete()
    with pytest.raises(InputRefused, match="deleted or donated"):
        tensors.to_torch(gone)
    with pytest.raises(InputRefused, match="traced"):
        jax.jit(tensors.to_torch)(jnp.ones(3))


def test_what_is_already_there_stays_unless_a_copy_is_asked_for():
    array, tensor = jnp.ones(3), torch.ones(3)
    assert tensors.to_jax(array) is array
    assert tensors.to_torch(tensor) is tensor
    assert tensors.to_jax(array, copy=True) is not array
    assert tensors.to_torch(tensor, copy=True).data_ptr() != tensor.data_ptr()


def test_the_namespace_is_bridges():
    assert bridges.tensors is tensors


TWO_DEVICES = """
import jax, jax.numpy as jnp, ml_dtypes, numpy as np, torch
from jax.sharding import NamedSharding, PartitionSpec
from bridges import tensors

halves = NamedSharding(jax.make_mesh((2,), ("x",)), PartitionSpec("x"))
split = jax.device_put(jnp.arange(8.0), halves)
assert tensors.to_torch(split).tolist() == list(range(8))
try:
    tensors.to_torch(split, copy=False)
except ValueError as error:
    assert "lies on 2 devices" in str(error), error
with jax.default_device(jax.devices()[1]):
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn):
        moved = tensors.to_jax(torch.ones(3).to(dtype))
        assert moved.devices() == {jax.devices()[1]}
        assert moved.astype(jnp.float32).tolist() == [1, 1, 1]
    try:
        tensors.to_jax(torch.ones(3), copy=False)
    except ValueError as error:
        assert "JAX computes on" in str(error), error
print("ok")
"""


def test_arrays_on_several_devices_are_gathered_and_other_devices_get_a_copy():
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", TWO_DEVICES]
    run = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert run.stdout == "ok\n", run.stderr
