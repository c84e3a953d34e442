import { describe, expect, it } from "vitest";
import { forecast, pickFiles, suggestName } from "./files";

const NOTHING = { config: null, weights: null, refused: null };

function file(name: string, content = "{}", path = ""): File {
  const made = new File([content], name);
  Object.defineProperty(made, "webkitRelativePath", { value: path });
  return made;
}

describe("pickFiles", () => {
  it("takes the two files of a PEFT folder and leaves the rest", () => {
    const files = [
      "README.md",
      "adapter_config.json",
      "tokenizer.json",
      "adapter_model.safetensors",
    ];
    const picked = pickFiles(
      files.map((name) => file(name)),
      NOTHING,
    );
    expect(picked.config?.name).toBe("adapter_config.json");
    expect(picked.weights?.name).toBe("adapter_model.safetensors");
  });

  it("takes the folder's own files, not those of a checkpoint in it", () => {
    const dropped = [
      file("adapter_config.json", "old", "run/checkpoint-5/adapter_config.json"),
      file("adapter_model.safetensors", "old", "run/checkpoint-5/adapter_model.safetensors"),
      file("adapter_config.json", "{}", "run/adapter_config.json"),
      file("adapter_model.safetensors", "", "run/adapter_model.safetensors"),
    ];
    const picked = pickFiles(dropped, NOTHING);
    expect(picked.config).toBe(dropped[2]);
    expect(picked.weights).toBe(dropped[3]);
  });

  it("keeps what was there when only the other file comes", () => {
    const first = pickFiles([file("adapter_config.json")], NOTHING);
    const second = pickFiles([file("mine.safetensors")], first);
    expect(second.config?.name).toBe("adapter_config.json");
    expect(second.weights?.name).toBe("mine.safetensors");
  });

  it("says why a pickle is refused", () => {
    expect(pickFiles([file("adapter_model.bin")], NOTHING).refused).toContain("pickle");
  });
});

describe("suggestName", () => {
  it("is the folder, in letters the server takes", () => {
    expect(suggestName([file("a.json", "{}", "my adapter/a.json")])).toBe("my-adapter");
    expect(suggestName([file("a.json")])).toBe("");
  });
});

describe("forecast", () => {
  it("reads the config and reports what is not a safetensors file", async () => {
    const config = file(
      "adapter_config.json",
      '{"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}',
    );
    const weights = file("adapter_model.safetensors", "PK\u0003\u0004 this is a zip, say");
    const result = await forecast({ config, weights, refused: null });
    expect(result.config).toEqual({ rank: 8, alpha: 16, modules: "q_proj" });
    expect(result.weights).toBeNull();
    expect(result.doubts).toHaveLength(1);
  });
});
