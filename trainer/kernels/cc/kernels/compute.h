// Storage types, the operands of an update rule and the loop that feeds it. Knows no TensorFlow.
//
// A rule is a struct with
//   using Sums = std::array<double, K>;            // what it counts on the way
//   void operator()(int64_t n, Sums* sums, operands...) const;
// Its operands are In<C> and InOut<C> over n <= kBlock elements of the compute type C: float for
// half, bfloat16 and float, double for double. `InOut::in` and `InOut::out` are either the same
// array or disjoint ones.
#ifndef DEEPINSIGHT_KERNELS_COMPUTE_H_
#define DEEPINSIGHT_KERNELS_COMPUTE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#if defined(__F16C__) && defined(__AVX__)
#include <immintrin.h>
#endif

// Elements are independent of each other, also where `in` and `out` are one array.
#define DEEPINSIGHT_SIMD _Pragma("omp simd")

namespace deepinsight {

// IEEE binary16 and bfloat16, as they lie in memory.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <typename T>
struct ComputeOf {
  using type = T;
};
template <>
struct ComputeOf<Half> {
  using type = float;
};
template <>
struct ComputeOf<BFloat16> {
  using type = float;
};
template <typename T>
using Compute = typename ComputeOf<T>::type;

// Elements per call of a rule: with ten operands a block of floats fits the L2 cache easily.
constexpr int64_t kBlock = 1024;

inline float BitsToFloat(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t FloatToBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float ToFloat(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  const uint32_t exponent = (half.bits >> 10) & 0x1fu;
  const uint32_t fraction = half.bits & 0x3ffu;
  if (exponent == 0x1f) return BitsToFloat(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return BitsToFloat(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // zero or subnormal
  return sign ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even; overflows to infinity; NaN stays NaN.
inline Half ToHalf(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return Half{static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return Half{static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Subnormal: adding 0.5 shifts the fraction to where a half keeps it, and rounds.
    const uint32_t shifted = FloatToBits(BitsToFloat(magnitude) + 0.5f) - FloatToBits(0.5f);
    return Half{static_cast<uint16_t>(sign | shifted)};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23);
  return Half{static_cast<uint16_t>(sign | (rounded >> 13))};
}

inline float ToFloat(BFloat16 value) {
  return BitsToFloat(static_cast<uint32_t>(value.bits) << 16);
}

inline BFloat16 ToBFloat16(float value) {
  const uint32_t bits = FloatToBits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return BFloat16{static_cast<uint16_t>(nan ? ((bits >> 16) | 0x40u) : rounded)};
}

inline void Widen(const Half* from, float* to, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= n; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
#endif
  for (; i < n; ++i) to[i] = ToFloat(from[i]);
}

inline void Narrow(const float* from, Half* to, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__) && defined(__AVX__)
  for (; i + 8 <= n; i += 8) {
    const __m128i halves =
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
#endif
  for (; i < n; ++i) to[i] = ToHalf(from[i]);
}

inline void Widen(const BFloat16* from, float* to, int64_t n) {
  DEEPINSIGHT_SIMD
  for (int64_t i = 0; i < n; ++i) to[i] = ToFloat(from[i]);
}

inline void Narrow(const float* from, BFloat16* to, int64_t n) {
  DEEPINSIGHT_SIMD
  for (int64_t i = 0; i < n; ++i) to[i] = ToBFloat16(from[i]);
}

// What needs no conversion is copied.
template <typename C>
void Widen(const C* from, C* to, int64_t n) {
  DEEPINSIGHT_SIMD
  for (int64_t i = 0; i < n; ++i) to[i] = from[i];
}

template <typename C>
void Narrow(const C* from, C* to, int64_t n) {
  Widen(from, to, n);
}

// An array that is read.
template <typename T>
struct In {
  const T* in;
};

// An array that is updated.
template <typename T>
struct InOut {
  const T* in;
  T* out;
};

// One block of an operand at a time, in the compute type.
template <typename Operand>
class BlockOf;

template <typename T>
class BlockOf<In<T>> {
 public:
  explicit BlockOf(In<T> operand) : operand_(operand) {}
  In<Compute<T>> Load(int64_t start, int64_t n) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      return {operand_.in + start};
    } else {
      Widen(operand_.in + start, buffer_, n);
      return {buffer_};
    }
  }
  void Store(int64_t, int64_t) {}

 private:
  In<T> operand_;
  Compute<T> buffer_[std::is_same_v<T, Compute<T>> ? 1 : kBlock];
};

template <typename T>
class BlockOf<InOut<T>> {
 public:
  explicit BlockOf(InOut<T> operand) : operand_(operand) {}
  InOut<Compute<T>> Load(int64_t start, int64_t n) {
    if constexpr (std::is_same_v<T, Compute<T>>) {
      return {operand_.in + start, operand_.out + start};
    } else {
      Widen(operand_.in + start, buffer_, n);
      return {buffer_, buffer_};
    }
  }
  void Store(int64_t start, int64_t n) {
    if constexpr (!std::is_same_v<T, Compute<T>>) Narrow(buffer_, operand_.out + start, n);
  }

 private:
  InOut<T> operand_;
  Compute<T> buffer_[std::is_same_v<T, Compute<T>> ? 1 : kBlock];
};

// Runs the rule over the elements [begin, end) of its operands, block by block.
template <typename Rule, typename... Operands>
void ForBlocks(int64_t begin, int64_t end, const Rule& rule, typename Rule::Sums* sums,
               Operands... operands) {
  std::tuple<BlockOf<Operands>...> blocks{BlockOf<Operands>(operands)...};
  for (int64_t start = begin; start < end; start += kBlock) {
    const int64_t n = std::min(kBlock, end - start);
    std::apply(
        [&](auto&... block) {
          rule(n, sums, block.Load(start, n)...);
          (block.Store(start, n), ...);
        },
        blocks);
  }
}

template <typename Sums>
void Add(const Sums& from, Sums* to) {
  for (size_t k = 0; k < from.size(); ++k) (*to)[k] += from[k];
}

// The worker's backup is a slot, which takes the new value, or a snapshot, which does not.
template <typename C>
inline void Keep(InOut<C> backup, int64_t i, C value) {
  backup.out[i] = value;
}
template <typename C>
inline void Keep(In<C>, int64_t, C) {}

// The value, or 0 where it is not finite. For corrections: a gradient that is infinite, or whose
// history is, cannot be corrected and is applied as it is.
template <typename C>
inline C FiniteOrZero(C value) {
  return value - value == C(0) ? value : C(0);
}

// 1 for NaN and infinity, else 0; vectorises.
template <typename C>
inline C NonFinite(C value) {
  return value - value == C(0) ? C(0) : C(1);
}

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_COMPUTE_H_
