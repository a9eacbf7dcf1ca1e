"""Which instructions a library needs, and whether this CPU has them."""

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")

# What the preprocessor defines -> what /proc/cpuinfo calls it. Only instructions that a compiler
# puts into ordinary code count.
_X86 = {
    "__SSE3__": "pni",
    "__SSSE3__": "ssse3",
    "__SSE4A__": "sse4a",
    "__SSE4_1__": "sse4_1",
    "__SSE4_2__": "sse4_2",
    "__POPCNT__": "popcnt",
    "__LZCNT__": "abm",
    "__MOVBE__": "movbe",
    "__BMI__": "bmi1",
    "__BMI2__": "bmi2",
    "__AVX__": "avx",
    "__F16C__": "f16c",
    "__FMA__": "fma",
    "__AVX2__": "avx2",
    "__AVXVNNI__": "avx_vnni",
    "__AVX512F__": "avx512f",
    "__AVX512CD__": "avx512cd",
    "__AVX512DQ__": "avx512dq",
    "__AVX512BW__": "avx512bw",
    "__AVX512VL__": "avx512vl",
    "__AVX512IFMA__": "avx512ifma",
    "__AVX512VBMI__": "avx512vbmi",
    "__AVX512VBMI2__": "avx512_vbmi2",
    "__AVX512VNNI__": "avx512_vnni",
    "__AVX512BITALG__": "avx512_bitalg",
    "__AVX512VPOPCNTDQ__": "avx512_vpopcntdq",
    "__AVX512BF16__": "avx512_bf16",
    "__AVX512FP16__": "avx512_fp16",
    "__GFNI__": "gfni",
    "__VPCLMULQDQ__": "vpclmulqdq",
}
_ARM = {
    "__ARM_FEATURE_ATOMICS": "atomics",
    "__ARM_FEATURE_DOTPROD": "asimddp",
    "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC": "asimdhp",
    "__ARM_FEATURE_BF16": "bf16",
    "__ARM_FEATURE_MATMUL_INT8": "i8mm",
    "__ARM_FEATURE_SVE": "sve",
    "__ARM_FEATURE_SVE2": "sve2",
}


def needed_cpu_flags(macros: str) -> set[str]:
    """The instructions that code compiled under some definitions may use.

    Args:
        macros: Output of ``c++ -dM -E``.

    Returns:
        Names as in ``/proc/cpuinfo``.
    """
    known = _ARM if platform.machine().startswith(("aarch64", "arm")) else _X86
    defined = {line.split(" ", 2)[1] for line in macros.splitlines() if line.startswith("#define ")}
    return {flag for macro, flag in known.items() if macro in defined}


def present_cpu_flags() -> set[str]:
    """The instructions of this CPU; empty where ``/proc/cpuinfo`` does not list them."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return set()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return set(value.split())
    return set()


def missing_cpu_flags(needed: list[str]) -> list[str]:
    """What of the needed this CPU lacks; sorted; empty where the CPU cannot be asked."""
    present = present_cpu_flags()
    return sorted(set(needed) - present) if present else []
