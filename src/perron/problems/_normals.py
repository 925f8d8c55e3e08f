"""Normal random numbers by key, compiled with numba: `perron.random.Keyed.normal` for the compiled loop of the simulator.

They are equal to those of `Keyed` to rounding. Loops over the numbers are written so that they become vector instructions.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from perron.problems._kernels import GOLDEN_64, mix
from perron.random import BELOW_ONE

i64, u64 = np.int64, np.uint64
EDGE = 0.13533528323661269189  # exp(-2): between it and 1 - exp(-2) the inverse is a quotient of polynomials


@njit(inline="always")
def _polynomial(x, coefficients):
    value = coefficients[0]
    for k in range(1, len(coefficients)):
        value = value * x + coefficients[k]
    return value


FAR = 1.2664165549094176e-14  # exp(-32): below it are other polynomials
# of log: s + s z (...)
LOG = (1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01, 2.222219843214978396e-01,
       2.857142874366239149e-01, 3.999999999940941908e-01, 6.666666666666735130e-01)  # fmt: skip
P0 = (-5.99633501014107895267e1, 9.80010754185999661536e1, -5.66762857469070293439e1, 1.39312609387279679503e1,
      -1.23916583867381258016)  # fmt: skip
Q0 = (1.0, 1.95448858338141759834, 4.67627912898881538453, 8.63602421390890590575e1, -2.25462687854119370527e2,
      2.00260212380060660359e2, -8.20372256168333339912e1, 1.59056225126211695515e1, -1.18331621121330003142)  # fmt: skip
P1 = (4.05544892305962419923, 3.15251094599893866154e1, 5.71628192246421288162e1, 4.40805073893200834700e1,
      1.46849561928858024014e1, 2.18663306850790267539, -1.40256079171354495875e-1, -3.50424626827848203418e-2,
      -8.57456785154685413611e-4)  # fmt: skip
Q1 = (1.0, 1.57799883256466749731e1, 4.53907635128879210584e1, 4.13172038254672030440e1, 1.50425385692907503408e1,
      2.50464946208309415979, -1.42182922854787788574e-1, -3.80806407691578277194e-2, -9.33259480895457427372e-4)  # fmt: skip
P2 = (3.23774891776946035970, 6.91522889068984211695, 3.93881025292474443415, 1.33303460815807542389,
      2.01485389549179081538e-1, 1.23716634817820021358e-2, 3.01581553508235416007e-4, 2.65806974686737550832e-6,
      6.23974539184983293730e-9)  # fmt: skip
Q2 = (1.0, 6.02427039364742014255, 3.67983563856160859403, 1.37702099489081330271, 2.16236993594496635890e-1,
      1.34204006088543189037e-2, 3.28014464682127739104e-4, 2.89247864745380683936e-6, 6.79019408009981274425e-9)  # fmt: skip


@njit(inline="always")
def _log(x):
    """The natural logarithm of a normal positive number, as in fdlibm, in a form that becomes vector instructions."""
    bits = np.float64(x).view(np.int64)
    k = ((bits >> 52) & i64(0x7FF)) - i64(1023)
    bits = (bits & i64(0x000FFFFFFFFFFFFF)) | i64(0x3FF0000000000000)
    f = i64(bits).view(np.float64)
    large = f > 1.4142135623730951
    f = (0.5 * f if large else f) - 1.0
    power = np.float64(k + (i64(1) if large else i64(0)))
    s = f / (2.0 + f)
    z = s * s
    r = z * _polynomial(z, LOG)
    half = 0.5 * f * f
    return power * 6.93147180369123816490e-01 - ((half - (s * (half + r) + power * 1.90821492927058770002e-10)) - f)


@njit(inline="always")
def _tail(y, numerator, denominator):
    """The inverse of the normal distribution function at y < exp(-2), up to its sign."""
    x = np.sqrt(-2.0 * _log(y))
    z = 1.0 / x
    return x - _log(x) * z - z * _polynomial(z, numerator) / _polynomial(z, denominator)


@njit(nogil=True, error_model="numpy", fastmath={"contract"})
def normals(keys, draw, dim, uniform, tails, far, out):
    """`Keyed.normal` for all keys ``(trials, n)``, node by node, into ``out``; ``uniform``, ``tails`` and ``far`` are scratch.

    The inverse of the normal distribution function is that of Cephes (ndtri), which torch has too.
    """
    place = u64(0)
    for i in range(keys.shape[1]):
        for t in range(keys.shape[0]):
            key = keys[t, i] + u64(draw * dim + 1) * GOLDEN_64
            for j in range(u64(dim)):
                hashed = mix(key + j * GOLDEN_64)
                uniform[place + j] = min((np.float64(i64(hashed >> u64(11))) + 0.5) * 2.0**-53, BELOW_ONE)
            place += u64(dim)
    for k in range(place):
        y = uniform[k] - 0.5
        square = y * y
        out[k] = (y + y * (square * _polynomial(square, P0) / _polynomial(square, Q0))) * 2.50662827463100050242
    count = u64(0)
    for k in range(place):
        y = uniform[k]
        tails[count] = k
        far[count] = min(y, 1.0 - y)
        count += u64(not EDGE < y <= 1 - EDGE)
    for c in range(count):
        far[c] = _tail(far[c], P1, Q1)
    for c in range(count):
        k = tails[c]
        y = uniform[k]
        least = min(y, 1.0 - y)
        size = _tail(least, P2, Q2) if least < FAR else far[c]
        out[k] = -size if y < 0.5 else size
