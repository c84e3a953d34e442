// The styles of those Mantine components that the portal uses, and of what these are made of: half
// of all, and they come before anything can be shown. Found anew for each build.

import { globSync, readFileSync } from "node:fs";
import { basename, dirname, resolve } from "node:path";

const NAME = "virtual:mantine-styles.css";
const MANTINE = new URL("node_modules/@mantine/core/", import.meta.url).pathname;
const SOURCES = new URL("src/", import.meta.url).pathname;
const ALWAYS = ["baseline", "default-css-variables", "global"];
/** Styles that are named after a part: what they belong to is in the name, but for this one. */
const PARTS = { InlineInput: ["Checkbox", "Radio", "Switch"] };

/** A plugin for Vite: `import "virtual:mantine-styles.css"`. */
export function mantineStyles() {
  return {
    name: "mantine-styles",
    resolveId: (id) => (id === NAME ? `\0${NAME}` : null),
    load: (id) => (id === `\0${NAME}` ? stylesOf(componentsOf(usedNames())) : null),
  };
}

function usedNames() {
  const names = new Set();
  for (const file of globSync("**/*.{ts,tsx}", { cwd: SOURCES })) {
    const text = readFileSync(SOURCES + file, "utf8");
    for (const [, listed] of text.matchAll(/import \{([^}]*)\} from "@mantine\/\w+"/g))
      for (const [name] of listed.matchAll(/\b[A-Z]\w*/g)) names.add(name);
  }
  return names;
}

/** With all that these import of Mantine's own, in turn; Mantine's other packages use these. */
function componentsOf(names) {
  const found = new Set(["Portal", "Notification", "Modal", "Loader", "LoadingOverlay"]);
  const waiting = [...found, ...names];
  for (let name = waiting.pop(); name !== undefined; name = waiting.pop()) {
    found.add(name);
    for (const file of globSync(`esm/components/${name}/**/*.mjs`, { cwd: MANTINE })) {
      const text = readFileSync(MANTINE + file, "utf8");
      for (const [, path] of text.matchAll(/from "(\.[^"]+)"/g)) {
        const [, other] = /components\/([^/]+)\//.exec(resolve(dirname(`/${file}`), path)) ?? [];
        if (other !== undefined && !found.has(other)) {
          found.add(other);
          waiting.push(other);
        }
      }
    }
  }
  return found;
}

/** In the order of Mantine's own sheet, for later rules override earlier ones. */
function stylesOf(components) {
  const whole = readFileSync(`${MANTINE}styles.css`, "utf8");
  const pieces = [];
  for (const file of globSync("styles/*.css", { cwd: MANTINE })) {
    const name = basename(file, ".css");
    if (name.endsWith(".layer")) continue;
    const owners = PARTS[name] ?? [name, name.replace(/(Card|Indicator)$/, "")];
    if (!ALWAYS.includes(name) && !owners.some((owner) => components.has(owner))) continue;
    const text = readFileSync(MANTINE + file, "utf8").trim();
    const place = whole.indexOf(text);
    if (place < 0) throw new Error(`${file} is not in Mantine's styles.css as it is.`);
    pieces.push({ place, text });
  }
  return pieces
    .sort((one, other) => one.place - other.place)
    .map(({ text }) => text)
    .join("\n");
}
