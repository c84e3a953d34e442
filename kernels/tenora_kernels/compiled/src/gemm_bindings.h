// Packed weights and products on them as torch sees them.
#pragma once

#include <vector>

#include "gemm.h"
#include "huge_pages.h"
#include "torch_tensors.h"

namespace {

template <typename Float, typename Half>
void by_dtype(const Tensor& tensor, Float&& run_float, Half&& run_half) {
  if (tensor.scalar_type() == at::kFloat) {
    run_float();
  } else {
    TORCH_CHECK(tensor.scalar_type() == at::kBFloat16, "needs float32 or bfloat16");
    run_half();
  }
}

Tensor empty_in_huge_pages(int64_t elements, at::TensorOptions options) {
  const auto memory = tenora::in_huge_pages(elements * options.dtype().itemsize());
  return at::from_blob(memory.get(), {elements}, [memory](void*) {}, options);
}

Tensor pack_weight(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous() && weight.device().is_cpu(),
              "pack_weight: needs a dense [out, in] weight on the CPU");
  const int64_t out = weight.size(0), in = weight.size(1);
  TORCH_CHECK(in % 2 == 0, "pack_weight: needs an even number of inputs");
  Tensor packed = empty_in_huge_pages(tenora::packed_elements(out, in), weight.options());
  by_dtype(
      weight,
      [&] { tenora::pack_weight(weight.const_data_ptr<float>(), out, in, packed.data_ptr<float>()); },
      [&] {
        tenora::pack_weight(static_cast<const bf16*>(weight.const_data_ptr()), out, in,
                            static_cast<bf16*>(packed.data_ptr()));
      });
  return packed;
}

// [packed uint8, scales], filled up to whole panels.
std::vector<Tensor> quantise_weight(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.is_contiguous() && weight.device().is_cpu(),
              "quantise_weight: needs a dense [out, in] weight on the CPU");
  const int64_t out = weight.size(0), in = weight.size(1);
  TORCH_CHECK(in % 4 == 0, "quantise_weight: needs a multiple of 4 inputs");
  const int64_t filled = tenora::panels_of(out) * tenora::PANEL;
  Tensor packed = empty_in_huge_pages(filled * in, weight.options().dtype(at::kByte));
  Tensor scales = at::empty({filled}, weight.options().dtype(at::kFloat));
  const auto run = [&](auto* from) {
    tenora::quantise_weight(from, out, in, packed.data_ptr<uint8_t>(), scales.data_ptr<float>());
  };
  by_dtype(
      weight, [&] { run(weight.const_data_ptr<float>()); },
      [&] { run(static_cast<const bf16*>(weight.const_data_ptr())); });
  return {packed, scales};
}

template <typename T>
void run(const Tensor& y, const Tensor& x, const std::vector<Tensor>& packed,
         const std::optional<Tensor>& bias, bool add) {
  const int64_t rows = x.size(0), in = x.size(1);
  const bool quantised = packed.size() == 2;
  const tenora::PackedWeight<T> weight{
      packed[0].const_data_ptr(),
      bias ? static_cast<const T*>(bias->const_data_ptr()) : nullptr,
      y.size(1),
      in,
      quantised ? packed[1].const_data_ptr<float>() : nullptr};
  std::vector<int8_t> narrow(quantised ? rows * in : 0);
  std::vector<float> scales(quantised ? rows * tenora::groups_of(in) : 0);
  std::vector<int32_t> offsets(scales.size());
  const tenora::RowsOf<T> of{static_cast<const T*>(x.const_data_ptr()), x.stride(0), rows,
                             narrow.data(), scales.data(), offsets.data()};
  tenora::run_team(at::get_num_threads(), [&](tenora::Member& member) {
    if (quantised) {
      tenora::quantise_rows(member, of, in);
      member.barrier();
    }
    tenora::multiply(member, of, weight, static_cast<T*>(y.data_ptr()), y.stride(0), add);
  });
}

void packed_linear(const Tensor& y, const Tensor& x, const std::vector<Tensor>& packed,
                   const std::optional<Tensor>& bias, bool add) {
  TORCH_CHECK(packed.size() == 1 || packed.size() == 2, "packed_linear: wrong packed weight");
  const int64_t step = packed.size() == 2 ? 4 : 2;
  TORCH_CHECK(x.dim() == 2 && y.dim() == 2 && x.size(0) == y.size(0) && x.size(1) > 0 &&
                  x.size(1) % step == 0 && x.stride(1) == 1 && y.stride(1) == 1,
              "packed_linear: wrong shape or strides of x or y");
  for (const Tensor& part : packed)
    TORCH_CHECK(part.is_contiguous() && part.dim() == 1 && part.device().is_cpu(),
                "packed_linear: wrong packed weight");
  TORCH_CHECK(packed[0].size(0) == tenora::packed_elements(y.size(1), x.size(1)),
              "packed_linear: the packed weight is of another shape");
  const at::ScalarType kind = packed.size() == 2 ? at::kByte : x.scalar_type();
  const int64_t filled = tenora::panels_of(y.size(1)) * tenora::PANEL;
  TORCH_CHECK(packed.size() == 1 ||
                  (packed[1].size(0) == filled && packed[1].scalar_type() == at::kFloat),
              "packed_linear: wrong scales");
  TORCH_CHECK(!bias || (bias->is_contiguous() && bias->dim() == 1 && bias->size(0) == y.size(1) &&
                        bias->scalar_type() == x.scalar_type()),
              "packed_linear: wrong bias");
  TORCH_CHECK(y.scalar_type() == x.scalar_type() && packed[0].scalar_type() == kind &&
                  x.device().is_cpu() && y.device().is_cpu(),
              "packed_linear: dtypes or devices differ");
  by_dtype(
      x, [&] { run<float>(y, x, packed, bias, add); }, [&] { run<bf16>(y, x, packed, bias, add); });
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(tenora, library) {
  library.def("pack_weight(Tensor weight) -> Tensor");
  library.def("quantise_weight(Tensor weight) -> Tensor[]");
  library.def(
      "packed_linear(Tensor(a!) y, Tensor x, Tensor[] packed, Tensor? bias, bool add) -> ()");
}

TORCH_LIBRARY_IMPL(tenora, CPU, library) {
  library.impl("pack_weight", &pack_weight);
  library.impl("quantise_weight", &quantise_weight);
  library.impl("packed_linear", &packed_linear);
}
