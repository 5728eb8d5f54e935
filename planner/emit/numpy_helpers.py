"""The parts of an emitted Python module that are the same for every kernel."""

from __future__ import annotations

HELPERS = '''

def span(offset, *terms):
    """The lattice of offset + sum(a * i), each i in [start, end): its lowest index, step and number of points."""
    low = offset + sum(a * (start if a > 0 else end - 1) for a, start, end in terms)
    step = math.gcd(*(abs(a) for a, start, end in terms if end - start > 1)) or 1
    return low, step, sum(abs(a) * (end - start - 1) for a, start, end in terms) // step + 1


def clip(box, shape):
    """The part of a box inside the tensor; None if there is none."""
    clipped = []
    for (low, step, count), size in zip(box, shape):
        first, last = max(0, -(low // step)), min(count - 1, (size - 1 - low) // step)
        if last < first:
            return None
        clipped.append((low + first * step, step, last - first + 1))
    return clipped


def at(box, base=None, steps=None):
    """Slices of a box: in a whole tensor, or in a buffer whose slot 0 holds index `base` and slots lie `steps` apart."""
    base, steps = base or [0] * len(box), steps or [1] * len(box)
    return tuple(
        slice((low - b) // s, (low - b) // s + max(step // s, 1) * (count - 1) + 1, max(step // s, 1))
        for (low, step, count), b, s in zip(box, base, steps)
    )


def view(arena, offset, shape, dtype, slot_bytes):
    """A typed view of a scope's bytes at an address; each slot takes `slot_bytes`."""
    strides = [slot_bytes * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.ndarray(shape, dtype, arena, offset, strides)
'''


WINDOW = '''

def window(values, base, steps, index, dims):
    """values[index of the dims] as an array with one axis a dim; `dims` gives each dim's range."""
    strides, corner = dict.fromkeys(dims, 0), []
    for (offset, terms), stride, b, s in zip(index, values.strides, base, steps):
        corner.append((offset + sum(a * dims[d][0] for d, a in terms.items()) - b) // s)
        for d, a in terms.items():
            if dims[d][1] - dims[d][0] > 1:
                strides[d] += a // s * stride
    start = values[tuple(slice(c, None) for c in corner)]
    return np.lib.stride_tricks.as_strided(start, [b - a for a, b in dims.values()], list(strides.values()))
'''
"""What the plain computation needs."""


RESERVED = frozenset(
    "math np span clip at view window finish plain box total acc values count place random expected actual different largest "
    "range min max sum abs str len zip dict list tuple slice print int SystemExit __name__".split()
)
"""Names that the module's own code uses."""
