"""Vectors of numbers for numba, as they stand in the registers of the machine.

Left to itself the compiler must suppose that any two arrays overlap, and then turns few
loops into vector instructions. These functions leave it no choice: `load` and `store`
move one register, and the signs + - * / work on all its lanes. `load_pair` takes two
registers as one vector. Where registers are shorter than 64 bytes LLVM splits vectors.
Products and sums may become one fused instruction.
"""

import operator

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model
from numba.np.arrayobj import make_array

from .jit import jit

BYTES = 64


class Vector(types.Type):
    def __init__(self, dtype, width):
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Vector({dtype}, {width})")


def _ir(v):
    element = ir.FloatType() if v.dtype.bitwidth == 32 else ir.DoubleType()
    return ir.VectorType(element, v.width)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe):
        super().__init__(dmm, fe, _ir(fe))


@overload(len)
def _length(x):
    if isinstance(x, Vector):
        width = x.width
        return lambda x: width  # noqa: ARG005


def _pointer(context, builder, array_type, array, index, vector):
    data = make_array(array_type)(context, builder, array).data
    place = builder.gep(data, [index])
    return builder.bitcast(place, _ir(vector).as_pointer())


def _make_load(width):
    @intrinsic
    def load(typingctx, array, index):
        size = array.dtype.bitwidth // 8
        vector = Vector(array.dtype, width(size))

        def codegen(context, builder, sig, args):
            place = _pointer(context, builder, sig.args[0], *args, vector)
            return builder.load(place, align=size)

        return vector(array, types.intp), codegen

    return load


load = _make_load(lambda size: BYTES // size)
load_pair = _make_load(lambda size: 2 * BYTES // size)


@intrinsic
def store(typingctx, array, index, value):
    def codegen(context, builder, sig, args):
        place = _pointer(context, builder, sig.args[0], *args[:2], value)
        builder.store(args[2], place, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def splat(typingctx, like, x):
    """x in all lanes of a vector of the type of like"""

    def codegen(context, builder, sig, args):
        none = ir.Constant(_ir(like), ir.Undefined)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), like.width), None)
        one = builder.insert_element(none, args[1], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(one, none, zeros)

    return like(like, like.dtype), codegen


def _make_binary(function, name):
    @intrinsic
    def binary(typingctx, a, b):
        def codegen(context, builder, sig, args):
            return getattr(builder, name)(*args, flags=("contract",))

        return a(a, b), codegen

    @overload(function)
    def implementation(a, b):
        if isinstance(a, Vector) and isinstance(b, Vector):
            return lambda a, b: binary(a, b)


for _name in ("add", "sub", "mul", "truediv"):
    for _prefix in ("", "i"):
        _make_binary(
            getattr(operator, _prefix + _name), "f" + _name.removeprefix("true")
        )


def _call(builder, name, vector, result, args, memory=""):
    """Call an LLVM function for vectors like `vector`, for example llvm.sqrt."""
    kind = f"{name}.v{vector.width}f{vector.dtype.bitwidth}{memory}"
    signature = ir.FunctionType(result, [a.type for a in args])
    f = cgutils.get_or_insert_function(builder.module, signature, kind)
    return builder.call(f, args)


@intrinsic
def sqrt(typingctx, a):
    def codegen(context, builder, sig, args):
        return _call(builder, "llvm.sqrt", a, _ir(a), args)

    return a(a), codegen


@intrinsic
def total(typingctx, a):
    """the sum over the lanes, in any order"""

    def codegen(context, builder, sig, args):
        start = ir.Constant(_ir(a).element, -0.0)
        f = _call(builder, "llvm.vector.reduce.fadd", a, start.type, [start, *args])
        f.fastmath.add("reassoc")
        return f

    return a.dtype(a), codegen


@intrinsic
def highest(typingctx, a):
    """the largest of the lanes"""

    def codegen(context, builder, sig, args):
        f = _call(builder, "llvm.vector.reduce.fmax", a, _ir(a).element, args)
        f.fastmath.add("nnan")
        return f

    return a.dtype(a), codegen


@intrinsic
def first(typingctx, a):
    """the element in the first lane"""

    def codegen(context, builder, sig, args):
        return builder.extract_element(args[0], ir.Constant(ir.IntType(32), 0))

    return a.dtype(a), codegen


@intrinsic
def where_less(typingctx, a, b, x, y):
    """x where a < b, else y (also where a or b is no number)"""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", *args[:2]), *args[2:])

    return x(a, b, x, y), codegen


@intrinsic
def where_positive(typingctx, a, x, y):
    """x where a > 0, else y"""

    def codegen(context, builder, sig, args):
        zero = ir.Constant(_ir(a), [0.0] * a.width)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), *args[1:])

    return a(a, x, y), codegen


@intrinsic
def absolute(typingctx, a):
    def codegen(context, builder, sig, args):
        return _call(builder, "llvm.fabs", a, _ir(a), args)

    return a(a), codegen


@intrinsic
def maximum(typingctx, a, b):
    """The larger of a and b lane by lane; b where a is not a number"""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), codegen


@intrinsic
def lanes(typingctx, array):
    """How many entries of the array a vector holds, known to the compiler"""
    width = 8 * BYTES // array.dtype.bitwidth

    def codegen(context, builder, sig, args):
        return context.get_constant(types.intp, width)

    return types.intp(array), codegen


def _first(builder, width, count):
    """The mask of the first `count` lanes"""
    counts = ir.Constant(ir.VectorType(count.type, width), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), width), [0] * width)
    one = builder.insert_element(counts, count, zeros.type.element(0))
    numbers = ir.Constant(counts.type, list(range(width)))
    return builder.icmp_signed("<", numbers, builder.shuffle_vector(one, counts, zeros))


@intrinsic
def load_first(typingctx, array, index, count):
    """The first `count` lanes from memory, zero in the others"""
    vec = Vector(array.dtype, 8 * BYTES // array.dtype.bitwidth)

    def codegen(context, builder, sig, args):
        p = _pointer(context, builder, array, args[0], args[1], vec)
        size = ir.Constant(ir.IntType(32), array.dtype.bitwidth // 8)
        other = ir.Constant(_ir(vec), [0.0] * vec.width)
        mask = _first(builder, vec.width, args[2])
        name = "llvm.masked.load"
        return _call(builder, name, vec, _ir(vec), [p, size, mask, other], ".p0")

    return vec(array, types.intp, types.intp), codegen


@intrinsic
def store_first(typingctx, array, index, value, count):
    """The first `count` lanes to memory, which stays as it is beyond them"""

    def codegen(context, builder, sig, args):
        p = _pointer(context, builder, array, args[0], args[1], value)
        size = ir.Constant(ir.IntType(32), array.dtype.bitwidth // 8)
        mask = _first(builder, value.width, args[3])
        name, nothing = "llvm.masked.store", ir.VoidType()
        _call(builder, name, value, nothing, [args[2], p, size, mask], ".p0")
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), codegen


@jit
def aligned(size, like):
    """Room for numbers like those of an array, from where a line of cache begins."""
    raw = np.empty(size + BYTES // like.itemsize, like.dtype)
    skip = -raw.ctypes.data % BYTES // like.itemsize
    return raw[skip : skip + size]
