"""Run by the interpreter that has openvino-genai: a line of JSON in, one out, a round."""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

KV_GIB = 1
SCALE = 2.0  # alpha / rank of the benchmark's adapters


def tensor(prompt: list[int]) -> Any:
    return openvino.Tensor(np.array([prompt], dtype=np.int64))


class Pipeline:
    def __init__(self, model: str, adapters: list[str], step_tokens: int, threads: int) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = KV_GIB
        scheduler.max_num_batched_tokens = step_tokens
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        self.adapters = {}
        if adapters:
            every = genai.AdapterConfig()
            for folder in adapters:
                adapter = genai.Adapter(f"{folder}/adapter_model.safetensors")
                self.adapters[folder.rsplit("/", 1)[-1]] = adapter
                every.add(adapter, SCALE)
            properties["adapters"] = every
        self.pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def config(self, output_tokens: int, adapter: str | None) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        if self.adapters:
            chosen = [] if adapter is None else [(self.adapters[adapter], SCALE)]
            config.adapters = genai.AdapterConfig(chosen)
        return config

    def base_round(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """A closed loop over the batching pipeline, `streams` requests in it."""
        if self.adapters:  # those of the last `generate` stay in force
            self.pipeline.generate([tensor(message["prompts"][0][:4])], [self.config(1, None)])
        waiting = list(enumerate(zip(message["prompts"], message["output_tokens"], strict=True)))
        running: dict[int, Any] = {}
        sent: dict[int, float] = {}
        times: list[list[float]] = [[] for _ in waiting]
        waiting.reverse()
        while waiting or running:
            while waiting and len(running) < message["streams"]:
                number, (prompt, output_tokens) = waiting.pop()
                sent[number] = time.monotonic()
                running[number] = self.pipeline.add_request(
                    number, tensor(prompt), self.config(output_tokens, None)
                )
            self.pipeline.step()
            now = time.monotonic()
            for number, handle in list(running.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        times[number] += [now] * len(output.generated_ids)
                if len(times[number]) >= message["output_tokens"][number]:
                    del running[number]
        return [
            {
                "sent_s": sent[number],
                "first_token_s": own[0],
                "finished_s": own[-1],
                "output_tokens": len(own),
            }
            for number, own in enumerate(times)
        ]

    def mixed_round(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Requests one after another: a batch has one adapter. Each is sent when the one `streams`
        before it has ended."""
        ends = [time.monotonic()] * message["streams"]
        answers: list[dict[str, Any]] = []
        for prompt, adapter, output_tokens in zip(
            message["prompts"], message["adapters"], message["output_tokens"], strict=True
        ):
            begin = time.monotonic()
            result = self.pipeline.generate(
                [tensor(prompt)], [self.config(output_tokens, adapter)]
            )[0]
            ends.append(time.monotonic())
            answers.append(
                {
                    "sent_s": ends[len(answers)],
                    "first_token_s": begin + result.perf_metrics.get_ttft().mean / 1e3,
                    "finished_s": ends[-1],
                    "output_tokens": len(result.m_generation_ids[0]),
                }
            )
        return answers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapters", nargs="*", default=[])
    parser.add_argument("--step-tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    pipeline = Pipeline(options.model, options.adapters, options.step_tokens, options.threads)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        mixed = any(message["adapters"])
        answer = pipeline.mixed_round(message) if mixed else pipeline.base_round(message)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
