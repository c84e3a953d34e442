"""Text: the rebuilt tokenizer and chat template against independent ones, and the incremental
detokenizer against decoding everything at once."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from tenora_engine.errors import InvalidRequestError, ModelLoadError
from tenora_engine.model.default_model import ensure_default_model, find_gguf
from tenora_engine.text.chat_template import ChatTemplate
from tenora_engine.text.detokenizer import IncrementalDetokenizer
from tenora_engine.text.processor import TextProcessor

TEXTS = [
    "Hello, world!",
    "In 2024, 1234567890 people paid $3.14159 (or 2,718.28) on 01/02/1999 at 23:59:59.",
    "x=0x1F; y=1e-10; z=007 1a2b3c ١٢٣ ४५६ ²³ ½ Ⅷ",
    "naïve café Ærøskøbing Straße ÇŞĞ e\u0301 ﬁ",
    "日本語のテキスト、中文文本。한국어 텍스트 ไทย עברית العربية हिन्दी",
    "🎉👩‍👩‍👧‍👦🏳️‍🌈 ok 👍🏽 \U0001f600\U0001f600",
    "def f(x):\n\treturn {k: v**2 for k, v in x.items()}  # comment\n\n\nclass A:\n    pass\n",
    "  leading,  double   triple    spaces and trailing   ",
    "\n\n\n\t\t mixed \r\n line ends \r and \x0b \x0c \u00a0 \u2003 \u3000 spaces\n",
    "don't we'll I'VE they'd it's 'quoted' ''double'' O'Neil",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<|endoftext|><repo_name>a<file_sep>",
    "<|im_end |> <|im_start <repo-name> <|",
    "https://example.org/a/b?c=d&e=%20f#g mail@example.org C:\\dir\\file.txt",
    '{"a": [1, 2.5, null, true], "b": {"c": "\\u00e9\\n"}}',
    "SELECT * FROM t WHERE a >= 10 AND b != 'x' -- done",
    "Καλημέρα κόσμε! Здравствуй, мир! Ελλάδα 2004",
    "\u200b zero\u200dwidth\ufeff and \u202eright to left",
    "a" * 300 + "1" * 50 + "!" * 70,
    "",
]


@pytest.fixture(scope="session")
def text(base_model_dir: Path) -> TextProcessor:
    return TextProcessor(base_model_dir)


LLAMA_CPP = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 64, 1, 1
params.warmup, params.verbosity = False, -1
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def llama_cpp_encode() -> Iterator[Callable[[str], list[int]]]:
    """llama.cpp's own tokenizer on the GGUF that our tokenizer was rebuilt from, in a process of
    its own: its module and that which shapes letters in PDFs are of two versions of Cython."""
    command = [sys.executable, "-c", LLAMA_CPP, str(find_gguf())]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = next(line for line in server.stdout if line.startswith("http")).strip()

    def encode(content: str) -> list[int]:
        body = {"content": content, "add_special": False, "parse_special": True}
        request = urllib.request.Request(
            address + "/tokenize",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            tokens: list[int] = json.load(answer)["tokens"]
        return tokens

    yield encode
    server.communicate()  # its input ends, and it with it


@pytest.fixture(scope="session")
def transformers_tokenizer(base_model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(base_model_dir)


@pytest.mark.parametrize("sample", TEXTS, ids=range(len(TEXTS)))
def test_ids_equal_llama_cpp(
    text: TextProcessor, llama_cpp_encode: Callable[[str], list[int]], sample: str
) -> None:
    assert text.encode(sample) == llama_cpp_encode(sample)


def test_ids_equal_llama_cpp_on_this_repository(
    text: TextProcessor, llama_cpp_encode: Callable[[str], list[int]]
) -> None:
    for file in sorted((Path(__file__).parents[2] / "engine").rglob("*.py"))[:12]:
        sample = file.read_text()
        assert text.encode(sample) == llama_cpp_encode(sample), file.name


@pytest.mark.parametrize("sample", TEXTS, ids=range(len(TEXTS)))
def test_ids_equal_transformers_on_the_folder(
    text: TextProcessor, transformers_tokenizer: Any, sample: str
) -> None:
    assert text.encode(sample) == transformers_tokenizer.encode(sample)


@pytest.mark.parametrize("sample", TEXTS, ids=range(len(TEXTS)))
def test_round_trip(text: TextProcessor, sample: str) -> None:
    assert text.decode(text.encode(sample), skip_special=False) == sample


# The model's vocabulary has no token for a few bytes: 0xF1 and 0xF2, which lead planes 4 to
# 11, and some control characters.
TEXT = st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"])


@given(sample=st.text(TEXT, max_size=200))
def test_round_trip_of_any_text(text: TextProcessor, sample: str) -> None:
    assert text.decode(text.encode(sample), skip_special=False) == sample


def test_digits_stand_alone(text: TextProcessor) -> None:
    pieces = [text.token_text(token_id) for token_id in text.encode("12345 and 2024")]
    assert pieces == ["1", "2", "3", "4", "5", " and", " ", "2", "0", "2", "4"]


def test_special_tokens(text: TextProcessor, transformers_tokenizer: Any) -> None:
    assert text.eos_token_ids == (2,)
    assert text.encode("<|im_end|>") == [2]
    assert text.token_bytes(2) == b"<|im_end|>"
    assert text.decode([2]) == ""
    assert text.vocab_size == 49152
    assert transformers_tokenizer.eos_token == "<|im_end|>"
    assert transformers_tokenizer.bos_token == "<|im_start|>"
    assert transformers_tokenizer.pad_token_id == 2


CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is 12345 + 1?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi 🎉\n"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": " b "},
        {"role": "user", "content": "<b>'c' & \"d\"</b>"},
    ],
]


@pytest.mark.parametrize("messages", CONVERSATIONS, ids=range(len(CONVERSATIONS)))
@pytest.mark.parametrize("prompted", [True, False])
def test_chat_template_equals_transformers(
    text: TextProcessor,
    transformers_tokenizer: Any,
    messages: list[dict[str, str]],
    prompted: bool,
) -> None:
    expected = transformers_tokenizer.apply_chat_template(
        messages, add_generation_prompt=prompted, return_dict=False
    )
    assert text.encode_chat(messages, add_generation_prompt=prompted) == expected


RICH_TEMPLATE = """{{ bos_token }}{% for m in messages %}
    {%- if m.role not in ['user', 'assistant'] %}{{ raise_exception('no role ' + m.role) }}{% endif %}
    {%- if m.skip %}{% continue %}{% endif %}
    {% generation %}{{ m | tojson(indent=1) }}{% endgeneration %}
{% endfor %}
{{ strftime_now('%%') }}{{ eos_token }}{{ tools | tojson }}{{ flavour }}"""  # noqa: E501


def test_rich_template_equals_transformers(transformers_tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(RICH_TEMPLATE)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}})
    )
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "<é>"},
        {"role": "user", "content": "x", "skip": True},
        {"role": "assistant", "content": "y"},
    ]
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    ours = ChatTemplate.require(ChatTemplate.read(tmp_path)).render(
        messages, tools=[tool], add_generation_prompt=False, flavour="sweet"
    )
    theirs = transformers_tokenizer.apply_chat_template(
        messages, tools=[tool], chat_template=RICH_TEMPLATE, tokenize=False, flavour="sweet"
    )
    assert ours == theirs


def test_template_errors_name_the_messages(text: TextProcessor, tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text(RICH_TEMPLATE)
    template = ChatTemplate.require(ChatTemplate.read(tmp_path))
    with pytest.raises(InvalidRequestError, match="no role tool") as caught:
        template.render([{"role": "tool", "content": ""}], tools=None)
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequestError) as caught:
        text.encode_chat([{"role": "user", "content": None}])
    assert caught.value.param == "messages"
    with pytest.raises(InvalidRequestError, match="no chat template"):
        ChatTemplate.require(None)


def test_template_is_sandboxed(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    template = ChatTemplate.require(ChatTemplate.read(tmp_path))
    with pytest.raises(InvalidRequestError, match="unsafe"):
        template.render([{"role": "user", "content": ""}])


def test_folder_without_tokenizer_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json"):
        TextProcessor(tmp_path)


def test_text_imports_no_torch() -> None:
    code = "import sys, tenora_engine.text.processor; print(int('torch' in sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout
    assert output.split() == [b"0"]


def test_default_model_is_converted_once(base_model_dir: Path) -> None:
    before = (base_model_dir / "model.safetensors").stat().st_mtime_ns
    assert ensure_default_model(base_model_dir.parents[1]) == base_model_dir
    assert (base_model_dir / "model.safetensors").stat().st_mtime_ns == before
    assert not list(base_model_dir.parent.glob(".*"))


def stream(
    detokenizer: IncrementalDetokenizer, token_ids: list[int], cuts: list[int]
) -> tuple[str, str | None, int]:
    """Push the ids in pieces cut at `cuts`, then flush."""
    out: list[str] = []
    bounds = [0, *sorted(min(cut, len(token_ids)) for cut in cuts), len(token_ids)]
    for start, end in itertools.pairwise(bounds):
        out.append(detokenizer.push(token_ids[start:end]).text)
    last = detokenizer.flush()
    return "".join(out) + last.text, last.stopped, last.consumed_tokens


TOKEN_IDS = st.lists(st.integers(0, 49151), max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=8)


@given(token_ids=TOKEN_IDS, cuts=CUTS, skip=st.booleans())
def test_any_split_gives_the_same_text(
    text: TextProcessor,
    transformers_tokenizer: Any,
    token_ids: list[int],
    cuts: list[int],
    skip: bool,
) -> None:
    whole = text.decode(token_ids, skip_special=skip)
    assert stream(text.detokenizer(skip_special=skip), token_ids, cuts)[0] == whole
    if not skip:  # the library decodes around skipped tokens piece by piece
        backend = transformers_tokenizer.backend_tokenizer
        assert backend.decode(token_ids, skip_special_tokens=False) == whole or "\ufffd" in whole


@given(sample=st.text(TEXT, max_size=60), cuts=CUTS)
def test_emitted_text_is_whole_characters(
    text: TextProcessor, sample: str, cuts: list[int]
) -> None:
    token_ids = text.encode("🎉" + sample + "👩‍👩‍👧‍👦")
    detokenizer = text.detokenizer(skip_special=False)
    for token_id in token_ids:
        assert "\ufffd" not in detokenizer.push([token_id]).text or "\ufffd" in sample


# A small alphabet, so that stop strings occur and overlap.
SHORT = st.text(alphabet="ab é🎉", min_size=1, max_size=4)


@settings(max_examples=300)
@given(
    sample=st.text(alphabet="ab é🎉", max_size=40),
    stop=st.lists(SHORT, min_size=1, max_size=3),
    cuts=CUTS,
    include=st.booleans(),
    by_bytes=st.booleans(),
)
def test_stop_strings(
    text: TextProcessor,
    sample: str,
    stop: list[str],
    cuts: list[int],
    include: bool,
    by_bytes: bool,
) -> None:
    """Against a search through the whole text, one character at a time. By bytes, every token is
    one byte, so that each character crosses token borders."""
    if by_bytes:
        token_ids = list(sample.encode())
        made = IncrementalDetokenizer(lambda value: bytes([value]), stop, include)
    else:
        token_ids = text.encode(sample)
        made = text.detokenizer(stop, include)
    expected, expected_stop = sample, None
    for end in range(len(sample) + 1):
        met = [string for string in stop if sample[:end].endswith(string)]
        if met:
            expected_stop = max(met, key=len)
            expected = sample[: end if include else end - len(expected_stop)]
            break
    got, stopped, consumed = stream(made, token_ids, cuts)
    assert (got, stopped) == (expected, expected_stop)
    if expected_stop is None:
        assert consumed == len(token_ids)
    else:
        needed = len(
            b"".join(made_bytes(text, token_ids[: consumed - 1], by_bytes)).decode(errors="ignore")
        )
        full = expected if include else expected + expected_stop
        assert needed < len(full), "an earlier token completed the stop string"


def made_bytes(text: TextProcessor, token_ids: list[int], by_bytes: bool) -> list[bytes]:
    if by_bytes:
        return [bytes([token_id]) for token_id in token_ids]
    return [text.token_bytes(token_id) for token_id in token_ids]


def test_text_that_may_begin_a_stop_string_is_held_back(text: TextProcessor) -> None:
    made = IncrementalDetokenizer(lambda value: bytes([value]), ["END."])
    assert made.push(list(b"one E")).text == "one "
    assert made.push(list(b"ND")).text == ""
    assert made.push(list(b"s")).text == "ENDs"
    delta = made.push(list(b"END.more"))
    assert (delta.text, delta.stopped, delta.consumed_tokens) == ("", "END.", 12)
    assert made.push(list(b"late")).consumed_tokens == 12
    assert made.flush().text == ""


@pytest.mark.parametrize("kind", ["byte level", "byte fallback"])
def test_tokens_outside_the_alphabet_stand_for_what_the_library_decodes(
    tmp_path: Path, kind: str
) -> None:
    """Each by itself; added tokens whatever they are written in."""
    tokens = [
        "a",
        "\u0120a",
        "\u4e2d\u00e9",
        "<0x0A>",
        "<0xE6>",
        "\u2581b",
        "\U0001f642",
        "\u0120\u4e2d",
    ]
    tokenizer = Tokenizer(models.BPE(vocab=dict(zip(tokens, range(8), strict=True)), merges=[]))
    fallback = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    tokenizer.decoder = decoders.ByteLevel() if kind == "byte level" else fallback
    tokenizer.add_tokens([AddedToken("\u4e2d <0x0A>\u0120", normalized=False)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    text = TextProcessor(tmp_path)
    for token_id in range(8):
        assert text.token_text(token_id) == tokenizer.decode([token_id]), tokens[token_id]
    assert text.token_text(8) == "\u4e2d <0x0A>\u0120"


def test_unfinished_character_at_the_end(text: TextProcessor) -> None:
    made = IncrementalDetokenizer(lambda value: bytes([value]))
    assert made.push([0xF0, 0x9F]).text == ""
    assert made.flush().text == "\ufffd"


def test_empty_stop_string_is_refused(text: TextProcessor) -> None:
    with pytest.raises(ValueError, match="empty"):
        text.detokenizer([""])
