# mypy: disallow-untyped-defs=False
"""How inline PTX becomes a numba intrinsic: templates, operands and addresses. Device target only.

`ptx_op` makes an intrinsic from an instruction template; `mem_op` does so for instructions over memory, whose operands
are (array or pointer, element index) pairs, so that the simulator can stand in with numpy arrays.
"""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

INT = {bits: ir.IntType(bits) for bits in (1, 8, 16, 32, 64)}
F32 = ir.FloatType()

# Constraint letter of an operand: numba type and LLVM type.
OPERAND = {
    "r": (types.int32, INT[32]),
    "l": (types.int64, INT[64]),
    "f": (types.float32, F32),
    "h": (types.int16, INT[16]),
}


def emit(builder, asm, outs, ins, args, volatile=False, memory=False):
    """Emit one assembly statement; returns the list of its output values.

    `volatile` keeps it in place and alive, `memory` also orders it against memory accesses.
    """
    out_types = [OPERAND[c][1] for c in outs]
    returned = ir.VoidType() if not outs else out_types[0] if len(outs) == 1 else ir.LiteralStructType(out_types)
    constraints = ",".join(["=" + c for c in outs] + list(ins) + (["~{memory}"] if memory else []))
    function = ir.FunctionType(returned, [a.type for a in args])
    call = builder.call(ir.InlineAsm(function, asm, constraints, side_effect=volatile or memory), args)
    if len(outs) < 2:
        return [call] if outs else []
    return [builder.extract_value(call, i) for i in range(len(outs))]


def emit_tied(builder, asm, values, extra=(), letters=""):
    """Emit a volatile statement that reads and writes all of `values` (float32), plus `extra` inputs."""
    n = len(values)
    struct = ir.LiteralStructType([F32] * n)
    constraints = ",".join(["=f"] * n + [str(i) for i in range(n)] + list(letters))
    function = ir.FunctionType(struct, [F32] * n + [v.type for v in extra])
    call = builder.call(ir.InlineAsm(function, asm, constraints, side_effect=True), [*values, *extra])
    return [builder.extract_value(call, i) for i in range(n)]


def numba_result(outs):
    """The numba type of an intrinsic with outputs `outs`: void, a scalar or a tuple."""
    if not outs:
        return types.void
    if len(outs) == 1:
        return OPERAND[outs][0]
    kinds = [OPERAND[c][0] for c in outs]
    return types.UniTuple(kinds[0], len(kinds)) if len(set(kinds)) == 1 else types.Tuple(kinds)


def returned(context, builder, outs, values):
    """The LLVM value that an intrinsic with outputs `outs` returns."""
    if not outs:
        return context.get_dummy_value()
    return values[0] if len(outs) == 1 else context.make_tuple(builder, numba_result(outs), values)


def define(name, parameters, implementation):
    """An intrinsic called `name` with the given parameter names: numba reads them from the signature."""
    namespace = {"implementation": implementation}
    listed = ", ".join(["typingctx", *parameters])
    exec(f"def {name}({listed}):\n    return implementation({', '.join(parameters)})\n", namespace)
    return intrinsic(namespace[name])


def ptx_op(name, asm, outs="", ins="", volatile=False, memory=False):
    """Intrinsic over scalars; `outs` and `ins` hold one constraint letter an operand, outputs numbered first."""

    def implementation(*_):
        def codegen(context, builder, signature, args):
            values = emit(builder, asm, outs, ins, args, volatile, memory)
            return returned(context, builder, outs, values)

        return numba_result(outs)(*[OPERAND[c][0] for c in ins]), codegen

    return define(name, [f"a{i}" for i in range(len(ins))], implementation)


def is_memory(kind):
    """Whether a numba type can stand for memory here: an array or a raw pointer."""
    return isinstance(kind, (types.Array, types.CPointer))


def data_pointer(context, builder, kind, value):
    """LLVM pointer and item size in bytes of an array or raw pointer argument."""
    size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
    if isinstance(kind, types.Array):
        return context.make_array(kind)(context, builder, value=value).data, size
    return value, size


def shared_address(context, builder, kind, value, index):
    """32-bit shared-memory byte address of element `index`; the base folds to a constant."""
    pointer, size = data_pointer(context, builder, kind, value)
    shared = builder.addrspacecast(builder.bitcast(pointer, INT[8].as_pointer()), INT[8].as_pointer(3))
    return builder.add(builder.ptrtoint(shared, INT[32]), builder.mul(index, INT[32](size)))


def global_address(context, builder, kind, value, index):
    """64-bit global byte address of element `index` (a 64-bit integer)."""
    pointer, size = data_pointer(context, builder, kind, value)
    item = builder.gep(builder.bitcast(pointer, INT[8].as_pointer()), [builder.mul(index, INT[64](size))])
    return builder.ptrtoint(builder.addrspacecast(item, INT[8].as_pointer(1)), INT[64])


def mem_op(name, asm, outs, spaces, extra="", memory=True, volatile=True):
    """Intrinsic over one (memory, index) pair a letter of `spaces` ('s' shared, 'g' global), then scalars `extra`."""
    index_type = {"s": types.int32, "g": types.int64}
    address = {"s": shared_address, "g": global_address}
    letters = "".join({"s": "r", "g": "l"}[s] for s in spaces) + extra
    parameters = [p for i in range(len(spaces)) for p in (f"m{i}", f"i{i}")] + [f"x{i}" for i in range(len(extra))]

    def implementation(*kinds):
        arguments = []
        for i, space in enumerate(spaces):
            if not is_memory(kinds[2 * i]):
                return None
            arguments += [kinds[2 * i], index_type[space]]
        arguments += [OPERAND[c][0] for c in extra]

        def codegen(context, builder, signature, args):
            operands = [
                address[space](context, builder, signature.args[2 * i], args[2 * i], args[2 * i + 1])
                for i, space in enumerate(spaces)
            ]
            operands += list(args[2 * len(spaces) :])
            values = emit(builder, asm, outs, letters, operands, volatile, memory)
            return returned(context, builder, outs, values)

        return numba_result(outs)(*arguments), codegen

    return define(name, parameters, implementation)


class LocalArray:
    """Constant-index access to a `cuda.local.array` argument, which keeps its elements in registers."""

    def __init__(self, context, builder, kind, value):
        self.builder = builder
        self.pointer = context.make_array(kind)(context, builder, value=value).data

    def _at(self, index):
        return self.builder.gep(self.pointer, [INT[64](index)])

    def load(self, index):
        return self.builder.load(self._at(index))

    def store(self, value, index):
        self.builder.store(value, self._at(index))
