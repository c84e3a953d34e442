// Writes dist/preloads.json: for each page's address the files that it loads beside the door's own.
// The platform puts them into the head of what it answers there (portal.py), so that the browser
// fetches them beside the first script instead of after it.

import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const ROUTES = new URL("src/routes.tsx", import.meta.url).pathname;
const DOOR = "index.html";

/** A plugin for Vite, which has to write its manifest into `manifest`. */
export function preloads(manifest) {
  return {
    name: "preloads",
    apply: "build",
    writeBundle({ dir }) {
      const chunks = JSON.parse(readFileSync(join(dir, manifest), "utf8"));
      const known = filesOf(chunks, DOOR);
      const listed = pagesOf(readFileSync(ROUTES, "utf8")).map(([address, module]) => [
        address,
        [...filesOf(chunks, `src/${module}.tsx`)].filter((file) => !known.has(file)),
      ]);
      writeFileSync(join(dir, "preloads.json"), JSON.stringify(Object.fromEntries(listed)));
    },
  };
}

/** Pairs of an address and the module that is shown there. */
function pagesOf(routes) {
  const loader = /const (\w+): Loader = \(\) => import\("\.\/([^"]+)"\)/g;
  const loaders = [...routes.matchAll(loader)];
  return routes
    .split(/\bpage\(\s*"/)
    .slice(1)
    .map((page) => {
      const address = page.slice(0, page.indexOf('"'));
      const own = /import\("\.\/([^"]+)"\)/.exec(page)?.[1];
      const shared = loaders.find(([, name]) => page.includes(` ${name}`))?.[2];
      return [address, shared ?? own];
    });
}

function filesOf(chunks, name, found = new Set(), seen = new Set()) {
  if (seen.has(name)) return found;
  seen.add(name);
  const chunk = chunks[name];
  if (chunk === undefined) throw new Error(`${name} is not in the manifest.`);
  for (const file of [chunk.file, ...(chunk.css ?? [])]) found.add(file);
  for (const each of chunk.imports ?? []) filesOf(chunks, each, found, seen);
  return found;
}
