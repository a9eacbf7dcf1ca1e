// Sums of weighted gradients (Zhang et al., 2016, arXiv:1511.05950). Knows no TensorFlow.
#ifndef DEEPINSIGHT_KERNELS_WEIGHTED_ACCUMULATOR_H_
#define DEEPINSIGHT_KERNELS_WEIGHTED_ACCUMULATOR_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

#include "compute.h"

namespace deepinsight {

using NoSums = std::array<double, 0>;

// sum += weight * gradient.
template <typename C>
struct AddWeighted {
  using Sums = NoSums;
  C weight;

  void operator()(int64_t n, Sums*, InOut<C> sum, In<C> gradient) const {
    DEEPINSIGHT_SIMD
    for (int64_t i = 0; i < n; ++i) sum.out[i] = sum.in[i] + weight * gradient.in[i];
  }
};

// sum = weight * gradient: the first gradient finds no zeros to be read.
template <typename C>
struct SetWeighted {
  using Sums = NoSums;
  C weight;

  void operator()(int64_t n, Sums*, InOut<C> sum, In<C> gradient) const {
    DEEPINSIGHT_SIMD
    for (int64_t i = 0; i < n; ++i) sum.out[i] = weight * gradient.in[i];
  }
};

// mean[0 .. n) = sum[0 .. n) / count, rounded to T.
template <typename T>
void DivideInto(T* mean, const Compute<T>* sum, Compute<T> count, int64_t n) {
  using C = Compute<T>;
  C buffer[kBlock];
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t m = std::min(kBlock, n - start);
    const C* from = sum + start;
    DEEPINSIGHT_SIMD
    for (int64_t i = 0; i < m; ++i) buffer[i] = from[i] / count;
    if constexpr (std::is_same_v<T, C>) {
      std::copy(buffer, buffer + m, mean + start);
    } else {
      Narrow(buffer, mean + start, m);
    }
  }
}

// What is known of the staleness of the gradients that were added.
struct Staleness {
  double sum = 0;
  int64_t largest = 0;

  void Add(int64_t staleness) {
    sum += static_cast<double>(staleness);
    largest = std::max(largest, staleness);
  }
};

// Sums of rows by index, in a buffer that grows with the rows that came.
template <typename C>
class RowSums {
 public:
  explicit RowSums(int64_t width) : width_(width), table_(kLeastSlots, -1) {}

  int64_t size() const { return static_cast<int64_t>(rows_.size()); }
  int64_t row(int64_t position) const { return rows_[position]; }
  C* sum(int64_t position) { return sums_.data() + position * width_; }

  // The position of a row; a new row's sum is 0. Invalidates what `sum` returned.
  int64_t Insert(int64_t row) {
    int64_t slot = Slot(row);
    if (table_[slot] >= 0) return table_[slot];
    if (2 * (size() + 1) > static_cast<int64_t>(table_.size())) {
      Grow();
      slot = Slot(row);
    }
    const int64_t position = size();
    sums_.resize((position + 1) * width_);
    rows_.push_back(row);
    table_[slot] = position;
    return position;
  }

  // Positions in ascending order of their rows.
  std::vector<int64_t> Ascending() const {
    std::vector<int64_t> order(rows_.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    std::sort(order.begin(), order.end(),
              [this](int64_t a, int64_t b) { return rows_[a] < rows_[b]; });
    return order;
  }

  // Forgets all rows; keeps the memory.
  void Clear() {
    std::fill(table_.begin(), table_.end(), int64_t{-1});
    rows_.clear();
    sums_.clear();
  }

  int64_t bytes() const {
    return static_cast<int64_t>(sums_.capacity() * sizeof(C) +
                                (rows_.capacity() + table_.capacity()) * sizeof(int64_t));
  }

 private:
  static constexpr int64_t kLeastSlots = 64;

  // Where the row is, or is to be put.
  int64_t Slot(int64_t row) const {
    const int64_t mask = static_cast<int64_t>(table_.size()) - 1;
    int64_t slot =
        static_cast<int64_t>((static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15u) >> 24) & mask;
    while (table_[slot] >= 0 && rows_[table_[slot]] != row) slot = (slot + 1) & mask;
    return slot;
  }

  void Grow() {
    table_.assign(2 * table_.size(), -1);
    for (int64_t position = 0; position < size(); ++position) {
      table_[Slot(rows_[position])] = position;
    }
  }

  const int64_t width_;
  std::vector<int64_t> table_;  // position, or -1; a power of two, at most half full
  std::vector<int64_t> rows_;
  std::vector<C> sums_;
};

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_WEIGHTED_ACCUMULATOR_H_
