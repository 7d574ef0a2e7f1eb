"""How many loop turns an invocation of a kernel makes: llvmpipe ends every loop after 65,535 turns, counted over all loops, silently.

Source: Mesa, src/gallium/auxiliary/gallivm/lp_bld_limits.h, LP_MAX_TGSI_LOOP_ITERATIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ort_gpu_ep.registry import Const, Kernel


def turns(kernel: Kernel) -> int:
    """An upper bound from the kernel's constants; 0 for kernels whose loops are short for every shape."""
    count = _TURNS.get(kernel.shader)
    return count(_Consts(dict(kernel.consts), kernel.lanes)) if count else 0


class _Consts:
    """The constants of a kernel as numbers; one that it does not have is 1."""

    def __init__(self, consts: Mapping[str, Const], lanes: int) -> None:
        self._consts, self.lanes = consts, lanes

    def __getitem__(self, name: str) -> int:
        return int(self._consts.get(name, 1))

    def rows(self, passes: int) -> int:
        """Members of a team go along a row of N, in blocks of 32, that often; then they add up in halves."""
        along = -(-self["N"] // self["TEAM"])
        return passes * (along + along // 32 + 2 + self["TEAM"].bit_length())

    def window(self, *names: str) -> int:
        """Nested loops over these sizes, the innermost last."""
        total = 0
        for name in reversed(names):
            total = self[name] * (1 + total)
        return total


def _recurrent(c: _Consts) -> int:
    units, span = -(-c["H"] // c["WIDTH"]), -(-c["H"] // c["SLICES"])
    sums = units * (span // 4 + 3 + c["SLICES"] + 1)
    return c["T"] * (1 + units + sums * (2 if c["GATES"] == 3 and not c["LINEAR"] else 1)) + c["T"] + 6 * units


_TURNS: dict[str, Callable[[_Consts], int]] = {
    "arg_reduce.wgsl": lambda c: c.rows(1),
    "conv_direct.wgsl": lambda c: c.window("CHANNELS", "WINDOW_Z", "WINDOW_Y", "WINDOW_X") + c["OUTPUTS"],
    "conv_transpose.wgsl": lambda c: (1 if c["COLUMNS"] else c["CHANNELS"]) * (1 + c.window("WINDOW_Z", "WINDOW_Y", "WINDOW_X")),
    "cumsum.wgsl": lambda c: -(-c["N"] // c.lanes) * (1 + c.lanes.bit_length()),
    "einsum.wgsl": lambda c: c["K"] // 4 + 3,
    "gemm.wgsl": lambda c: c["STEPS"] * (1 + c["TK"] // 4) + 16,
    "hardmax.wgsl": lambda c: c["N"],
    "matmul_integer.wgsl": lambda c: c["K"],
    "matvec.wgsl": lambda c: c["PART"] + 512,
    "max_pool_indices.wgsl": lambda c: c.window("K0", "K1", "K2"),
    "normalize.wgsl": lambda c: c.rows(3),
    "pool.wgsl": lambda c: c.window("K0", "K1", "K2") * c["P"],
    "recurrent.wgsl": _recurrent,
    "reduce.wgsl": lambda c: c.rows(1) * c["P"],
    "row_moments.wgsl": lambda c: c.rows(2),
    "scatter_owner.wgsl": lambda c: -(-(c["UPDATES"] + 2 * c["TILE"]) // c.lanes) + 3,
    "scatter_reduce.wgsl": lambda c: c["COUNT"],
    "softmax.wgsl": lambda c: c.rows(3),
    "sum_parts.wgsl": lambda c: c["SPLIT"],
}
"""Shader -> turns. Kernels that are not here loop over taps, ranks, bits or parts of a bounded number."""
