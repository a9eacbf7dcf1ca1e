// Elastic averaging (Zhang et al., 2015, arXiv:1412.6651) and block momentum (Chen and Huo, 2016,
// ICASSP). Knows no TensorFlow.
#ifndef DEEPINSIGHT_KERNELS_AVERAGING_H_
#define DEEPINSIGHT_KERNELS_AVERAGING_H_

#include <array>
#include <cstdint>

#include "compute.h"

namespace deepinsight {

// Sums: squares of a distance or of a step, in double; its non-finite elements.
using DistanceSums = std::array<double, 2>;

// d = local - center; local -= alpha d; center += alpha d.
template <typename C>
struct ElasticExchange {
  using Sums = DistanceSums;
  C moving_rate;

  void operator()(int64_t n, Sums* sums, InOut<C> local, InOut<C> center) const {
    double squares = 0;
    C non_finite = 0;
#pragma omp simd reduction(+ : squares, non_finite)
    for (int64_t i = 0; i < n; ++i) {
      const C x = local.in[i], c = center.in[i];
      const C distance = x - c;
      const C pull = moving_rate * distance;
      local.out[i] = x - pull;
      center.out[i] = c + pull;
      squares += static_cast<double>(distance) * static_cast<double>(distance);
      non_finite += NonFinite(distance);
    }
    Add(Sums{squares, double(non_finite)}, sums);
  }
};

// G = mean - w; delta' = eta delta + zeta G; w += delta', with Nesterov + eta (delta' - delta).
template <typename C, bool kNesterov>
struct BlockMomentum {
  using Sums = DistanceSums;
  C momentum, learning_rate;

  void operator()(int64_t n, Sums* sums, InOut<C> var, InOut<C> delta, In<C> mean) const {
    double squares = 0;
    C non_finite = 0;
#pragma omp simd reduction(+ : squares, non_finite)
    for (int64_t i = 0; i < n; ++i) {
      const C w = var.in[i], before = delta.in[i];
      const C step = momentum * before + learning_rate * (mean.in[i] - w);
      delta.out[i] = step;
      if constexpr (kNesterov) {
        var.out[i] = w + step + momentum * (step - before);
      } else {
        var.out[i] = w + step;
      }
      squares += static_cast<double>(step) * static_cast<double>(step);
      non_finite += NonFinite(step);
    }
    Add(Sums{squares, double(non_finite)}, sums);
  }
};

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_AVERAGING_H_
