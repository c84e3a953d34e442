// What the bindings need of torch, and no more: ATen/ATen.h alone would take as long again to read.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include "vectors.h"

namespace {

using at::Tensor;
using tenora::bf16;

template <typename T>
T* data(const Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

}  // namespace
