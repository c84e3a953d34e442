"""Names and reasons are refused where they hold what nobody sees or a terminal obeys, and whatever
text a command shows, its terminal only gets what can be printed."""

from __future__ import annotations

import ast
import io
import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from api_harness import Api
from tenora_platform.app import openapi_document
from tenora_platform.cli.client import show
from tenora_platform.cli.errors import show_error
from tenora_platform.cli.output import PrintableConsole, say, terminal
from tenora_platform.people.oidc import _identity

HIDDEN = (
    *map(chr, (*range(0x20), *range(0x7F, 0xA0))),
    *"\u00ad\u061c\u200b\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e",
    *"\u2060\u2066\u2067\u2068\u2069\ufeff",
)
WRITTEN = re.compile(
    r"(^|_)(name|names|description|label|note|reason|reference|title|email|address|tax_id"
    r"|trust_group|comment|models)$"
)
"""Fields that somebody writes for others to read."""
CHECKED_BY_ITS_ROUTE = {"AdapterImport.name", "POST /v1/adapters.name"}
"""Letters, digits and `._-` only; `test_adapter_names` asks for it."""
OF_INFERENCE = (
    *("Block", "ChatMessage", "ChosenFunction", "FunctionCall", "FunctionTool", "InputItem"),
    *("NamedFunction", "NamedSchema", "ResponseTool", "TextFormat", "ToolDefinition", "ToolPick"),
)
"""Goes to the model, and is kept as a request's contents if at all."""
PREFLIGHT = "POST /v1/adapters/preflight.name"
COMMANDS = Path(__file__).parents[2] / "platform" / "tenora_platform"


def texts(schema: Any, components: Any, path: str, seen: set[str]) -> Iterator[tuple[str, Any]]:
    """Every field of a body that holds a text, by the model that has it."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            seen.add(name)
            yield from texts(components[name], components, name, seen)
        return
    for each in [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]:
        yield from texts(each, components, path, seen)
    for field, each in schema.get("properties", {}).items():
        yield from texts(each, components, f"{path}.{field}", seen)
    if isinstance(schema.get("items"), dict):
        yield from texts(schema["items"], components, path, seen)
    if schema.get("type") == "string" and "enum" not in schema and "const" not in schema:
        yield path, schema


def written() -> dict[str, Any]:
    document = openapi_document()
    found: dict[str, Any] = {}
    seen: set[str] = set()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                schema, at = content["schema"], f"{method.upper()} {path}"
                found |= dict(texts(schema, document["components"]["schemas"], at, seen))
    return {
        name: schema
        for name, schema in found.items()
        if WRITTEN.search(name.rpartition(".")[2]) and not name.startswith(OF_INFERENCE)
    }


def test_every_name_refuses_what_nobody_sees() -> None:
    fields = written()
    assert len(fields) > 25
    loose = {
        f"{name}: {[letter for letter in HIDDEN if matches(schema, letter)]!r}"
        for name, schema in fields.items()
        if name not in {*CHECKED_BY_ITS_ROUTE, PREFLIGHT}
        and any(matches(schema, letter) for letter in HIDDEN)
    }
    assert loose == set()


def matches(schema: Any, letter: str) -> bool:
    if letter == "\n" and schema.get("maxLength", 0) >= 1000:
        return False  # of an address, which has lines
    pattern = schema.get("pattern", "")
    return re.search(pattern, f"a{letter}b@c" if "@" in pattern else f"a{letter}b") is not None


@pytest.mark.parametrize("letter", ["\x1b", "\x9b", "\u202e", "\u200b", "\u2028", "\ufeff"])
async def test_a_name_with_it_is_a_clear_error(api: Api, letter: str) -> None:
    body = {"name": f"acme{letter}corp", "plan": "standard"}
    answer = await api.admin("POST", "/admin/v1/tenants", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "name"
    assert "must not contain control characters, zero-width characters" in error["message"]


@pytest.mark.parametrize("name", ["Åsa & søn", "東京 店", "شركة", "می\u200cخواهم", "👩\u200d🔬"])
async def test_names_of_all_scripts_are_taken(api: Api, name: str) -> None:
    made = await api.admin("POST", "/admin/v1/tenants", json={"name": name, "plan": "standard"})
    assert made.status_code == 201, made.text
    assert made.json()["name"] == name


@pytest.mark.parametrize("name", ["a\x1bb", "a\u202eb", "a\x9bb", "a\u200db", "a b"])
async def test_adapter_names(api: Api, name: str) -> None:
    tenant = await api.new_tenant("named")
    for path in ("/v1/adapters", "/v1/adapters/preflight"):
        answer = await api.call(
            tenant.key, "POST", path, files={"name": (None, name), "adapter_config": (None, "{}")}
        )
        assert answer.status_code == 400, answer.text


def test_what_a_provider_says_of_a_person_has_none() -> None:
    said = {"sub": "1", "name": "A\x1b\u202ed\u200ba", "email": "bo\u200bss@example.com"}
    person = _identity("https://id.example", said, {})
    assert (person.name, person.email) == ("Ada", None)
    plain = _identity("https://id.example", {"sub": "1", "email": "a@b.example"}, {"name": "Ada"})
    assert (plain.name, plain.email) == ("Ada", "a@b.example")


SHOWN = "evil\x1b[2J\x9b31m\u202eesrever\u200b\r\x07\x00\ud800end\u2028"


def unprintable(text: str) -> set[str]:
    return {
        letter
        for letter in text.replace("\n", "")
        if unicodedata.category(letter) in ("Cc", "Cf", "Zl", "Zp", "Cs")
    }


def test_messages_tables_and_errors_show_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": "1", "name": f"a\n{SHOWN}", "all": [SHOWN, SHOWN]}, {"id": "22", "name": "b"}]
    show(rows, {"id": "id", "name": "name", "all": "all"}, as_json=False)
    show(rows, {"id": "id"}, as_json=True)
    say(f"warning: {SHOWN}", err=True)
    show_error(SHOWN, SHOWN)
    terminal().print(SHOWN, markup=False)
    out, err = capsys.readouterr()
    assert unprintable(out + err) == set()
    table, _, data = out.partition("[\n")
    assert len(table.splitlines()) == 3, "a name begins no line of its own"
    shown = json.loads("[\n" + data.partition("\n]\n")[0] + "\n]")
    assert shown == json.loads(json.dumps(rows))
    assert "evil\\x1b[2J\\x9b31m\\u202eesrever" in err


def test_what_rich_draws_is_escaped_and_its_own_codes_are_not() -> None:
    file = io.StringIO()
    console = PrintableConsole(file=file, force_terminal=True, width=400, color_system="standard")
    table = Table("name", title=SHOWN)
    table.add_row(SHOWN)
    table.add_row(Text(SHOWN))
    console.print(table)
    console.print(f"[bold red]error:[/] {SHOWN}".replace("[2J", ""))
    with Progress(console=console) as bar:
        bar.add_task(SHOWN, total=1)
    written = file.getvalue()
    own = re.sub(r"\x1b\[(\d*(;\d+)*m|\?25[lh]|2?K|\d*A)", "", written)
    assert unprintable(own.replace("\r", "")) == set()
    assert "\x1b[1;31m" in written
    assert written.count("evil\\x1b") >= 4


def test_commands_write_nowhere_else() -> None:
    """Only `cli/output.py` knows how to write to a terminal."""
    wrong = []
    for path in [*(COMMANDS / "cli").glob("*.py"), COMMANDS / "demo.py"]:
        if path.name == "output.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            said = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if said in ("print", "Console", "typer.echo", "sys.stdout.write", "sys.stderr.write"):
                wrong.append(f"{path.name}:{node.lineno}: {said}")  # type: ignore[attr-defined]
    assert wrong == []
