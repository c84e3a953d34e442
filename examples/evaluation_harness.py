"""lm-evaluation-harness against a Tenora that runs, beside transformers + peft on the same tasks.

Two small tasks of what the support adapters were taught: which of the answers fits a question
(multiple choice), and how likely the right one is (perplexity). Needs `pip install lm_eval[api]`,
which is no part of Tenora's own setup, and a server with `--dtype float32` for equal numbers.

    python examples/evaluation_harness.py --url http://127.0.0.1:8080 --key tn_... \
        --base SmolLM2-135M-Instruct --model .data/models/SmolLM2-135M-Instruct \
        --adapter support=examples/adapters/acme-support
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "held_out" / "acme-support.jsonl"
CHOICES = 4
COMMON = """
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
target_delimiter: " "
num_fewshot: 0
"""
TASKS = {
    "tenora_choice": """
task: tenora_choice
output_type: multiple_choice
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list:
  - metric: acc
  - metric: acc_norm
""",
    "tenora_answer": """
task: tenora_answer
output_type: loglikelihood
doc_to_target: "{{choices[gold]}}"
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
  - metric: acc
""",
}


def write_tasks(folder: Path) -> None:
    asked = [json.loads(line) for line in DATA.read_text().splitlines()]
    answers = sorted({each["expect"][0] for each in asked})
    data = folder / "questions.jsonl"
    with data.open("w") as file:
        for each in asked:
            right = answers.index(each["expect"][0])
            choices = sorted(answers[(right + more) % len(answers)] for more in range(CHOICES))
            gold = choices.index(each["expect"][0])
            row = {"question": each["question"], "choices": choices, "gold": gold}
            file.write(json.dumps(row) + "\n")
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(task + COMMON.format(data=data))


def scores(folder: Path, model: str, arguments: dict[str, Any]) -> dict[str, dict[str, float]]:
    import lm_eval  # type: ignore[import-not-found]
    from lm_eval.tasks import TaskManager  # type: ignore[import-not-found]

    found = lm_eval.simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=list(TASKS),
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        batch_size=1,
        bootstrap_iters=0,
    )
    return {
        task: {
            name.partition(",")[0]: value
            for name, value in results.items()
            if isinstance(value, float) and "stderr" not in name
        }
        for task, results in found["results"].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True)
    parser.add_argument("--key", required=True)
    parser.add_argument("--base", required=True, help="the base model's name at the server")
    parser.add_argument("--model", required=True, type=Path, help="its Hugging Face folder")
    parser.add_argument("--adapter", action="append", default=[], help="NAME=FOLDER")
    args = parser.parse_args()
    os.environ["OPENAI_API_KEY"] = args.key
    asked = [(args.base, None), *(each.split("=", 1) for each in args.adapter)]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_tasks(folder)
        for name, adapter in asked:
            served = scores(
                folder,
                "local-completions",
                {
                    "model": name,
                    "base_url": f"{args.url}/v1/completions",
                    "tokenizer": str(args.model),
                    "num_concurrent": 4,
                },
            )
            local: dict[str, Any] = {"pretrained": str(args.model), "dtype": "float32"}
            if adapter is not None:
                local["peft"] = adapter
            expected = scores(folder, "hf", {**local, "device": "cpu"})
            for task, metrics in expected.items():
                for metric, value in metrics.items():
                    print(f"{name} {task} {metric}: served {served[task][metric]}, local {value}")


if __name__ == "__main__":
    main()
