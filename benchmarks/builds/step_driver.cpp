// Whole steps of a model of SmolLM2-135M's shape on one source tree's kernels; see driver.h.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <vector>

#include "adapters.h"
#include "decoder.h"
#include "driver.h"
#include "gemm.h"
#include "huge_pages.h"
#include "random.h"

namespace {

using tenora::bf16;

constexpr tenora::DecoderShape SHAPE{576, 1536, 9, 3, 64, 49152, 1e-5f, 0.125f};
constexpr int64_t MODEL_LAYERS = 30, BLOCK_TOKENS = 16, POSITIONS = 1024;
constexpr double ROPE_THETA = 100000;
constexpr bf16 ONE = 0x3f80;

// The time of day; with CLOCK=cpu the processor time of this process, which says what one thread
// costs on cores that others use too.
double now() {
  static const char* clock = std::getenv("CLOCK");
  static const bool cpu = clock && std::strcmp(clock, "cpu") == 0;
  if (cpu) {
    timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return spent.tv_sec + 1e-9 * spent.tv_nsec;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

template <typename Item>
uint64_t hash_of(const std::vector<Item>& items) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const Item item : items) hash = (hash ^ static_cast<uint64_t>(item)) * 0x100000001b3;
  return hash;
}

class Model {
 public:
  Model(int64_t layers, bool int8) : int8_(int8), norm_(SHAPE.hidden, ONE) {
    tenora::DecoderWeights<bf16> all{};
    const tenora::RopeTable turns = rope();
    for (int64_t layer = 0; layer < layers; ++layer)
      all.layers.push_back(
          {norm_.data(), nullptr, norm_.data(), nullptr, {}, {}, turns,
           packed(SHAPE.qkv_width(), SHAPE.hidden, Kind::Projection, layer, 0),
           packed(SHAPE.hidden, SHAPE.query_width(), Kind::Projection, layer, 1),
           packed(2 * SHAPE.intermediate, SHAPE.hidden, Kind::Projection, layer, 2),
           packed(SHAPE.hidden, SHAPE.intermediate, Kind::Projection, layer, 3)});
    all.final_norm = norm_.data();
    all.head = packed(SHAPE.vocab, SHAPE.hidden, Kind::Head, 0, 0);
    decoder_ = std::make_unique<tenora::Decoder<bf16>>(SHAPE, std::move(all));
  }

  tenora::Decoder<bf16>& decoder() { return *decoder_; }

 private:
  bool int8_;
  std::vector<bf16> norm_;
  std::vector<float> cos_, sin_;
  std::vector<std::shared_ptr<char>> memory_;
  std::unique_ptr<tenora::Decoder<bf16>> decoder_;

  tenora::PackedWeight<bf16> packed(int64_t out, int64_t in, Kind kind, int64_t layer,
                                    int64_t projection) {
    std::vector<bf16> plain(out * in);
#pragma omp parallel for
    for (int64_t row = 0; row < out; ++row)
      fill(&plain[row * in], in, name_of(kind, {layer, projection, row}), 1 / std::sqrt(in));
    const int64_t elements = tenora::packed_elements(out, in);
    if (int8_) {
      float* scales = reinterpret_cast<float*>(take(tenora::panels_of(out) * tenora::PANEL * 4));
      uint8_t* to = reinterpret_cast<uint8_t*>(take(elements));
      tenora::quantise_weight(plain.data(), out, in, to, scales);
      return {to, nullptr, out, in, scales};
    }
    bf16* to = reinterpret_cast<bf16*>(take(elements * sizeof(bf16)));
    tenora::pack_weight(plain.data(), out, in, to);
    return {to, nullptr, out, in};
  }

  char* take(int64_t bytes) {
    memory_.push_back(tenora::in_huge_pages(bytes));
    return memory_.back().get();
  }

  tenora::RopeTable rope() {
    const int64_t half = SHAPE.head_dim / 2;
    for (int64_t position = 0; position < POSITIONS; ++position)
      for (int64_t i = 0; i < half; ++i) {
        const double angle = position * std::pow(ROPE_THETA, -2.0 * i / SHAPE.head_dim);
        cos_.push_back(static_cast<float>(std::cos(angle)));
        sin_.push_back(static_cast<float>(std::sin(angle)));
      }
    return {cos_.data(), sin_.data(), half};
  }
};

// Numbers of the arena's pages in shuffled order.
std::vector<int64_t> shuffled(int64_t count) {
  std::vector<int64_t> pages(count);
  std::iota(pages.begin(), pages.end(), 0);
  for (int64_t i = count - 1; i > 0; --i)
    std::swap(pages[i], pages[name_of(Kind::Pages, {i}) % (i + 1)]);
  return pages;
}

struct Case {
  virtual ~Case() = default;
  virtual double run(bool with_adapters) = 0;
  virtual StepHashes hash() = 0;
  virtual int64_t adapter_bytes() const = 0;
};

class WholeStep : public Case {
 public:
  WholeStep(Model& model, const StepCase& step, int threads)
      : decoder_(model.decoder()),
        threads_(threads),
        adapters_(SHAPE, step.layers, step.ranks, step.adapters) {
    const int64_t block = BLOCK_TOKENS * SHAPE.kv_width(), page = step.layers * 2 * block;
    const int64_t blocks = (step.context + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    const int64_t kv_pages = step.sequences * blocks;
    const int64_t num_pages = kv_pages + adapters_.num_pages(page);
    const std::vector<int64_t> pages = shuffled(num_pages);
    arena_ = tenora::in_huge_pages(num_pages * page * sizeof(bf16));
    bf16* pool = reinterpret_cast<bf16*>(arena_.get());
#pragma omp parallel for
    for (int64_t i = 0; i < kv_pages; ++i)
      fill(pool + pages[i] * page, page, name_of(Kind::Context, {i / blocks, i % blocks}), 1);
    adapters_.write(pool, page, pages.data() + kv_pages);
    block_table_.assign(pages.begin(), pages.begin() + kv_pages);
    add_rows(step, blocks);
    inputs_ = {static_cast<int64_t>(tokens_.size()),
               tokens_.data(),
               positions_.data(),
               slots_.data(),
               row_slot_.data(),
               adapters_.table(),
               {pool, step.layers, BLOCK_TOKENS, SHAPE.kv_heads, SHAPE.head_dim},
               {query_start_.data(), context_len_.data(), block_table_.data(), step.sequences,
                blocks, num_pages},
               wanted_.data(),
               static_cast<int64_t>(wanted_.size())};
    found_.resize(wanted_.size());
  }

  double run(bool with_adapters) override {
    inputs_.row_slot = (with_adapters ? row_slot_ : no_slot_).data();
    const double start = now();
    decoder_.next_tokens(inputs_, found_.data(), threads_);
    return now() - start;
  }

  StepHashes hash() override {
    std::vector<bf16> logits(wanted_.size() * SHAPE.vocab);
    const auto hash_logits = [&](const std::vector<int32_t>& row_slot) {
      inputs_.row_slot = row_slot.data();
      decoder_.next_logits(inputs_, logits.data(), threads_);
      return hash_of(logits);
    };
    StepHashes hashes{hash_logits(no_slot_), hash_logits(row_slot_), 0};
    run(true);
    hashes.tokens = hash_of(found_);
    return hashes;
  }

  int64_t adapter_bytes() const override { return adapters_.bytes(); }

 private:
  tenora::Decoder<bf16>& decoder_;
  int threads_;
  Adapters adapters_;
  std::shared_ptr<char> arena_;
  std::vector<int64_t> tokens_, positions_, slots_, wanted_, found_;
  std::vector<int32_t> row_slot_, no_slot_, query_start_{0}, context_len_, block_table_;
  tenora::StepInputs<bf16> inputs_{};

  void add_rows(const StepCase& step, int64_t blocks) {
    for (int64_t sequence = 0; sequence < step.sequences; ++sequence) {
      for (int64_t position = step.context - step.rows; position < step.context; ++position) {
        const int64_t block = block_table_[sequence * blocks + position / BLOCK_TOKENS];
        if (!step.last_only || position + 1 == step.context) wanted_.push_back(tokens_.size());
        tokens_.push_back(name_of(Kind::Token, {sequence, position}) % SHAPE.vocab);
        positions_.push_back(position);
        slots_.push_back(block * BLOCK_TOKENS + position % BLOCK_TOKENS);
        row_slot_.push_back(step.slots[sequence]);
      }
      query_start_.push_back(static_cast<int32_t>(tokens_.size()));
      context_len_.push_back(static_cast<int32_t>(step.context));
    }
    no_slot_.assign(row_slot_.size(), -1);
  }
};

// The four calls of each layer one after another, each in a region of its own, on adapters in pages
// of the whole model's size: what `tenora bench kernels` times.
class SgmvAlone : public Case {
 public:
  SgmvAlone(const StepCase& step, int threads)
      : layers_(step.layers),
        rows_(step.sequences),
        threads_(threads),
        adapters_(SHAPE, step.layers, step.ranks, step.adapters),
        row_slot_(step.slots, step.slots + step.sequences) {
    const int64_t page = MODEL_LAYERS * 2 * BLOCK_TOKENS * SHAPE.kv_width();
    const int64_t num_pages = adapters_.num_pages(page);
    arena_ = tenora::in_huge_pages(num_pages * page * sizeof(bf16));
    adapters_.write(reinterpret_cast<bf16*>(arena_.get()), page, shuffled(num_pages).data());
    const int64_t hidden = SHAPE.hidden, inner = SHAPE.intermediate;
    const int64_t query = SHAPE.query_width(), kv = SHAPE.kv_width();
    calls_ = {{hidden, {{0, 0, query}, {1, query, kv}, {2, query + kv, kv}}},
              {query, {{3, 0, hidden}}},
              {hidden, {{4, 0, inner}, {5, inner, inner}}},
              {inner, {{6, 0, hidden}}}};
    for (Call& call : calls_) {
      const tenora::Slice& last = call.slices.back();
      call.width = last.column + last.width;
      call.x.resize(rows_ * call.in);
      fill(call.x.data(), rows_ * call.in, name_of(Kind::Input, {call.in}), 1);
      call.y.resize(rows_ * call.width);
    }
  }

  double run(bool with_adapters) override {
    if (!with_adapters) return 0;
    const double start = now();
    for (int64_t layer = 0; layer < layers_; ++layer)
      for (Call& call : calls_) update(layer, call);
    return now() - start;
  }

  StepHashes hash() override {
    for (Call& call : calls_) std::fill(call.y.begin(), call.y.end(), 0);
    run(true);
    std::vector<bf16> all;
    for (const Call& call : calls_) all.insert(all.end(), call.y.begin(), call.y.end());
    return {0, hash_of(all), 0};
  }

  int64_t adapter_bytes() const override { return adapters_.bytes(); }

 private:
  struct Call {
    int64_t in;
    std::vector<tenora::Slice> slices;
    int64_t width = 0;
    std::vector<bf16> x{}, y{};
  };
  int64_t layers_, rows_;
  int threads_;
  Adapters adapters_;
  std::vector<int32_t> row_slot_;
  std::shared_ptr<char> arena_;
  std::vector<Call> calls_;
  tenora::Sgmv sgmv_;

  void update(int64_t layer, Call& call) {
    const tenora::LoraLinear linear{layer, call.in, call.slices.data(),
                                    static_cast<int64_t>(call.slices.size())};
    sgmv_.begin(adapters_.table(), row_slot_.data(), rows_, threads_);
    tenora::run_team(threads_, [&](tenora::Member& member) {
      sgmv_.shrink(member, linear, call.x.data(), call.in);
      member.barrier();
      sgmv_.expand(member, linear, call.y.data(), call.width);
    });
  }
};

}  // namespace

void* tenora_make_model(int64_t layers, bool int8) { return new Model(layers, int8); }
void tenora_free_model(void* model) { delete static_cast<Model*>(model); }

void* tenora_make_case(void* model, const StepCase* step, int threads) {
  Case* made;
  if (step->sgmv_alone)
    made = new SgmvAlone(*step, threads);
  else
    made = new WholeStep(*static_cast<Model*>(model), *step, threads);
  return made;
}
void tenora_free_case(void* made) { delete static_cast<Case*>(made); }

double tenora_run_step(void* made, bool with_adapters) {
  return static_cast<Case*>(made)->run(with_adapters);
}
StepHashes tenora_hash_step(void* made) { return static_cast<Case*>(made)->hash(); }
int64_t tenora_adapter_bytes(void* made) { return static_cast<Case*>(made)->adapter_bytes(); }
