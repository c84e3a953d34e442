"""Run by the interpreter that has xllamacpp: llama.cpp's HTTP server until stdin ends."""

import argparse
import json
import sys

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapters", nargs="*", default=[])
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--context", type=int, required=True, help="tokens of a slot")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(a, 0.0) for a in options.adapters]
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = 0  # each prompt is new
    params.verbosity = -1
    server = xllamacpp.Server(params)
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
