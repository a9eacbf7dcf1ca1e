// The rules against plain loops, the storage types and the rows of a sparse gradient.
// Built without TensorFlow; prints what is wrong and returns 1, or nothing and 0.
#include <cinttypes>
#include <cstdio>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "boosted.h"
#include "delay_compensated_gradient_descent.h"
#include "lars.h"
#include "unique_rows.h"

using namespace deepinsight;

namespace {

int failures = 0;
std::mt19937_64 generator(1);

#define EXPECT(condition, ...)                                         \
  do {                                                                 \
    if (!(condition) && ++failures <= 20) {                            \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);      \
      std::printf(__VA_ARGS__);                                        \
      std::printf("\n");                                               \
    }                                                                  \
  } while (false)

// ---- storage types ------------------------------------------------------------------------------

Half Round(float value, Half) { return ToHalf(value); }
BFloat16 Round(float value, BFloat16) { return ToBFloat16(value); }

// What a pattern means, from its exponent and fraction bits.
template <typename T>
double Meaning(uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  double value;
  if (exponent == (1 << exponent_bits) - 1) {
    value = fraction ? NAN : INFINITY;
  } else {
    value = std::ldexp(exponent ? fraction + (1 << fraction_bits) : fraction,
                       (exponent ? exponent : 1) - bias - fraction_bits);
  }
  return bits & 0x8000 ? -value : value;
}

template <typename T>
void StorageType(int exponent_bits, int fraction_bits) {
  std::vector<T> all(65536), back(65536);
  std::vector<float> wide(65536);
  for (int bits = 0; bits < 65536; ++bits) all[bits].bits = static_cast<uint16_t>(bits);
  Widen(all.data(), wide.data(), 65536);
  Narrow(wide.data(), back.data(), 65536);
  for (int bits = 0; bits < 65536; ++bits) {
    const float expected = static_cast<float>(Meaning<T>(bits, exponent_bits, fraction_bits));
    const bool nan = std::isnan(expected);
    for (const float found : {wide[bits], ToFloat(all[bits])}) {
      EXPECT(nan ? std::isnan(found) : FloatToBits(found) == FloatToBits(expected), "%x", bits);
    }
    for (const T found : {back[bits], Round(wide[bits], T{})}) {
      if (nan) {
        EXPECT(std::isnan(ToFloat(found)) && (found.bits >> 15) == bits >> 15, "%x", bits);
      } else {
        EXPECT(found.bits == bits, "%x -> %x", bits, found.bits);
      }
    }
  }
  // Between each number and the next (after the largest: where infinity would be): the middle goes
  // to the even pattern, what lies beside it to the nearer one.
  const int infinity = ((1 << exponent_bits) - 1) << fraction_bits;
  for (int bits = 0; bits < infinity; ++bits) {
    const double low = Meaning<T>(bits, exponent_bits, fraction_bits);
    const double step = low - (bits ? Meaning<T>(bits - 1, exponent_bits, fraction_bits) : 0);
    const double high = bits + 1 == infinity
                            ? low + step
                            : Meaning<T>(bits + 1, exponent_bits, fraction_bits);
    const float middle = static_cast<float>((low + high) / 2);
    const float given[] = {std::nextafterf(middle, -INFINITY), middle,
                           std::nextafterf(middle, INFINITY)};
    const int expected[] = {bits, bits + (bits & 1), bits + 1};
    for (int k = 0; k < 3; ++k) {
      for (const int sign : {0, 0x8000}) {
        // Eight equal ones take the way of whole vectors, the ninth the other.
        const std::vector<float> many(9, sign ? -given[k] : given[k]);
        T out[9];
        Narrow(many.data(), out, 9);
        for (const T one : out) {
          EXPECT(one.bits == (expected[k] | sign), "%a -> %x", many[0], one.bits);
        }
      }
    }
  }
  // Any float: the vectorised way is the scalar one.
  std::vector<float> floats(1 << 20);
  for (float& value : floats) value = BitsToFloat(static_cast<uint32_t>(generator()));
  std::vector<T> narrow(floats.size());
  Narrow(floats.data(), narrow.data(), floats.size());
  for (size_t i = 0; i < floats.size(); ++i) {
    const T expected = Round(floats[i], T{});
    const bool same = std::isnan(floats[i])
                          ? std::isnan(ToFloat(narrow[i])) && std::isnan(ToFloat(expected))
                          : narrow[i].bits == expected.bits;
    EXPECT(same, "%a -> %x, not %x", floats[i], narrow[i].bits, expected.bits);
  }
}

// ---- rows of a sparse gradient ------------------------------------------------------------------

template <typename Index>
void Rows() {
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t limit = 1 + generator() % 200, n = generator() % 100;
    std::vector<Index> indices(n);
    for (Index& index : indices) index = static_cast<Index>(generator() % limit);
    if (trial % 3 == 0) std::sort(indices.begin(), indices.end());
    if (trial % 6 == 0) {
      indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
    }
    std::map<int64_t, std::vector<int64_t>> expected;
    for (size_t i = 0; i < indices.size(); ++i) expected[indices[i]].push_back(i);
    UniqueRows unique;
    EXPECT(unique.Find(indices.data(), indices.size(), limit) == -1, "%d", trial);
    EXPECT(unique.size() == static_cast<int64_t>(expected.size()), "%d", trial);
    EXPECT(unique.duplicates() == (expected.size() < indices.size()), "%d", trial);
    for (int64_t u = 0; u < unique.size(); ++u) {
      const auto& positions = expected[unique.row(u)];
      const int64_t count = unique.count(u);
      EXPECT(count == static_cast<int64_t>(positions.size()), "%d", trial);
      EXPECT(unique.first(u) == positions[0], "%d", trial);
      for (int64_t k = 0; unique.duplicates() && k < count; ++k) {
        EXPECT(unique.positions(u)[k] == positions[k], "%d", trial);
      }
      expected.erase(unique.row(u));
    }
    EXPECT(expected.empty(), "%d", trial);
    if (indices.empty()) continue;
    const size_t place = generator() % indices.size();
    for (const Index bad : {Index(-1), Index(limit), std::numeric_limits<Index>::min(),
                            std::numeric_limits<Index>::max()}) {
      const Index kept = indices[place];
      indices[place] = bad;
      const int64_t found = UniqueRows().Find(indices.data(), indices.size(), limit);
      EXPECT(found == static_cast<int64_t>(place), "%" PRId64, found);
      indices[place] = kept;
    }
  }
}

// ---- rules --------------------------------------------------------------------------------------

template <typename T>
Compute<T> Get(T value) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    return value;
  } else {
    return ToFloat(value);
  }
}
template <typename T>
void Set(Compute<T> value, T* to) {
  if constexpr (std::is_same_v<T, Compute<T>>) {
    *to = value;
  } else {
    *to = Round(value, T{});
  }
}

template <typename T>
std::vector<T> Draw(int64_t n, bool positive) {
  std::normal_distribution<double> normal;
  std::vector<T> values(n);
  for (T& value : values) {
    const double drawn = normal(generator);
    Set(static_cast<Compute<T>>(positive ? drawn * drawn : drawn), &value);
  }
  return values;
}

// Arrays of one rule: var, slots, backup, grad.
template <typename T>
struct Arrays {
  std::vector<T> var, backup, grad;
  std::vector<std::vector<Compute<T>>> slots;
};

// Runs the rule over arrays in blocks and, by `expected`, element by element, and compares all bits.
// `apart`: results go to arrays of their own, and the inputs keep their values.
template <typename T, size_t... I, typename Rule, typename Expected>
typename Rule::Sums Check(int64_t n, bool apart, bool slot, bool has_backup, const Rule& rule,
                          const Expected& expected, const char* name,
                          std::index_sequence<I...>) {
  using C = Compute<T>;
  Arrays<T> a{Draw<T>(n, false), Draw<T>(n, false), Draw<T>(n, false), {}};
  for (size_t k = 0; k < sizeof...(I); ++k) a.slots.push_back(Draw<C>(n, true));
  const Arrays<T> before = a;
  Arrays<T> other = a, after = a;
  Arrays<T>& to = apart ? other : a;
  typename Rule::Sums sums{};
  const InOut<T> var{a.var.data(), to.var.data()}, backup{a.backup.data(), to.backup.data()};
  const In<T> grad{a.grad.data()}, snapshot{a.backup.data()};
  const auto run = [&](auto... rest) {
    ForBlocks(0, n, rule, &sums, var, InOut<C>{a.slots[I].data(), to.slots[I].data()}..., rest...,
              grad);
  };
  if constexpr (std::is_same_v<Rule, Lars<C>>) {
    run();
  } else if (slot) {
    run(backup);
  } else {
    run(snapshot);
  }
  for (int64_t i = 0; i < n; ++i) {
    std::array<C, sizeof...(I)> slots{before.slots[I][i]...};
    const C w = expected(Get(before.var[i]), slots.data(), Get(before.backup[i]),
                         Get(before.grad[i]));
    Set(w, &after.var[i]);
    if (has_backup && slot) Set(w, &after.backup[i]);
    ((after.slots[I][i] = slots[I]), ...);
  }
  const auto same = [&](const auto& x, const auto& y) {
    return std::memcmp(x.data(), y.data(), x.size() * sizeof x[0]) == 0;
  };
  EXPECT(same(to.var, after.var), "%s n=%" PRId64, name, n);
  EXPECT(same(to.backup, after.backup), "%s n=%" PRId64, name, n);
  for (size_t k = 0; k < sizeof...(I); ++k) {
    EXPECT(same(to.slots[k], after.slots[k]), "%s slot %zu n=%" PRId64, name, k, n);
    EXPECT(!apart || same(a.slots[k], before.slots[k]), "%s slot %zu", name, k);
  }
  EXPECT(!apart || same(a.var, before.var), "%s", name);
  EXPECT(same(a.grad, before.grad), "%s", name);
  return sums;
}

template <typename C>
C Clip(C rho) {
  return rho < -1 ? C(-1) : rho > 1 ? C(1) : rho;
}

template <typename T>
void Rules(int64_t n, bool apart, bool slot) {
  using C = Compute<T>;
  const C eta = C(0.05), lambda = C(0.5), d = C(0.9), one = 1;
  const auto check = [&](const char* name, auto slots, const auto& rule, const auto& expected,
                         bool has_backup = true) {
    return Check<T>(n, apart, slot, has_backup, rule, expected, name, slots);
  };
  const auto none = std::make_index_sequence<0>();
  const auto dc = check("delay compensated", none, DelayCompensated<C>{eta, lambda},
                        [&](C w, C*, C b, C g) {
                          return w - eta * (g * (one + lambda * g * (w - b)));
                        });
  EXPECT(dc[0] == double(n) && dc[4] == 0, "%g %g", dc[0], dc[4]);
  check("adaptive", std::make_index_sequence<1>(),
        AdaptiveDelayCompensated<C>{eta, lambda, d, C(1e-7)}, [&](C w, C* s, C b, C g) {
          s[0] = d * s[0] + (one - d) * (g * g);
          return w - eta * (g * (one + lambda / std::sqrt(s[0] + C(1e-7)) * g * (w - b)));
        });
  const Boost<C> boost{lambda, d, C(1e-12)};
  const auto boosted = [&](C w, C* s, C b, C g) {
    s[0] = d * s[0] + (one - d) * (g * (w - b));
    s[1] = d * s[1] + (one - d) * (g * g);
    s[2] = d * s[2] + (one - d) * ((w - b) * (w - b));
    const C rho = Clip(s[0] / (std::sqrt(s[1]) * std::sqrt(s[2]) + C(1e-12)));
    return g * (one + lambda * rho);
  };
  const auto sums = check("boosted", std::make_index_sequence<3>(),
                          Boosted<C, GradientDescent<C>>{boost, {eta}}, [&](C w, C* s, C b, C g) {
                            return w - boosted(w, s, b, g) * eta;
                          });
  EXPECT(sums[0] == double(n) && sums[2] <= 0.5 * sums[3] * 1.0001, "%g %g", sums[2], sums[3]);
  const C mu = C(0.8);
  for (const bool nesterov : {false, true}) {
    for (const bool sparse : {false, true}) {
      check("boosted momentum", std::make_index_sequence<4>(),
            Boosted<C, Momentum<C>>{boost, {eta, mu, nesterov, sparse}}, [&](C w, C* s, C b, C g) {
              g = boosted(w, s, b, g);
              s[3] = s[3] * mu + g;
              if (!nesterov) return w - s[3] * eta;
              return w - (g * eta + (sparse ? eta * mu * s[3] : s[3] * mu * eta));
            });
    }
    check(
        "lars", std::make_index_sequence<1>(), Lars<C>{eta, C(0.01), mu, nesterov},
        [&](C w, C* s, C, C g) {
          const C step = eta * (g + C(0.01) * w);
          s[0] = s[0] * mu + step;
          return w - (nesterov ? mu * s[0] + step : s[0]);
        },
        false);
  }
  check("boosted adagrad", std::make_index_sequence<4>(),
        Boosted<C, Adagrad<C>>{boost, {eta, C(1e-7)}}, [&](C w, C* s, C b, C g) {
          g = boosted(w, s, b, g);
          s[3] += g * g;
          return w - g * eta / (std::sqrt(s[3]) + C(1e-7));
        });
  const C alpha = eta * std::sqrt(one - C(0.75)) / (one - C(0.5));
  check("boosted adam", std::make_index_sequence<5>(),
        Boosted<C, Adam<C>>{boost, {eta, C(0.5), C(0.75), d, C(0.99), C(1e-7)}},
        [&](C w, C* s, C b, C g) {
          g = boosted(w, s, b, g);
          s[3] += (g - s[3]) * (one - d);
          s[4] += (g * g - s[4]) * (one - C(0.99));
          return w - s[3] * alpha / (std::sqrt(s[4]) + C(1e-7));
        });
}

void Sums() {
  const std::vector<float> w(3000, 1e30f), g(3000, -2e30f);
  SquaredNorms<float>::Sums sums{};
  ForBlocks(0, 3000, SquaredNorms<float>{}, &sums, In<float>{w.data()}, In<float>{g.data()});
  EXPECT(std::abs(sums[0] / 3e63 - 1) < 1e-6 && std::abs(sums[1] / 1.2e64 - 1) < 1e-6, "norms");
  EXPECT(TrustRatio(0.5, 0.25, 1, 4, 2) == 0.5 * 4 / (2 + 1 + 1), "trust");
  EXPECT(TrustRatio(0.5, 0.25, 0, 0, 2) == 1 && TrustRatio(0.5, 0.25, 0, 2, 0) == 1, "trust");
  EXPECT(std::isnan(TrustRatio(0.5, 0.25, 0, 1, NAN)), "trust");
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    EXPECT(NonFinite(bad) == 1, "%g", bad);
  }
  EXPECT(NonFinite(std::numeric_limits<float>::max()) == 0 && NonFinite(-0.0) == 0, "finite");
}

}  // namespace

int main() {
  StorageType<Half>(5, 10);
  StorageType<BFloat16>(8, 7);
  Rows<int32_t>();
  Rows<int64_t>();
  for (const int64_t n : {0, 1, 7, 8, 1023, 1024, 1025, 3001}) {
    for (const bool apart : {false, true}) {
      for (const bool slot : {false, true}) {
        Rules<float>(n, apart, slot);
        Rules<double>(n, apart, slot);
        Rules<Half>(n, apart, slot);
        Rules<BFloat16>(n, apart, slot);
      }
    }
  }
  Sums();
  if (failures) std::printf("%d failures\n", failures);
  return failures != 0;
}
