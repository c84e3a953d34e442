#include "rope.h"

#include <algorithm>
#include <cstring>

namespace tenora {

namespace {

constexpr int64_t TASK_ELEMENTS = 4096;

// Calls work(rotate) for each run of dimensions; rotate(from, to) turns those of one head.
template <typename T, typename Work>
void by_angles(const float* cos, const float* sin, int64_t half, Work&& work) {
  by_vectors(0, half, [&](int64_t i, int64_t count) {
    const Lanes c = rounded<T>(load_up_to(cos + i, count));
    const Lanes s = rounded<T>(load_up_to(sin + i, count));
    work([&](const T* from, T* to) {
      const Lanes low = load_up_to(from + i, count);
      const Lanes high = load_up_to(from + half + i, count);
      store_up_to(to + i, rounded<T>(low * c) - rounded<T>(high * s), count);
      store_up_to(to + half + i, rounded<T>(high * c) + rounded<T>(low * s), count);
    });
  });
}

template <typename T>
void rotate_and_write_row(const RopeArguments<T>& p, int64_t row) {
  const KVPages<T>& pages = p.pages;
  const int64_t page = p.slots[row] / pages.block_tokens;
  const int64_t offset = p.slots[row] % pages.block_tokens;
  T* keys = pages.keys(page, p.layer) + offset * pages.line();
  T* values = keys + pages.block();
  const int64_t first = p.positions[row] * p.half;
  by_angles<T>(p.cos + first, p.sin + first, p.half, [&](auto&& rotate) {
    for (int64_t head = 0; head < p.heads; ++head) rotate(p.q.at(row, head), p.q.at(row, head));
    for (int64_t head = 0; head < pages.kv_heads; ++head)
      rotate(p.k.at(row, head), keys + head * pages.head_dim);
  });
  const int64_t rotary = 2 * p.half;
  for (int64_t head = 0; head < pages.kv_heads; ++head) {
    const int64_t at = head * pages.head_dim;
    std::memcpy(keys + at + rotary, p.k.at(row, head) + rotary,
                (pages.head_dim - rotary) * sizeof(T));
    std::memcpy(values + at, p.v.at(row, head), pages.head_dim * sizeof(T));
  }
}

}  // namespace

template <typename T>
void rope_and_write(Member& member, const RopeArguments<T>& p) {
  const int64_t width = (p.heads + 2 * p.pages.kv_heads) * p.pages.head_dim;
  const int64_t group = std::max<int64_t>(1, TASK_ELEMENTS / width);
  member.deal((p.rows + group - 1) / group, [&](int64_t task) {
    const int64_t end = std::min(p.rows, (task + 1) * group);
    for (int64_t row = task * group; row < end; ++row) rotate_and_write_row(p, row);
  });
}

template <typename T>
void rotate(Member& member, const HeadRows<T>& q, int64_t rows, int64_t heads, const float* cos,
            const float* sin, int64_t half, const int64_t* positions) {
  member.deal(rows, [&](int64_t row) {
    const int64_t first = positions[row] * half;
    by_angles<T>(cos + first, sin + first, half, [&](auto&& rotate) {
      for (int64_t head = 0; head < heads; ++head) rotate(q.at(row, head), q.at(row, head));
    });
  });
}

#define TENORA_ROTATE(T)                                                                       \
  template void rotate(Member&, const HeadRows<T>&, int64_t, int64_t, const float*, const float*, \
                       int64_t, const int64_t*);
TENORA_ROTATE(float)
TENORA_ROTATE(bf16)
#undef TENORA_ROTATE

template void rope_and_write<float>(Member&, const RopeArguments<float>&);
template void rope_and_write<bf16>(Member&, const RopeArguments<bf16>&);

}  // namespace tenora
