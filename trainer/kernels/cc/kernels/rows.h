// Rows of tables, gathered into blocks for a rule and put back. Knows no TensorFlow.
//
// A rule that is called for every row spends more on its beginning and end than on 16 elements, and
// waits for each row's cache lines in turn. So the rows of a block are copied side by side first,
// independent loads that the processor overlaps, and the rule runs once over all of them.
#ifndef DEEPINSIGHT_KERNELS_ROWS_H_
#define DEEPINSIGHT_KERNELS_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <tuple>

#include "compute.h"
#include "unique_rows.h"

namespace deepinsight {

// Elements per call of a rule: its rows' cache lines and their copies fit the L1 cache.
constexpr int64_t kRowBlock = 512;

// Some columns of some of the unique rows: rows [first, first + count), columns
// [start, start + columns), at most kRowBlock elements. `end` is where the thread's rows end.
struct RowRange {
  const UniqueRows& unique;
  int64_t first, count, end;
  int64_t width, start, columns;
};

// The sum of the gradient's rows at some positions, `columns` elements from `start`.
template <typename T>
void SumRows(const T* grad, int64_t width, int64_t start, int64_t columns,
             const int64_t* positions, int64_t count, Compute<T>* sum) {
  Compute<T> buffer[kRowBlock];
  for (int64_t done = 0; done < columns; done += kRowBlock) {
    const int64_t n = std::min(kRowBlock, columns - done);
    for (int64_t k = 0; k < count; ++k) {
      Widen(grad + positions[k] * width + start + done, k == 0 ? sum + done : buffer, n);
      if (k == 0) continue;
      DEEPINSIGHT_SIMD
      for (int64_t i = 0; i < n; ++i) sum[done + i] += buffer[i];
    }
  }
}

// A table that is updated, one that is read, and one with a row per row of the gradient (of
// duplicates the first counts).
template <typename T>
struct VariableRows {
  InOut<T> data;
  const T* row(const UniqueRows& unique, int64_t u, int64_t width) const {
    return data.in + unique.row(u) * width;
  }
};
template <typename T>
struct ReadRows {
  const T* data;
  const T* row(const UniqueRows& unique, int64_t u, int64_t width) const {
    return data + unique.row(u) * width;
  }
};
template <typename T>
struct GradientRows {
  const T* data;
  const T* row(const UniqueRows& unique, int64_t u, int64_t width) const {
    return data + unique.first(u) * width;
  }
};
// The gradient, its duplicates summed.
template <typename T>
struct SummedRows {
  const T* data;
};

// Copies the rows of a range side by side, and asks for those that come next.
template <typename T, typename Rows>
void Gather(const Rows& rows, const RowRange& range, Compute<T>* to) {
  constexpr int64_t kAhead = 16;
  for (int64_t u = range.first; u < range.first + range.count; ++u) {
    if (u + kAhead < range.end) {
      const T* next = rows.row(range.unique, u + kAhead, range.width) + range.start;
      __builtin_prefetch(next, 1);
      __builtin_prefetch(next + range.columns - 1, 1);
    }
    Widen(rows.row(range.unique, u, range.width) + range.start, to, range.columns);
    to += range.columns;
  }
}

// A block of rows of one operand, in the compute type.
template <typename Rows>
class BlockOfRows;

template <typename T>
class BlockOfRows<VariableRows<T>> {
 public:
  explicit BlockOfRows(VariableRows<T> rows) : rows_(rows) {}
  InOut<Compute<T>> Load(const RowRange& range) {
    Gather<T>(rows_, range, buffer_);
    return {buffer_, buffer_};
  }
  void Store(const RowRange& range) {
    const Compute<T>* from = buffer_;
    for (int64_t u = range.first; u < range.first + range.count; ++u) {
      Narrow(from, rows_.data.out + range.unique.row(u) * range.width + range.start,
             range.columns);
      from += range.columns;
    }
  }

 private:
  VariableRows<T> rows_;
  Compute<T> buffer_[kRowBlock];
};

// What is only read.
template <typename T, template <typename> class Rows>
class BlockOfRows<Rows<T>> {
 public:
  explicit BlockOfRows(Rows<T> rows) : rows_(rows) {}
  In<Compute<T>> Load(const RowRange& range) {
    Gather<T>(rows_, range, buffer_);
    return {buffer_};
  }
  void Store(const RowRange&) {}

 private:
  Rows<T> rows_;
  Compute<T> buffer_[kRowBlock];
};

template <typename T>
class BlockOfRows<SummedRows<T>> {
 public:
  explicit BlockOfRows(SummedRows<T> rows) : rows_(rows) {}
  In<Compute<T>> Load(const RowRange& range) {
    if (!range.unique.duplicates()) {
      Gather<T>(GradientRows<T>{rows_.data}, range, buffer_);
      return {buffer_};
    }
    Compute<T>* to = buffer_;
    for (int64_t u = range.first; u < range.first + range.count; ++u) {
      SumRows(rows_.data, range.width, range.start, range.columns, range.unique.positions(u),
              range.unique.count(u), to);
      to += range.columns;
    }
    return {buffer_};
  }
  void Store(const RowRange&) {}

 private:
  SummedRows<T> rows_;
  Compute<T> buffer_[kRowBlock];
};

// Runs the rule over the unique rows [begin, end) of its operands, `width` elements each.
template <typename Rule, typename... Rows>
void ForRows(const UniqueRows& unique, int64_t begin, int64_t end, int64_t width, const Rule& rule,
             typename Rule::Sums* sums, Rows... rows) {
  std::tuple<BlockOfRows<Rows>...> blocks{BlockOfRows<Rows>(rows)...};
  const int64_t together = std::max<int64_t>(1, kRowBlock / std::max<int64_t>(1, width));
  for (int64_t first = begin; first < end; first += together) {
    const int64_t count = std::min(together, end - first);
    for (int64_t start = 0; start < width; start += kRowBlock) {
      const RowRange range{unique, first, count, end, width, start,
                           std::min(kRowBlock, width - start)};
      std::apply(
          [&](auto&... block) {
            rule(count * range.columns, sums, block.Load(range)...);
            (block.Store(range), ...);
          },
          blocks);
    }
  }
}

}  // namespace deepinsight

#endif  // DEEPINSIGHT_KERNELS_ROWS_H_
