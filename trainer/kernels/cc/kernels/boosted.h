// Gradients boosted by their correlation with the movement of the variable, and the rules that
// take them: gradient descent, momentum, Adagrad, Adam. Knows no TensorFlow.
//
// The public description of the method (TensorFlowRS) has no formula; the form here is our own.
#ifndef DEEPINSIGHT_KERNELS_BOOSTED_H_
#define DEEPINSIGHT_KERNELS_BOOSTED_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "compute.h"

#define DEEPINSIGHT_INLINE inline __attribute__((always_inline))

namespace deepinsight {

// Sums: elements, correlation, |boosted gradient - gradient|, |gradient|, non-finite gradients.
using BoostSums = std::array<double, 5>;

// The base rules. `Step` returns the new value of element i and updates the slots; the order of
// the operations is that of TensorFlow's kernels, so that float equals them bit for bit.

// w -= eta g
template <typename C>
struct GradientDescent {
  static constexpr int kSlots = 0;
  C learning_rate;

  DEEPINSIGHT_INLINE C Step(int64_t, C w, C g) const { return w - g * learning_rate; }
  template <typename Loop>
  void Choose(const Loop& loop) const {
    loop(*this);
  }
};

// v = mu v + g; w -= eta v
template <typename C>
struct HeavyBall {
  C learning_rate, momentum;

  DEEPINSIGHT_INLINE C Step(int64_t i, C w, C g, InOut<C> accum) const {
    const C v = accum.in[i] * momentum + g;
    accum.out[i] = v;
    return w - v * learning_rate;
  }
};

// v = mu v + g; w -= eta g + eta mu v. TensorFlow's dense kernel takes (v mu) eta, its sparse one
// v (eta mu): v `first` `second`.
template <typename C>
struct Nesterov {
  C learning_rate, momentum, first, second;

  DEEPINSIGHT_INLINE C Step(int64_t i, C w, C g, InOut<C> accum) const {
    const C v = accum.in[i] * momentum + g;
    accum.out[i] = v;
    return w - (g * learning_rate + v * first * second);
  }
};

template <typename C>
struct Momentum {
  static constexpr int kSlots = 1;
  C learning_rate, momentum;
  bool use_nesterov, sparse;

  template <typename Loop>
  void Choose(const Loop& loop) const {
    if (!use_nesterov) {
      loop(HeavyBall<C>{learning_rate, momentum});
    } else if (sparse) {
      loop(Nesterov<C>{learning_rate, momentum, learning_rate * momentum, C(1)});
    } else {
      loop(Nesterov<C>{learning_rate, momentum, momentum, learning_rate});
    }
  }
};

// a += g g; w -= eta g / (sqrt(a) + epsilon)
template <typename C>
struct Adagrad {
  static constexpr int kSlots = 1;
  C learning_rate, epsilon;

  DEEPINSIGHT_INLINE C Step(int64_t i, C w, C g, InOut<C> accum) const {
    const C a = accum.in[i] + g * g;
    accum.out[i] = a;
    return w - g * learning_rate / (std::sqrt(a) + epsilon);
  }
  template <typename Loop>
  void Choose(const Loop& loop) const {
    loop(*this);
  }
};

// m += (1 - beta1) (g - m); v += (1 - beta2) (g g - v); w -= alpha m / (sqrt(v) + epsilon)
template <typename C>
struct Adam {
  static constexpr int kSlots = 2;
  C learning_rate, beta1_power, beta2_power, beta1, beta2, epsilon;
  C alpha = 0;  // eta sqrt(1 - beta2^t) / (1 - beta1^t), set by Choose

  DEEPINSIGHT_INLINE C Step(int64_t i, C w, C g, InOut<C> first, InOut<C> second) const {
    const C m = first.in[i] + (g - first.in[i]) * (C(1) - beta1);
    const C v = second.in[i] + (g * g - second.in[i]) * (C(1) - beta2);
    first.out[i] = m;
    second.out[i] = v;
    return w - m * alpha / (std::sqrt(v) + epsilon);
  }
  template <typename Loop>
  void Choose(const Loop& loop) const {
    Adam now = *this;
    now.alpha = learning_rate * std::sqrt(C(1) - beta2_power) / (C(1) - beta1_power);
    loop(now);
  }
};

// c = d c + (1 - d) g D, s = d s + (1 - d) g g, q = d q + (1 - d) D D with D = w - backup;
// rho = c / (sqrt(s) sqrt(q) + epsilon), clipped to [-1, 1]; 0 where that is not a number.
template <typename C>
struct Boost {
  C strength;  // lambda_tau = lambda / (1 + tau / tau_0)
  C decay, epsilon;

  DEEPINSIGHT_INLINE C Correlation(int64_t i, C g, C movement, InOut<C> correlation,
                                   InOut<C> gradient_square, InOut<C> movement_square) const {
    const C rest = C(1) - decay;
    const C c = decay * correlation.in[i] + rest * (g * movement);
    const C s = decay * gradient_square.in[i] + rest * (g * g);
    const C q = decay * movement_square.in[i] + rest * (movement * movement);
    correlation.out[i] = c;
    gradient_square.out[i] = s;
    movement_square.out[i] = q;
    const C rho = c / (std::sqrt(s) * std::sqrt(q) + epsilon);
    return FiniteOrZero(std::min(std::max(rho, C(-1)), C(1)));  // std::max(NaN, x) is NaN
  }
};

// A base rule on the gradient g (1 + lambda_tau rho); lambda = 0 leaves every bit of g.
//
// Operands: var, correlation, gradient square, movement square, slots of the base, backup, grad.
template <typename C, typename Base>
struct Boosted {
  using Sums = BoostSums;
  static constexpr bool kHasBackup = true;
  Boost<C> boost;
  Base base;

  template <typename Backup>
  void operator()(int64_t n, Sums* sums, InOut<C> var, InOut<C> c, InOut<C> s, InOut<C> q,
                  Backup backup, In<C> grad) const {
    Run(n, sums, var, c, s, q, backup, grad);
  }
  template <typename Backup>
  void operator()(int64_t n, Sums* sums, InOut<C> var, InOut<C> c, InOut<C> s, InOut<C> q,
                  InOut<C> slot, Backup backup, In<C> grad) const {
    Run(n, sums, var, c, s, q, backup, grad, slot);
  }
  template <typename Backup>
  void operator()(int64_t n, Sums* sums, InOut<C> var, InOut<C> c, InOut<C> s, InOut<C> q,
                  InOut<C> first, InOut<C> second, Backup backup, In<C> grad) const {
    Run(n, sums, var, c, s, q, backup, grad, first, second);
  }

 private:
  template <typename Backup, typename... Slots>
  DEEPINSIGHT_INLINE void Run(int64_t n, Sums* sums, InOut<C> var, InOut<C> c, InOut<C> s,
                              InOut<C> q, Backup backup, In<C> grad, Slots... slots) const {
    base.Choose([&](const auto& chosen) {
      const auto step = chosen;  // copies: the loop need not fear that a store changes them
      const Boost<C> by = boost;
      C correlation = 0, change = 0, magnitude = 0, non_finite = 0;
#pragma omp simd reduction(+ : correlation, change, magnitude, non_finite)
      for (int64_t i = 0; i < n; ++i) {
        const C w = var.in[i], g = grad.in[i];
        const C rho = by.Correlation(i, g, w - backup.in[i], c, s, q);
        const C factor = by.strength * rho;
        const C updated = step.Step(i, w, g * (C(1) + factor), slots...);
        var.out[i] = updated;
        Keep(backup, i, updated);
        correlation += rho;
        change += std::abs(g * factor);
        magnitude += std::abs(g);
        non_finite += NonFinite(g);
      }
      Add(Sums{double(n), double(correlation), double(change), double(magnitude),
               double(non_finite)},
          sums);
    });
  }
};

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_BOOSTED_H_
