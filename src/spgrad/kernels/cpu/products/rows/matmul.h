// The host functions of the matmul family, for the kernels that are made of them.
#pragma once

#include <optional>
#include <tuple>

#include "common/memory.h"

namespace spgrad {

// The kernels of these names: they check their arguments and allocate their results. The contracts
// are in spmm.h, sddmm.h and one_pass/spmm_sddmm.h.
Tensor spmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
            const Tensor& val, const Tensor& x);
Tensor sddmm(const Tensor& ptr, const Tensor& idx, const std::optional<Tensor>& perm,
             const Tensor& g, const Tensor& x);
std::tuple<Tensor, Tensor> spmm_sddmm(const Tensor& ptr, const Tensor& idx,
                                      const std::optional<Tensor>& perm, const Tensor& val,
                                      const Tensor& g, const Tensor& x);

}  // namespace spgrad
