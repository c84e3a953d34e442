// What a build's library offers to the tool that compares builds: plain C, so that any two fit.
#pragma once

#include <cstdint>

extern "C" {

// One batch, the same in every step: `sequences` of `rows` rows each, the last of their `context`
// tokens. All rows ask for their next token, or the last one of each sequence.
struct StepCase {
  int64_t sequences, rows, context;
  const int32_t* slots;  // [sequences], each one's adapter, negative where it has none
  const int32_t* ranks;  // [adapters], of all layers and modules
  int64_t adapters;
  int64_t layers;
  bool sgmv_alone;  // the adapters' updates of all layers and nothing else
  bool last_only;
};

struct StepHashes {
  uint64_t base_logits, logits, tokens;
};

// The base model's weights, packed, as bfloat16 or rounded to 8 bits. `layers` as in the cases that
// use it.
void* tenora_make_model(int64_t layers, bool int8);
void tenora_free_model(void* model);

// Pages with keys, values and adapters. `model` stays alive as long; null for sgmv alone.
void* tenora_make_case(void* model, const StepCase* step, int threads);
void tenora_free_case(void* made);

// Seconds of one step. Sgmv alone has no base step: 0.
double tenora_run_step(void* made, bool with_adapters);
StepHashes tenora_hash_step(void* made);
// Of the weights of all the case's adapters, each once.
int64_t tenora_adapter_bytes(void* made);
}
