"""Vectors of numbers for numba, as they stand in the registers of the machine.

Left to itself, the compiler must assume that any two arrays overlap, and then turns few
loops into vector instructions. These functions leave it no choice: `load` and `store`
move 64 bytes, and + - * / work on all lanes. Where registers are shorter, LLVM splits
the vectors. A product and a sum may become one fused instruction.

All of them are LLVM instructions that are put where they are called. A compiled
function in their place would cost the compiler about as much time as a long one.
"""

import operator

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model
from numba.np.arrayobj import make_array

BYTES = 64  # of a vector: an AVX-512 register and a line of the cache
INDEX32 = ir.IntType(32)
# Whether a vector is one register, of 32 (AVX-512). Elsewhere it takes two of 16 or
# more, and a loop with as many sums in hand as AVX-512 needs would keep them in memory.
ONE_REGISTER = bool(get_host_cpu_features().get("avx512f"))


class Vector(types.Type):
    """`width` numbers of a dtype, one in each lane."""

    def __init__(self, dtype, width):
        self.dtype, self.width = dtype, width
        super().__init__(name=f"Vector({dtype}, {width})")

    @property
    def ir(self):
        """LLVM's type."""
        element = ir.FloatType() if self.dtype.bitwidth == 32 else ir.DoubleType()
        return ir.VectorType(element, self.width)


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe):
        super().__init__(dmm, fe, fe.ir)


def vector_of(array, registers=1):
    """The type of the vectors that an array's numbers make."""
    return Vector(array.dtype, 8 * BYTES * registers // array.dtype.bitwidth)


def address(context, builder, array_type, array, index, vector):
    """The address of a vector in memory."""
    data = make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), vector.ir.as_pointer())


def _load(vector, array):
    """The type and the code of a function that loads a vector from an array."""

    def codegen(context, builder, sig, args):
        place = address(context, builder, sig.args[0], *args[:2], vector)
        return builder.load(place, align=array.dtype.bitwidth // 8)

    return vector, codegen


@intrinsic
def load(typingctx, array, index):
    vector, codegen = _load(vector_of(array), array)
    return vector(array, types.intp), codegen


@intrinsic
def load_like(typingctx, array, index, like):
    """A vector of the type of `like`."""
    vector, codegen = _load(like, array)
    return vector(array, types.intp, like), codegen


@intrinsic
def zero_pair(typingctx, array):
    """Zeros in a vector of two registers."""
    vector = vector_of(array, 2)

    def codegen(context, builder, sig, args):
        return ir.Constant(vector.ir, [0.0] * vector.width)

    return vector(array), codegen


@intrinsic
def store(typingctx, array, index, value):
    def codegen(context, builder, sig, args):
        place = address(context, builder, sig.args[0], *args[:2], value)
        builder.store(args[2], place, align=array.dtype.bitwidth // 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), codegen


@intrinsic
def lanes(typingctx, array):
    """How many numbers a vector holds, or one of an array's; known to the compiler."""
    width = (array if isinstance(array, Vector) else vector_of(array)).width

    def codegen(context, builder, sig, args):
        return context.get_constant(types.intp, width)

    return types.intp(array), codegen


def repeated(builder, vector, x):
    """The vector with x in every lane."""
    none = ir.Constant(vector.ir, ir.Undefined)
    zeros = ir.Constant(ir.VectorType(INDEX32, vector.width), None)
    return builder.shuffle_vector(
        builder.insert_element(none, x, INDEX32(0)), none, zeros
    )


@intrinsic
def splat(typingctx, like, x):
    """x in all lanes of a vector of the type of `like`."""

    def codegen(context, builder, sig, args):
        return repeated(builder, like, args[1])

    return like(like, like.dtype), codegen


def _make_operator(function, instruction):
    @infer_global(function)
    class _Typing(AbstractTemplate):
        def generic(self, args, kws):
            if len(args) == 2 and isinstance(args[0], Vector) and args[0] == args[1]:
                return signature(args[0], *args)
            return None

    @lower_builtin(function, Vector, Vector)
    def _lower(context, builder, sig, args):
        return getattr(builder, instruction)(*args, flags=("contract",))


for _name in ("add", "sub", "mul", "truediv"):
    for _prefix in ("", "i"):
        _make_operator(
            getattr(operator, _prefix + _name), "f" + _name.removeprefix("true")
        )


def _call(builder, name, vector, result, args, memory=""):
    """Call an LLVM function for vectors of this type, for example llvm.sqrt."""
    kind = f"{name}.v{vector.width}f{vector.dtype.bitwidth}{memory}"
    signature = ir.FunctionType(result, [a.type for a in args])
    f = cgutils.get_or_insert_function(builder.module, signature, kind)
    return builder.call(f, args)


@intrinsic
def sqrt(typingctx, a):
    def codegen(context, builder, sig, args):
        return _call(builder, "llvm.sqrt", a, a.ir, args)

    return a(a), codegen


@intrinsic
def absolute(typingctx, a):
    def codegen(context, builder, sig, args):
        return _call(builder, "llvm.fabs", a, a.ir, args)

    return a(a), codegen


@intrinsic
def total(typingctx, a):
    """The sum over the lanes, in any order."""

    def codegen(context, builder, sig, args):
        start = ir.Constant(a.ir.element, -0.0)
        f = _call(builder, "llvm.vector.reduce.fadd", a, start.type, [start, *args])
        f.fastmath.add("reassoc")
        return f

    return a.dtype(a), codegen


@intrinsic
def highest(typingctx, a):
    """The largest of the lanes."""

    def codegen(context, builder, sig, args):
        f = _call(builder, "llvm.vector.reduce.fmax", a, a.ir.element, args)
        f.fastmath.add("nnan")
        return f

    return a.dtype(a), codegen


@intrinsic
def where_less(typingctx, a, b, x, y):
    """x where a < b, else y (also where a or b is NaN)."""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered("<", *args[:2]), *args[2:])

    return x(a, b, x, y), codegen


@intrinsic
def where_positive(typingctx, a, x, y):
    """x where a > 0, else y (also where a is NaN)."""

    def codegen(context, builder, sig, args):
        zero = ir.Constant(a.ir, [0.0] * a.width)
        return builder.select(builder.fcmp_ordered(">", args[0], zero), *args[1:])

    return a(a, x, y), codegen


@intrinsic
def maximum(typingctx, a, b):
    """The larger of a and b in each lane; b where a is NaN."""

    def codegen(context, builder, sig, args):
        return builder.select(builder.fcmp_ordered(">", *args), *args)

    return a(a, b), codegen


def _mask(builder, width, count):
    """True in the first `count` lanes."""
    counts = ir.Constant(ir.VectorType(count.type, width), ir.Undefined)
    zeros = ir.Constant(ir.VectorType(INDEX32, width), None)
    one = builder.insert_element(counts, count, INDEX32(0))
    numbers = ir.Constant(counts.type, list(range(width)))
    return builder.icmp_signed("<", numbers, builder.shuffle_vector(one, counts, zeros))


@intrinsic
def load_first(typingctx, array, index, count):
    """The first `count` lanes from memory, zero in the others."""
    vector = vector_of(array)

    def codegen(context, builder, sig, args):
        p = address(context, builder, array, *args[:2], vector)
        size = ir.Constant(INDEX32, array.dtype.bitwidth // 8)
        zeros = ir.Constant(vector.ir, [0.0] * vector.width)
        operands = [p, size, _mask(builder, vector.width, args[2]), zeros]
        name = "llvm.masked.load"
        return _call(builder, name, vector, vector.ir, operands, ".p0")

    return vector(array, types.intp, types.intp), codegen


@intrinsic
def store_first(typingctx, array, index, value, count):
    """The first `count` lanes to memory, which stays as it is beyond them."""

    def codegen(context, builder, sig, args):
        p = address(context, builder, array, *args[:2], value)
        size = ir.Constant(INDEX32, array.dtype.bitwidth // 8)
        operands = [args[2], p, size, _mask(builder, value.width, args[3])]
        _call(builder, "llvm.masked.store", value, ir.VoidType(), operands, ".p0")
        return context.get_dummy_value()

    return types.void(array, types.intp, value, types.intp), codegen
