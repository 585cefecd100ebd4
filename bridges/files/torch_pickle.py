"""The pickles of torch.save, read by a machine that only knows plain values and stored tensors."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bridges.files.stored_tensor import DTYPES, Storage, StoredTensor
from dew.errors import InputRefused, shown

OPCODE_LIMIT = 2_000_000
INTEGER_BYTES = 255
RANK_LIMIT = 64
STORAGES = {
    "Bool": "bool",
    "Byte": "uint8",
    "Char": "int8",
    "Short": "int16",
    "Int": "int32",
    "Long": "int64",
    "Half": "float16",
    "Float": "float32",
    "Double": "float64",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "BFloat16": "bfloat16",
}
UNTYPED = ("torch.storage.UntypedStorage", "torch.UntypedStorage")


class Global(NamedTuple):
    """A name that the pickle refers to; it is compared, never imported or called."""

    name: str


def read_pickle(data: bytes, where: str) -> tuple[Any, int]:
    """Read one pickle of torch.save.

    Nothing is imported, called or built but Python's plain values, dicts, lists and the records
    of this module: a pickle that names anything else is refused at that name.

    Args:
        data: beginning with the pickle; what comes after it is left alone.
        where: the file, for messages.

    Returns:
        The value, and the number of bytes that the pickle takes.

    Raises:
        InputRefused: a name outside the list, an operation that no state dict needs, a broken
            pickle, or one of more than 2,000,000 operations.

    Source: the opcode list of Python's pickletools (protocols 0 to 5), and torch 2.14's
        `_utils._rebuild_tensor_v2` and `serialization.persistent_load`.
    """
    machine = _Machine(data, where)
    return machine.run(), machine.place


class _Machine:
    """The state of one reading: the bytes, a stack that marks cut into parts, and the memo."""

    def __init__(self, data: bytes, where: str):
        self.data, self.where, self.place = data, where, 0
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Carry out the operations up to STOP and return what it leaves."""
        for _ in range(OPCODE_LIMIT):
            start = self.place
            try:
                opcode = self.take(1)
                if opcode == b".":
                    return self.stack.pop()
                operation = OPERATIONS.get(opcode)
                if operation is None:
                    self.refuse(f"the operation {shown(opcode)}, which no state dict needs")
                operation(self)
            except (IndexError, KeyError, ValueError, struct.error) as error:
                if isinstance(error, InputRefused):
                    raise
                raise InputRefused(
                    f"{self.where}: the pickle is broken at byte {start}. Expected what torch.save "
                    "writes; download or save the file again."
                ) from None
        raise InputRefused(
            f"{self.where}: the pickle has more than {OPCODE_LIMIT} operations. Expected a state "
            "dict; save one as safetensors."
        )

    def refuse(self, found: str) -> NoReturn:
        """Refuse what the pickle asks for."""
        raise InputRefused(
            f"{self.where}: the pickle holds {found}. Expected a state dict of plain tensors, and "
            "nothing of a pickle is ever run; save the weights alone, best as safetensors "
            "(safetensors.torch.save_file(model.state_dict(), path))."
        )

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        taken = self.data[self.place : self.place + count]
        if len(taken) != count:
            raise IndexError(count)
        self.place += count
        return taken

    def unpack(self, kind: str) -> int:
        """Return the next little-endian number of a `struct` kind."""
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def line(self) -> str:
        """Return the text up to the next line end."""
        end = self.data.index(b"\n", self.place)
        text = self.take(end - self.place).decode()
        self.place += 1
        return text

    def since_mark(self) -> list[Any]:
        """Return what was pushed since the last mark, and the stack to what was before it."""
        items, self.stack = self.stack, self.below.pop()
        return items

    def push(self, value: Any) -> None:
        """Push a value."""
        self.stack.append(value)

    def mark(self) -> None:
        """Begin a new part of the stack."""
        self.below.append(self.stack)
        self.stack = []

    def integer(self, size: int) -> None:
        """Push a signed integer of `size` bytes."""
        if not 0 <= size <= INTEGER_BYTES:
            self.refuse(f"an integer of {size} bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def name(self, module: Any, name: Any) -> None:
        """Push a global, once it is known to be one that state dicts name."""
        if not isinstance(module, str) or not isinstance(name, str):
            self.refuse("a global whose name is no text")
        full = f"{module}.{name}"
        if full not in REBUILDERS and _dtype_of(full) is None:
            self.refuse(f"the global {shown(full)}, which is not allowed")
        self.push(Global(full))

    def stack_name(self) -> None:
        """Push the global whose module and name lie on the stack."""
        name, module = self.stack.pop(), self.stack.pop()
        self.name(module, name)

    def persistent(self) -> None:
        """Replace a persistent id by the storage that it stands for."""
        found = self.stack.pop()
        if not isinstance(found, tuple) or len(found) < 5 or found[0] != "storage":
            self.refuse("a persistent id that is no storage")
        kind, key, count = found[1], found[2], found[4]
        dtype = _dtype_of(kind.name) if isinstance(kind, Global) else None
        if dtype is None or not isinstance(key, str) or not _is_count(count):
            self.refuse("a storage without a type, a key and a size")
        if len(found) > 5 and found[5] is not None:
            self.refuse("a storage that is a view of another, as torch before 0.4 wrote it")
        self.push(Storage(key, dtype, count))

    def reduce(self) -> None:
        """Replace a global and its arguments by what they stand for."""
        arguments, function = self.stack.pop(), self.stack.pop()
        rebuild = REBUILDERS.get(function.name) if isinstance(function, Global) else None
        if rebuild is None or not isinstance(arguments, tuple):
            self.refuse("a call of something that is no tensor")
        try:
            self.push(rebuild(*arguments))
        except (TypeError, ValueError):
            name = function.name
            self.refuse(f"a call of {name} with arguments that give no value of its kind")

    def build(self) -> None:
        """Drop the attributes that are set on a dict, as `_metadata` is on a state dict."""
        self.stack.pop()
        if not isinstance(self.stack[-1], dict):
            self.refuse("the state of something that is no dict")

    def append(self, values: list[Any]) -> None:
        """Append values to the list on the stack."""
        target = self.stack[-1]
        if not isinstance(target, list):
            self.refuse("items of something that is no list")
        target.extend(values)

    def set_items(self, flat: list[Any]) -> None:
        """Set keys and values, one after the other, in the dict on the stack."""
        target = self.stack[-1]
        if not isinstance(target, dict) or len(flat) % 2:
            self.refuse("keys and values of something that is no dict")
        _fill(target, zip(flat[::2], flat[1::2], strict=True), self.refuse)

    def set_item(self) -> None:
        """Set one key in the dict below it and its value."""
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def tuple_of(self, count: int) -> None:
        """Replace the last `count` values by their tuple."""
        values = [self.stack.pop() for _ in range(count)]
        self.push(tuple(reversed(values)))

    def put(self, place: int) -> None:
        """Remember the last value under a number."""
        self.memo[place] = self.stack[-1]


def _fill(target: dict, pairs: Any, refuse: Callable[[str], NoReturn]) -> None:
    for key, value in pairs:
        # Small integers and texts have hashes that nobody can make collide.
        if not isinstance(key, str) and not (_is_count(key) and key < 1 << 31):
            refuse(f"a dict with a key of type {type(key).__name__}")
        if key in target:
            refuse(f"the key {shown(key)} twice")
        target[key] = value


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _dtype_of(name: str) -> np.dtype | None:
    """Return the dtype of `torch.float32`, `torch.FloatStorage` and the like."""
    if name in UNTYPED:
        return DTYPES["uint8"]
    parts = name.split(".")
    if len(parts) != 2 or parts[0] != "torch":
        return None
    return DTYPES.get(STORAGES.get(parts[1].removesuffix("Storage"), parts[1]))


def _ordered(pairs: Any = ()) -> dict:
    """Return the dict of pairs, as OrderedDict takes them."""
    if not isinstance(pairs, list | tuple):
        raise TypeError

    def refuse(_: str) -> NoReturn:
        raise ValueError

    target: dict = {}
    _fill(target, [(key, value) for key, value in pairs], refuse)
    return target


def _tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> StoredTensor:
    """Return the view that torch's `_rebuild_tensor` and `_rebuild_tensor_v2` make."""
    counts = (offset, *shape, *strides)
    if not isinstance(storage, Storage) or not all(map(_is_count, counts)):
        raise TypeError
    if len(shape) != len(strides) or len(shape) > RANK_LIMIT:
        raise ValueError
    return StoredTensor(storage, storage.dtype, offset, tuple(shape), tuple(strides))


def _typed_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *rest: Any) -> StoredTensor:
    """Return the view of `_rebuild_tensor_v3`: bytes whose dtype the call gives, after two more."""
    dtype = _dtype_of(rest[2].name) if isinstance(rest[2], Global) else None
    if dtype is None:
        raise TypeError
    return _tensor(storage, offset, shape, strides)._replace(dtype=dtype)


def _parameter(data: Any, *rest: Any) -> StoredTensor:
    """Return the tensor of a parameter."""
    if not isinstance(data, StoredTensor):
        raise TypeError
    return data


def _size(sizes: Any = ()) -> tuple:
    """Return a torch.Size as a tuple."""
    return tuple(sizes)


REBUILDERS: Mapping[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _typed_tensor,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": _size,
    "torch.device": lambda *parts: None,
}
Operation = Callable[[_Machine], Any]
OPERATIONS: Mapping[bytes, Operation] = {
    b"\x80": lambda m: m.take(1),  # PROTO
    b"\x95": lambda m: m.take(8),  # FRAME
    b"(": lambda m: m.mark(),
    b"0": lambda m: m.stack.pop(),
    b"1": lambda m: m.since_mark(),  # POP_MARK
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"J": lambda m: m.push(m.unpack("i")),
    b"K": lambda m: m.push(m.unpack("B")),
    b"M": lambda m: m.push(m.unpack("H")),
    b"\x8a": lambda m: m.integer(m.unpack("B")),  # LONG1
    b"\x8b": lambda m: m.integer(m.unpack("i")),  # LONG4
    b"G": lambda m: m.push(struct.unpack(">d", m.take(8))[0]),
    b"U": lambda m: m.push(m.take(m.unpack("B")).decode("latin-1")),  # SHORT_BINSTRING
    b"T": lambda m: m.push(m.take(max(m.unpack("i"), 0)).decode("latin-1")),  # BINSTRING
    b"\x8c": lambda m: m.push(m.take(m.unpack("B")).decode()),  # SHORT_BINUNICODE
    b"X": lambda m: m.push(m.take(m.unpack("I")).decode()),  # BINUNICODE
    b"\x8d": lambda m: m.push(m.take(m.unpack("Q")).decode()),  # BINUNICODE8
    b"C": lambda m: m.push(m.take(m.unpack("B"))),  # SHORT_BINBYTES
    b"B": lambda m: m.push(m.take(m.unpack("I"))),  # BINBYTES
    b"]": lambda m: m.push([]),
    b"}": lambda m: m.push({}),
    b")": lambda m: m.push(()),
    b"a": lambda m: m.append([m.stack.pop()]),
    b"e": lambda m: m.append(m.since_mark()),
    b"s": lambda m: m.set_item(),
    b"u": lambda m: m.set_items(m.since_mark()),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"t": lambda m: m.push(tuple(m.since_mark())),
    b"c": lambda m: m.name(m.line(), m.line()),  # GLOBAL
    b"\x93": lambda m: m.stack_name(),
    b"R": lambda m: m.reduce(),
    b"b": lambda m: m.build(),
    b"Q": lambda m: m.persistent(),
    b"q": lambda m: m.put(m.unpack("B")),
    b"r": lambda m: m.put(m.unpack("I")),
    b"\x94": lambda m: m.put(len(m.memo)),  # MEMOIZE
    b"h": lambda m: m.push(m.memo[m.unpack("B")]),
    b"j": lambda m: m.push(m.memo[m.unpack("I")]),
}
