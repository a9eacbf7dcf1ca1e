// Which rows a sparse gradient touches, each once. Knows no TensorFlow.
#ifndef DEEPINSIGHT_KERNELS_UNIQUE_ROWS_H_
#define DEEPINSIGHT_KERNELS_UNIQUE_ROWS_H_

#include <cstdint>
#include <vector>

namespace deepinsight {

// The distinct values among the indices of a sparse gradient.
//
// Row u of the gradient's unique rows belongs to row `row(u)` of the variable and is the sum of
// the gradient's rows at positions(u)[0 .. count(u)), in order of appearance.
class UniqueRows {
 public:
  // Returns -1, or the position of the first index that is not in [0, limit).
  template <typename Index>
  int64_t Find(const Index* indices, int64_t n, int64_t limit) {
    rows_.resize(n);
    bool ascending = true;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = static_cast<int64_t>(indices[i]);
      if (row < 0 || row >= limit) return i;
      rows_[i] = row;
      ascending &= i == 0 || rows_[i - 1] < row;
    }
    size_ = n;
    duplicates_ = !ascending && Merge(n);
    return -1;
  }

  int64_t size() const { return size_; }
  bool duplicates() const { return duplicates_; }
  int64_t row(int64_t u) const { return rows_[u]; }
  int64_t count(int64_t u) const { return duplicates_ ? begin_[u + 1] - begin_[u] : 1; }
  // The position of row u's first gradient row.
  int64_t first(int64_t u) const { return duplicates_ ? positions_[begin_[u]] : u; }
  const int64_t* positions(int64_t u) const { return positions_.data() + begin_[u]; }

 private:
  // Groups equal indices with an open-addressing table; returns whether there were any.
  bool Merge(int64_t n) {
    int64_t slots = 16;
    while (slots < 2 * n) slots *= 2;
    std::vector<int64_t> table(slots, -1);  // unique number
    std::vector<int64_t> group(n);
    int64_t unique = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = rows_[i];
      uint64_t slot = (static_cast<uint64_t>(row) * 0x9e3779b97f4a7c15u) >> 32 & (slots - 1);
      while (table[slot] >= 0 && rows_[table[slot]] != row) slot = (slot + 1) & (slots - 1);
      if (table[slot] < 0) {
        table[slot] = unique;
        rows_[unique++] = row;  // unique <= i: what is overwritten has been read
      }
      group[i] = table[slot];
    }
    size_ = unique;
    if (unique == n) return false;
    begin_.assign(unique + 1, 0);
    for (int64_t i = 0; i < n; ++i) ++begin_[group[i] + 1];
    for (int64_t u = 0; u < unique; ++u) begin_[u + 1] += begin_[u];
    positions_.resize(n);
    std::vector<int64_t> next(begin_.begin(), begin_.end() - 1);
    for (int64_t i = 0; i < n; ++i) positions_[next[group[i]]++] = i;
    return true;
  }

  int64_t size_ = 0;
  bool duplicates_ = false;
  std::vector<int64_t> rows_, begin_, positions_;
};

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_UNIQUE_ROWS_H_
