// Compiles the sums of small products apart from their callers, which are compiled for each type of
// indices. A call takes a few nanoseconds, and computes a block or a line of blocks.
#include "products/blocks/small_products.h"

#include "common/targets.h"
#include "products/blocks/small_dots.h"

namespace spgrad {

template <int kBytes, class T>
void add_small_products(const SmallProducts<T>& a) {
  with_registers<kBytes>([&]<int kSame>() {
    constexpr int kElements = kFull<T, kSame>;
    a.turned ? small_products<kElements, 4, true>(a) : small_products<kElements, 4, false>(a);
  });
}

// If W is stored column by column, a vector holds consecutive elements of a column of W: W is then
// the second factor of a product with one row.
template <int kBytes, class T>
void add_to_column(const SmallProducts<T>& a, Factors<T>* swapped) {
  with_registers<kBytes>([&]<int kSame>() {
    constexpr int kElements = kFull<T, kSame>;
    if (!a.turned) return small_dots<kElements>(a);
    for (int64_t p = 0; p < a.count; ++p) swapped[p] = {a.factors[p].x, a.factors[p].w};
    small_products<kElements, 4, false>(SmallProducts<T>{
        .factors = swapped,
        .count = a.count,
        .rows = 1,
        .inner = a.inner,
        .columns = a.rows,
        .w_step = a.inner,
        .turned = false,
        .x_step = a.w_step,
        .out = a.out,
        .out_step = a.rows,
    });
  });
}

#define SPGRAD_SMALL_PRODUCTS(kBytes)                                                \
  template void add_small_products<kBytes>(const SmallProducts<float>&);             \
  template void add_small_products<kBytes>(const SmallProducts<double>&);            \
  template void add_to_column<kBytes>(const SmallProducts<float>&, Factors<float>*); \
  template void add_to_column<kBytes>(const SmallProducts<double>&, Factors<double>*);
SPGRAD_EACH_WIDTH(SPGRAD_SMALL_PRODUCTS)

}  // namespace spgrad
