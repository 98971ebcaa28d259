"""Complex numbers for numba: a vector of real parts and one of imaginary parts.

A pair (re, im) is one complex number in each lane. Products come with the sum that they
go into, so that each takes four fused instructions. As in `simd`, these are no
functions of the compiled code, but instructions where they are called.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .simd import address, repeated, vector_of

INDEX64 = ir.IntType(64)
FUSE = ("contract",)  # a product and a sum may be one instruction


def _pair(vector):
    return types.UniTuple(vector, 2)


def _load(builder, place, array):
    return builder.load(place, align=array.dtype.bitwidth // 8)


def _store(builder, x, place, array):
    builder.store(x, place, align=array.dtype.bitwidth // 8)


def _places(context, builder, array, args, vector):
    """The addresses of a vector and of the one after it."""
    p = address(context, builder, array, *args, vector)
    return [p, builder.gep(p, [INDEX64(1)])]


@intrinsic
def get(typingctx, array, index):
    """The vector at `index` and the one after it: real and imaginary parts."""
    vector = vector_of(array)

    def codegen(context, builder, sig, args):
        places = _places(context, builder, array, args, vector)
        return cgutils.pack_array(builder, [_load(builder, p, array) for p in places])

    return _pair(vector)(array, types.intp), codegen


@intrinsic
def put(typingctx, array, index, x):
    """Set the vector at `index` and the one after it to the parts of x."""

    def codegen(context, builder, sig, args):
        places = _places(context, builder, array, args[:2], x.dtype)
        for part, p in zip(cgutils.unpack_tuple(builder, args[2]), places):
            _store(builder, part, p, array)
        return context.get_dummy_value()

    return types.void(array, types.intp, x), codegen


@intrinsic
def get_apart(typingctx, re, im, index):
    """The complex numbers at `index` of an array of each part."""
    vector = vector_of(re)

    def codegen(context, builder, sig, args):
        places = [
            address(context, builder, re, part, args[2], vector) for part in args[:2]
        ]
        return cgutils.pack_array(builder, [_load(builder, p, re) for p in places])

    return _pair(vector)(re, re, types.intp), codegen


@intrinsic
def put_apart(typingctx, re, im, index, x):
    """Set the complex numbers at `index` of an array of each part to x."""

    def codegen(context, builder, sig, args):
        values = cgutils.unpack_tuple(builder, args[3])
        for array, value in zip(args[:2], values):
            place = address(context, builder, re, array, args[2], x.dtype)
            _store(builder, value, place, re)
        return context.get_dummy_value()

    return types.void(re, re, types.intp, x), codegen


def _repeat(builder, place, array, vector):
    """The one number at an address in all lanes."""
    place = builder.bitcast(place, vector.ir.element.as_pointer())
    return repeated(builder, vector, _load(builder, place, array))


@intrinsic
def splat_apart(typingctx, re, im, index):
    """The one complex number at `index` of an array of each part, in all lanes."""
    vector = vector_of(re)

    def codegen(context, builder, sig, args):
        places = [address(context, builder, re, x, args[2], vector) for x in args[:2]]
        parts = [_repeat(builder, place, re, vector) for place in places]
        return cgutils.pack_array(builder, parts)

    return _pair(vector)(re, re, types.intp), codegen


@intrinsic
def get_entry(typingctx, array, index, one):
    """`get`; if lanes are columns of one matrix, a single entry of it in all lanes."""
    vector = vector_of(array)
    is_single = not isinstance(one, types.NoneType)

    def codegen(context, builder, sig, args):
        places = _places(context, builder, array, args[:2], vector)
        if is_single:
            parts = [_repeat(builder, p, array, vector) for p in places]
        else:
            parts = [_load(builder, p, array) for p in places]
        return cgutils.pack_array(builder, parts)

    return _pair(vector)(array, types.intp, one), codegen


@intrinsic
def put_entry(typingctx, array, index, x, one):
    """`put`; if lanes are columns of one matrix, the first lane to a single entry."""
    is_single = not isinstance(one, types.NoneType)

    def codegen(context, builder, sig, args):
        places = _places(context, builder, array, args[:2], x.dtype)
        for part, p in zip(cgutils.unpack_tuple(builder, args[2]), places):
            if is_single:
                number = builder.extract_element(part, INDEX64(0))
                p = builder.bitcast(p, number.type.as_pointer())
                _store(builder, number, p, array)
            else:
                _store(builder, part, p, array)
        return context.get_dummy_value()

    return types.void(array, types.intp, x, one), codegen


@intrinsic
def scale(typingctx, factor, x):
    """x times a real factor."""

    def codegen(context, builder, sig, args):
        parts = cgutils.unpack_tuple(builder, args[1])
        products = [builder.fmul(args[0], part, flags=FUSE) for part in parts]
        return cgutils.pack_array(builder, products)

    return x(factor, x), codegen


@intrinsic
def add_square(typingctx, a, x):
    """The real a + |x|^2."""

    def codegen(context, builder, sig, args):
        found = args[0]
        for part in cgutils.unpack_tuple(builder, args[1]):
            found = builder.fadd(
                found, builder.fmul(part, part, flags=FUSE), flags=FUSE
            )
        return found

    return a(a, x), codegen


def _make_sum(rr, ii, ri, ir):
    """The function a + x y, with x or y conjugate or negative by these signs.

    Its real part is ar + rr xr yr + ii xi yi, the other ai + ri xr yi + ir xi yr.
    """

    @intrinsic
    def sum_of(typingctx, a, x, y):
        def codegen(context, builder, sig, args):
            ar, ai, xr, xi, yr, yi = (
                part for x in args for part in cgutils.unpack_tuple(builder, x)
            )

            def add(a, sign, x, y):
                product = builder.fmul(x, y, flags=FUSE)
                join = builder.fadd if sign > 0 else builder.fsub
                return join(a, product, flags=FUSE)

            re = add(add(ar, rr, xr, yr), ii, xi, yi)
            im = add(add(ai, ri, xr, yi), ir, xi, yr)
            return cgutils.pack_array(builder, [re, im])

        return a(a, x, y), codegen

    return sum_of


plus = _make_sum(1, -1, 1, 1)  # a + x y
minus = _make_sum(-1, 1, -1, -1)  # a - x y
inner = _make_sum(1, 1, 1, -1)  # a + conj(x) y
minus_inner = _make_sum(-1, -1, -1, 1)  # a - conj(x) y
