"""Which tokens end a sequence is read in one place, as transformers reads it: the engine stops
where the text ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from fake_engine import write_byte_tokenizer
from tenora_engine.config import EngineConfig
from tenora_engine.errors import ModelLoadError
from tenora_engine.model.loader import read_model_info
from tenora_engine.text.processor import TextProcessor


def model_folder(folder: Path, config_eos: Any, generation: dict[str, Any] | None) -> Path:
    write_byte_tokenizer(folder)
    config = transformers.LlamaConfig(
        vocab_size=258,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=2,
        eos_token_id=config_eos,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


@pytest.mark.parametrize(
    ("config_eos", "generation", "expected"),
    [
        (7, {"eos_token_id": [11, 7, 13]}, (11, 7, 13)),  # Llama 3, Qwen 2.5: several
        (7, {"eos_token_id": 11}, (11,)),
        (7, {"temperature": 0.6}, (7,)),
        ([7, 9], None, (7, 9)),
        (None, None, ()),
    ],
)
def test_engine_and_text_end_where_transformers_does(
    tmp_path: Path, config_eos: Any, generation: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    folder = model_folder(tmp_path, config_eos, generation)
    engine = read_model_info(EngineConfig(model=str(folder), served_name="m")).eos_token_ids
    assert engine == TextProcessor(folder).eos_token_ids == expected
    if generation is not None and "eos_token_id" in generation:
        theirs = transformers.GenerationConfig.from_pretrained(folder).eos_token_id
        assert engine == tuple(theirs if isinstance(theirs, list) else [theirs])


@pytest.mark.parametrize("eos", ["</s>", [1.5], -1, [True]])
def test_what_is_no_token_id_is_a_clear_error(tmp_path: Path, eos: Any) -> None:
    folder = model_folder(tmp_path, 7, {"eos_token_id": eos})
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: eos_token_id must be"):
        TextProcessor(folder)
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: eos_token_id must be"):
        read_model_info(EngineConfig(model=str(folder), served_name="m"))
