// Deep Gradient Compression (Lin et al., 2018, arXiv:1712.01887). Knows no TensorFlow.
#ifndef DEEPINSIGHT_KERNELS_GRADIENT_COMPRESSION_H_
#define DEEPINSIGHT_KERNELS_GRADIENT_COMPRESSION_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "compute.h"

namespace deepinsight {

// Reads a gradient: its sum of squares, in double, which does not overflow for float.
template <typename C>
struct SumOfSquares {
  using Sums = std::array<double, 1>;

  void operator()(int64_t n, Sums* sums, In<C> grad) const {
    double squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < n; ++i) {
      const double g = static_cast<double>(grad.in[i]);
      squares += g * g;
    }
    (*sums)[0] += squares;
  }
};

// velocity = momentum * velocity + scale * grad; residual += velocity.
// Sums: squares of grad, its non-finite elements.
template <typename C>
struct DgcAccumulate {
  using Sums = std::array<double, 2>;
  C momentum, scale;

  void operator()(int64_t n, Sums* sums, InOut<C> velocity, InOut<C> residual, In<C> grad) const {
    double squares = 0;
    C non_finite = 0;
#pragma omp simd reduction(+ : squares, non_finite)
    for (int64_t i = 0; i < n; ++i) {
      const C g = grad.in[i];
      const C u = momentum * velocity.in[i] + scale * g;
      velocity.out[i] = u;
      residual.out[i] = residual.in[i] + u;
      squares += static_cast<double>(g) * static_cast<double>(g);
      non_finite += NonFinite(g);
    }
    Add(Sums{squares, double(non_finite)}, sums);
  }
};

// min(1, clip_norm / norm), for clip_norm > 0; NaN for a norm that is.
template <typename C>
C ClipScale(C clip_norm, double norm) {
  const C ratio = clip_norm / static_cast<C>(norm);
  return ratio >= 1 ? C(1) : ratio;
}

// max(1, round((1 - sparsity) n)) of n elements, halves to even; none of none.
inline int64_t ElementsToSend(double sparsity, int64_t n) {
  const double wanted = std::nearbyint((1 - sparsity) * static_cast<double>(n));
  return std::min(n, std::max<int64_t>(1, static_cast<int64_t>(wanted)));
}

// |value| as an integer of the same order. NaN, whatever its bits, counts as infinity.
template <typename C>
using MagnitudeKey = std::conditional_t<std::is_same_v<C, double>, int64_t, int32_t>;

template <typename C>
inline MagnitudeKey<C> KeyOf(C value) {
  using Key = MagnitudeKey<C>;
  constexpr Key infinity = std::is_same_v<C, double> ? Key(0x7ff0000000000000) : Key(0x7f800000);
  Key bits;
  std::memcpy(&bits, &value, sizeof bits);
  return std::min<Key>(bits & std::numeric_limits<Key>::max(), infinity);
}

// Runs some(begin, end) over parts of [0, units), in parallel; the second number is a unit's cost.
using Parallel =
    std::function<void(int64_t, int64_t, const std::function<void(int64_t, int64_t)>&)>;

// Which element the sample takes out of stretch i of `stride` elements: SplitMix64, mod stride.
inline int64_t SampledOffset(uint64_t seed, int64_t i, int64_t stride) {
  uint64_t bits = (seed + static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  return static_cast<int64_t>(bits % static_cast<uint64_t>(stride));
}

// Finds the k elements of the largest magnitude, exactly; of equal ones those of lower index.
//
// A level below the k-th largest magnitude is guessed from a sample. One pass collects what lies
// above the level and counts what lies on it. At least k in all: the top k are among them. If the
// guess was too high, twice in a row, a histogram of all elements finds a level that is not.
// So the sample decides on the time that it takes, never on the result.
template <typename C>
class TopMagnitudes {
 public:
  // 1 <= k <= n.
  TopMagnitudes(const C* values, int64_t n, int64_t k, const Parallel& parallel)
      : values_(values), n_(n), k_(k), parallel_(parallel), units_((n + kUnit - 1) / kUnit) {}

  // With `exact` the sample is skipped. The seed says which elements the sample holds.
  void Select(bool exact, uint64_t seed) {
    const int64_t size = std::max<int64_t>(kLeastSample, n_ / 100);
    bool found = false;
    if (!exact && size <= n_ / 4) {
      const std::vector<Key> sample = Sample(size, seed);
      const double expected =
          static_cast<double>(k_) * static_cast<double>(size) / static_cast<double>(n_);
      // Three standard deviations above what is expected of the sample, then six.
      for (int attempt = 1; attempt <= 2 && !found; ++attempt) {
        const double rank = expected + 3 * attempt * (std::sqrt(expected) + 1);
        if (rank >= static_cast<double>(size)) break;
        found = Collect(Largest(sample, static_cast<int64_t>(rank) + 1));
      }
    }
    if (!found) Collect(LevelOfAll());
    Finish();
  }

  // Ascending.
  const std::vector<int64_t>& indices() const { return indices_; }
  // The sum of all magnitudes.
  double total() const { return total_; }

 private:
  using Key = MagnitudeKey<C>;
  struct Found {
    Key key;
    int64_t index;
  };
  struct Part {
    std::vector<Found> above;
    int64_t on = 0;
    double total = 0;
  };

  static constexpr int64_t kUnit = 16 * kBlock;
  static constexpr int64_t kStripe = 256;
  static constexpr int64_t kLeastSample = 4096;
  static constexpr int kShift = std::is_same_v<C, double> ? 49 : 17;  // 2^14 bins
  static constexpr int64_t kBins = 1 << 14;

  // The rank-th largest key, counted from 1.
  static Key Largest(std::vector<Key> keys, int64_t rank) {
    std::nth_element(keys.begin(), keys.begin() + (rank - 1), keys.end(), std::greater<Key>());
    return keys[rank - 1];
  }

  // One element at random out of each of `size` equal stretches.
  std::vector<Key> Sample(int64_t size, uint64_t seed) const {
    std::vector<Key> sample(size);
    const int64_t stride = n_ / size;
    for (int64_t i = 0; i < size; ++i) {
      sample[i] = KeyOf(values_[i * stride + SampledOffset(seed, i, stride)]);
    }
    return sample;
  }

  // The lower edge of the histogram's bin that holds the k-th largest.
  Key LevelOfAll() const {
    const int64_t shares = std::clamp<int64_t>(n_ >> 18, 1, 16), share = (n_ + shares - 1) / shares;
    std::vector<std::vector<int64_t>> counts(shares, std::vector<int64_t>(kBins));
    parallel_(shares, 2 * share, [&](int64_t first, int64_t last) {
      for (int64_t s = first; s < last; ++s) {
        const int64_t end = std::min(n_, (s + 1) * share);
        for (int64_t i = s * share; i < end; ++i) ++counts[s][KeyOf(values_[i]) >> kShift];
      }
    });
    int64_t bin = kBins, seen = 0;
    while (seen < k_) {
      --bin;
      for (const auto& count : counts) seen += count[bin];
    }
    return static_cast<Key>(bin) << kShift;
  }

  // Collects what lies above the level; whether that and what lies on it is enough.
  bool Collect(Key level) {
    level_ = level;
    parts_.assign(units_, Part());
    parallel_(units_, 2 * kUnit, [&](int64_t first, int64_t last) {
      for (int64_t u = first; u < last; ++u) CollectUnit(u, level, &parts_[u]);
    });
    above_ = total_ = 0;
    int64_t on = 0;
    for (const Part& part : parts_) {
      above_ += static_cast<int64_t>(part.above.size());
      on += part.on;
      total_ += part.total;
    }
    return above_ + on >= k_;
  }

  void CollectUnit(int64_t u, Key level, Part* part) const {
    const int64_t end = std::min(n_, (u + 1) * kUnit);
    Found found[kStripe];
    for (int64_t start = u * kUnit; start < end; start += kStripe) {
      const int64_t n = std::min(kStripe, end - start);
      const C* values = values_ + start;
      Key above = 0, on = 0;
      double total = 0;
#pragma omp simd reduction(+ : above, on, total)
      for (int64_t i = 0; i < n; ++i) {
        const Key key = KeyOf(values[i]);
        above += key > level ? 1 : 0;
        on += key == level ? 1 : 0;
        total += static_cast<double>(std::abs(values[i]));
      }
      part->on += on;
      part->total += total;
      if (above == 0) continue;
      int64_t size = 0;
      for (int64_t i = 0; i < n; ++i) {
        const Key key = KeyOf(values[i]);
        found[size] = {key, start + i};
        size += key > level ? 1 : 0;
        if (size == above) break;
      }
      part->above.insert(part->above.end(), found, found + size);
    }
  }

  // Cuts what was collected down to k, or fills it up with the first ones on the level.
  void Finish() {
    indices_.clear();
    indices_.reserve(k_);
    if (above_ < k_) {
      const std::vector<int64_t> on = FirstOnLevel(k_ - above_);
      std::vector<int64_t> above;
      above.reserve(above_);
      for (const Part& part : parts_) {
        for (const Found& found : part.above) above.push_back(found.index);
      }
      std::merge(above.begin(), above.end(), on.begin(), on.end(), std::back_inserter(indices_));
      return;
    }
    std::vector<Key> keys;
    keys.reserve(above_);
    for (const Part& part : parts_) {
      for (const Found& found : part.above) keys.push_back(found.key);
    }
    const Key least = Largest(std::move(keys), k_);
    int64_t ties = k_;
    for (const Part& part : parts_) {
      for (const Found& found : part.above) ties -= found.key > least ? 1 : 0;
    }
    for (const Part& part : parts_) {
      for (const Found& found : part.above) {
        if (found.key > least || (found.key == least && ties-- > 0)) {
          indices_.push_back(found.index);
        }
      }
    }
  }

  std::vector<int64_t> FirstOnLevel(int64_t count) const {
    std::vector<int64_t> on;
    on.reserve(count);
    for (int64_t u = 0; static_cast<int64_t>(on.size()) < count; ++u) {
      if (parts_[u].on == 0) continue;
      const int64_t end = std::min(n_, (u + 1) * kUnit);
      for (int64_t i = u * kUnit; i < end && static_cast<int64_t>(on.size()) < count; ++i) {
        if (KeyOf(values_[i]) == level_) on.push_back(i);
      }
    }
    return on;
  }

  const C* const values_;
  const int64_t n_, k_;
  const Parallel& parallel_;
  const int64_t units_;
  Key level_ = 0;
  std::vector<Part> parts_;
  int64_t above_ = 0;
  double total_ = 0;
  std::vector<int64_t> indices_;
};

inline void Round(float value, Half* rounded) { *rounded = ToHalf(value); }
inline void Round(float value, BFloat16* rounded) { *rounded = ToBFloat16(value); }

// Rounds the value to T and leaves in it what that loses: value before == sent + value after.
// What is not finite as sent leaves what is not finite.
template <typename T>
T Send(Compute<T>* value) {
  T sent;
  if constexpr (std::is_same_v<T, Compute<T>>) {
    sent = *value;
    *value -= sent;
  } else {
    Round(*value, &sent);
    *value -= ToFloat(sent);
  }
  return sent;
}

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_GRADIENT_COMPRESSION_H_
