// Delay-compensated gradient descent (Zheng et al., 2017, arXiv:1609.08326). Knows no TensorFlow.
#ifndef DEEPINSIGHT_KERNELS_DELAY_COMPENSATED_GRADIENT_DESCENT_H_
#define DEEPINSIGHT_KERNELS_DELAY_COMPENSATED_GRADIENT_DESCENT_H_

#include <array>
#include <cmath>
#include <cstdint>

#include "compute.h"

namespace deepinsight {

// Sums: elements, |compensation|, |gradient|, flipped signs, non-finite gradients.
using CompensationSums = std::array<double, 5>;

// w -= eta (g + lambda g g (w - backup)), written as w -= eta g (1 + lambda g (w - backup)), so
// that lambda = 0 leaves every bit of g; then backup = w.
template <typename C>
struct DelayCompensated {
  using Sums = CompensationSums;
  static constexpr bool kHasBackup = true;
  C learning_rate, variance_parameter;

  template <typename Backup>
  void operator()(int64_t n, Sums* sums, InOut<C> var, Backup backup, In<C> grad) const {
    C compensation = 0, magnitude = 0, flipped = 0, non_finite = 0;
#pragma omp simd reduction(+ : compensation, magnitude, flipped, non_finite)
    for (int64_t i = 0; i < n; ++i) {
      const C w = var.in[i], g = grad.in[i];
      const C factor = FiniteOrZero(variance_parameter * g * (w - backup.in[i]));
      const C updated = w - learning_rate * (g * (C(1) + factor));
      var.out[i] = updated;
      Keep(backup, i, updated);
      compensation += std::abs(g * factor);
      magnitude += std::abs(g);
      flipped += factor < C(-1) ? C(1) : C(0);
      non_finite += NonFinite(g);
    }
    Add(Sums{double(n), double(compensation), double(magnitude), double(flipped),
             double(non_finite)},
        sums);
  }
};

// The adaptive form: MS = m MS + (1 - m) g g, lambda_t = lambda_0 / sqrt(MS + epsilon).
template <typename C>
struct AdaptiveDelayCompensated {
  using Sums = CompensationSums;
  static constexpr bool kHasBackup = true;
  C learning_rate, variance_parameter, decay, epsilon;

  template <typename Backup>
  void operator()(int64_t n, Sums* sums, InOut<C> var, InOut<C> mean_square, Backup backup,
                  In<C> grad) const {
    C compensation = 0, magnitude = 0, flipped = 0, non_finite = 0;
#pragma omp simd reduction(+ : compensation, magnitude, flipped, non_finite)
    for (int64_t i = 0; i < n; ++i) {
      const C w = var.in[i], g = grad.in[i];
      const C ms = decay * mean_square.in[i] + (C(1) - decay) * (g * g);
      const C lambda = variance_parameter / std::sqrt(ms + epsilon);
      const C factor = FiniteOrZero(lambda * g * (w - backup.in[i]));
      const C updated = w - learning_rate * (g * (C(1) + factor));
      var.out[i] = updated;
      mean_square.out[i] = ms;
      Keep(backup, i, updated);
      compensation += std::abs(g * factor);
      magnitude += std::abs(g);
      flipped += factor < C(-1) ? C(1) : C(0);
      non_finite += NonFinite(g);
    }
    Add(Sums{double(n), double(compensation), double(magnitude), double(flipped),
             double(non_finite)},
        sums);
  }
};

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_DELAY_COMPENSATED_GRADIENT_DESCENT_H_
