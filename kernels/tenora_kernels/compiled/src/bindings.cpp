// All that is bound to torch, as one unit: most of its compilation is torch's headers.

#include "decoder_bindings.h"
#include "draft_bindings.h"
#include "gemm_bindings.h"
#include "layer_bindings.h"
#include "sgmv_bindings.h"
