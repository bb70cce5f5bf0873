"""The reading of C++ that the limit on the length of functions rests on."""

import cpp_functions
import pytest

SOURCE = """\
#include <a.h>

namespace spgrad {
namespace {

// A comment with { and }.
template <class T, int kWidth = 2>
struct Sum {
  T total{};
  static constexpr int kNone = 0;

  Sum() = default;
  explicit Sum(T start) : total(start) {}

  Sum& operator+=(T value) {
    total += value;
    return *this;
  }

 private:
  template <class F>
  void each(const F& f) const {
    for (int i = 0; i < kWidth; ++i) {
      f([&](int j) { return j; });
    }
  }
};

inline constexpr Sum<int> kNothing{.total = 1};
constexpr auto kTwice = [](int i) { return 2 * i; };

#define BODY {                 \\
  return "}";

#if defined(SOME)
template <class R, class... A, R (*kernel)(A...)>
__attribute__((target("avx2"), flatten)) void run(
    const Sum<int>& sum) {
  // }
  const char* text = "{";
}
#else
void run(int) {}
#endif

}  // namespace

std::tuple<int, int> both(int a,
                          int b) {
  return {a, b};
}

STABLE_TORCH_LIBRARY_IMPL(spgrad, CPU, m) {
  m.impl("both", &both);
}

}  // namespace spgrad
"""
FUNCTIONS = [
    ("Sum", 13, 1),
    ("operator+=", 15, 4),
    ("each", 22, 5),
    ("run", 37, 5),
    ("run", 43, 1),
    ("both", 48, 4),
    ("STABLE_TORCH_LIBRARY_IMPL", 53, 3),
]


def test_functions_are_found(tmp_path):
    path = tmp_path / "some.cpp"
    path.write_text(SOURCE)
    assert cpp_functions.functions(path) == FUNCTIONS


@pytest.mark.parametrize("lines", [1, 2, 80])
def test_a_function_has_as_many_lines_as_it_has(lines, tmp_path):
    path = tmp_path / "some.h"
    path.write_text("int f() {" + "\n" * (lines - 1) + "}\n")
    assert cpp_functions.functions(path) == [("f", 1, lines)]
