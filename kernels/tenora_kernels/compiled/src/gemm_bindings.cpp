// Packed weights and products on them as torch sees them.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>

#include "gemm.h"

namespace {

using at::Tensor;
using tenora::bf16;

template <typename Float, typename Half>
void by_dtype(const Tensor& tensor, Float&& run_float, Half&& run_half) {
  if (tensor.scalar_type() == at::kFloat) {
    run_float();
  } else {
    TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "needs float32 or bfloat16");
    run_half();
  }
}

Tensor pack_weight(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous() && weight.device().is_cpu(),
              "pack_weight: needs a dense [out, in] weight on the CPU");
  const int64_t out = weight.size(0), in = weight.size(1);
  TORCH_CHECK(in % 2 == 0, "pack_weight: needs an even number of inputs");
  Tensor packed = at::empty({tenora::packed_elements(out, in)}, weight.options());
  by_dtype(
      weight,
      [&] { tenora::pack_weight(weight.const_data_ptr<float>(), out, in, packed.data_ptr<float>()); },
      [&] {
        tenora::pack_weight(static_cast<const bf16*>(weight.const_data_ptr()), out, in,
                            static_cast<bf16*>(packed.data_ptr()));
      });
  return packed;
}

template <typename T>
void run(const Tensor& y, const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias,
         bool add) {
  const tenora::PackedWeight<T> weight{
      static_cast<const T*>(packed.const_data_ptr()),
      bias ? static_cast<const T*>(bias->const_data_ptr()) : nullptr, y.size(1), x.size(1)};
  tenora::run_team(at::get_num_threads(), [&](tenora::Member& member) {
    tenora::multiply(member, static_cast<const T*>(x.const_data_ptr()), x.stride(0), x.size(0),
                     weight, static_cast<T*>(y.data_ptr()), y.stride(0), add);
  });
}

void packed_linear(const Tensor& y, const Tensor& x, const Tensor& packed,
                   const std::optional<Tensor>& bias, bool add) {
  TORCH_CHECK(x.dim() == 2 && y.dim() == 2 && x.size(0) == y.size(0) && x.size(1) % 2 == 0 &&
                  x.stride(1) == 1 && y.stride(1) == 1,
              "packed_linear: wrong shape or strides of x or y");
  TORCH_CHECK(packed.is_contiguous() && packed.dim() == 1 &&
                  packed.size(0) == tenora::packed_elements(y.size(1), x.size(1)),
              "packed_linear: the packed weight is of another shape");
  TORCH_CHECK(!bias || (bias->is_contiguous() && bias->dim() == 1 && bias->size(0) == y.size(1) &&
                        bias->scalar_type() == x.scalar_type()),
              "packed_linear: wrong bias");
  TORCH_CHECK(y.scalar_type() == x.scalar_type() && packed.scalar_type() == x.scalar_type() &&
                  x.device().is_cpu() && y.device().is_cpu() && packed.device().is_cpu(),
              "packed_linear: dtypes or devices differ");
  by_dtype(
      x, [&] { run<float>(y, x, packed, bias, add); }, [&] { run<bf16>(y, x, packed, bias, add); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tenora, library) {
  library.def("pack_weight(Tensor weight) -> Tensor");
  library.def(
      "packed_linear(Tensor(a!) y, Tensor x, Tensor packed, Tensor? bias, bool add) -> ()");
}

TORCH_LIBRARY_IMPL(tenora, CPU, library) {
  library.impl("pack_weight", &pack_weight);
  library.impl("packed_linear", &packed_linear);
}
