import { describe, expect, it } from "vitest";
import { candidatesIn, type Entry, entriesOf, nothingFound, pack, suggestName } from "./folder";

function entry(path: string, content = "{}"): Entry {
  return { path, file: new File([content], path.slice(path.lastIndexOf("/") + 1)) };
}

/** A safetensors file without tensors. */
const EMPTY = `\u0002\u0000\u0000\u0000\u0000\u0000\u0000\u0000{}`;

function peft(folder: string): Entry[] {
  return [
    entry(`${folder}adapter_config.json`, '{"peft_type": "LORA", "r": 8}'),
    entry(`${folder}adapter_model.safetensors`, EMPTY),
  ];
}

describe("candidatesIn", () => {
  it("offers every checkpoint, the folder's own first, then the last", async () => {
    const found = await candidatesIn([
      ...peft("run/checkpoint-100/"),
      ...peft("run/checkpoint-200/"),
      entry("run/trainer_state.json"),
      ...peft("run/"),
    ]);
    expect(found.map(({ folder, step }) => [folder, step])).toEqual([
      ["run", null],
      ["run/checkpoint-200", 200],
      ["run/checkpoint-100", 100],
    ]);
  });

  it("puts what cannot be sent last and says why", async () => {
    const found = await candidatesIn([
      entry("run/adapter_config.json"),
      entry("run/adapter_model.bin", "PK"),
      ...peft("run/checkpoint-1/"),
    ]);
    expect(found.map(({ folder }) => folder)).toEqual(["run/checkpoint-1", "run"]);
    expect(found[1]?.problem).toContain("is a pickle file");
  });

  it("takes shards by their index, and misses one", async () => {
    const index = JSON.stringify({ weight_map: { a: "m-2.safetensors", b: "m-1.safetensors" } });
    const entries = [
      entry("adapter_config.json"),
      entry("adapter_model.safetensors.index.json", index),
      entry("m-1.safetensors", EMPTY),
      entry("m-2.safetensors", EMPTY),
    ];
    const [whole] = await candidatesIn(entries);
    expect(whole?.weights.map(({ name }) => name)).toEqual(["m-1.safetensors", "m-2.safetensors"]);
    const [short] = await candidatesIn(entries.slice(0, 3));
    expect(short?.problem).toContain("m-2.safetensors, but this file is missing");
  });

  it("finds nothing where there is no config, and says so", async () => {
    expect(await candidatesIn([entry("notes/readme.md")])).toEqual([]);
    expect(nothingFound([entry("notes/readme.md")])).toContain("This folder has no adapter");
    expect(nothingFound([entry("w/adapter_model.safetensors")])).toContain(
      "no adapter_config.json",
    );
    expect(nothingFound([])).toContain("empty");
  });
});

describe("suggestName", () => {
  it("is the folder's in letters the server takes, never a checkpoint's", () => {
    expect(suggestName("my adapter")).toBe("my-adapter");
    expect(suggestName("runs/support/checkpoint-100")).toBe("support");
    expect(suggestName("")).toBe("");
    expect(suggestName("(new)")).toBe("new-");
  });
});

describe("pack", () => {
  const only = async (config: object, ...more: Entry[]) => {
    const [candidate] = await candidatesIn([
      entry("adapter_config.json", JSON.stringify(config)),
      entry("adapter_model.safetensors", EMPTY),
      ...more,
    ]);
    if (candidate === undefined) throw new Error("no candidate");
    return pack(candidate);
  };

  it("doubts what is never served", async () => {
    const config = { use_dora: true, bias: "all", modules_to_save: ["lm_head"], peft_type: "IA3" };
    expect((await only(config)).doubts).toHaveLength(4);
    expect((await only({ bias: "none", use_dora: false, peft_type: "LORA" })).doubts).toEqual([]);
  });

  it("finds the chat template where transformers looks", async () => {
    const named = [
      { name: "tool_use", template: "t" },
      { name: "default", template: "d" },
    ];
    const tokenizer = entry("tokenizer_config.json", JSON.stringify({ chat_template: named }));
    expect((await only({})).template).toBeNull();
    expect((await only({}, tokenizer)).template).toBe("d");
    expect((await only({}, tokenizer, entry("chat_template.jinja", "own"))).template).toBe("own");
    expect((await only({}, entry("tokenizer_config.json", "{broken"))).template).toBeNull();
  });
});

describe("pack of a draft layer", () => {
  it("sends the one that lies in the folder", async () => {
    const [plain] = await candidatesIn(peft("a/"));
    const [drafting] = await candidatesIn([
      ...peft("b/"),
      entry("b/draft_layer.safetensors", `${EMPTY}more`),
    ]);
    if (plain === undefined || drafting === undefined) throw new Error("no candidate");
    expect((await pack(plain)).draftLayer).toBeNull();
    const { draftLayer } = await pack(drafting);
    expect([draftLayer?.header.size, draftLayer?.whole.size]).toEqual([10, 14]);
  });

  it("says which file is none", async () => {
    const [broken] = await candidatesIn([...peft("a/"), entry("a/draft_layer.safetensors", "x")]);
    if (broken === undefined) throw new Error("no candidate");
    await expect(pack(broken)).rejects.toThrow("draft_layer.safetensors is too short");
  });
});

describe("entriesOf", () => {
  it("takes the path that the browser gives", () => {
    const file = new File([], "a.json");
    Object.defineProperty(file, "webkitRelativePath", { value: "run/a.json" });
    expect(entriesOf([file])[0]?.path).toBe("run/a.json");
  });
});
