// Layer-wise adaptive rate scaling (You et al., 2017, arXiv:1708.03888). Knows no TensorFlow.
#ifndef DEEPINSIGHT_KERNELS_LARS_H_
#define DEEPINSIGHT_KERNELS_LARS_H_

#include <array>
#include <cstdint>

#include "compute.h"

namespace deepinsight {

// Sums: w w, g g, non-finite gradients; in double, so that no float overflows.
template <typename C>
struct SquaredNorms {
  using Sums = std::array<double, 3>;

  void operator()(int64_t n, Sums* sums, In<C> var, In<C> grad) const {
    double weights = 0, gradients = 0;
    C non_finite = 0;
#pragma omp simd reduction(+ : weights, gradients, non_finite)
    for (int64_t i = 0; i < n; ++i) {
      const double w = var.in[i], g = grad.in[i];
      weights += w * w;
      gradients += g * g;
      non_finite += NonFinite(grad.in[i]);
    }
    Add(Sums{weights, gradients, double(non_finite)}, sums);
  }
};

// eeta |w| / (|g| + weight_decay |w| + epsilon); 1 where a norm is 0.
inline double TrustRatio(double eeta, double weight_decay, double epsilon, double var_norm,
                         double grad_norm) {
  if (var_norm == 0 || grad_norm == 0) return 1;
  return eeta * var_norm / (grad_norm + weight_decay * var_norm + epsilon);
}

// u = g + weight_decay w; v = mu v + eta trust u; w -= v, or w -= mu v + eta trust u.
template <typename C>
struct Lars {
  using Sums = std::array<double, 0>;
  C rate;  // eta trust
  C weight_decay, momentum;
  bool use_nesterov;

  void operator()(int64_t n, Sums*, InOut<C> var, InOut<C> accum, In<C> grad) const {
    if (use_nesterov) {
      Run<true>(n, var, accum, grad);
    } else {
      Run<false>(n, var, accum, grad);
    }
  }

 private:
  template <bool kNesterov>
  void Run(int64_t n, InOut<C> var, InOut<C> accum, In<C> grad) const {
    const C eta = rate, decay = weight_decay, mu = momentum;
    DEEPINSIGHT_SIMD
    for (int64_t i = 0; i < n; ++i) {
      const C w = var.in[i];
      const C step = eta * (grad.in[i] + decay * w);
      const C v = accum.in[i] * mu + step;
      accum.out[i] = v;
      var.out[i] = w - (kNesterov ? mu * v + step : v);
    }
  }
};

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_LARS_H_
