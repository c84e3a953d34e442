import react from "@vitejs/plugin-react";
import type { Rolldown } from "vite";
import { defineConfig } from "vitest/config";
import { mantineStyles } from "./mantine-styles.mjs";
import { preloads } from "./preloads.mjs";

/** Where `npm run dev` finds a running platform. */
const PLATFORM = "http://127.0.0.1:8000";

const CHUNKS = "chunks.json";
/** A chunk is a request: all that the door needs is one. */
const DOOR: Rolldown.CodeSplittingGroup = {
  name: "portal",
  tags: ["$initial"],
  test: (id) => !/docs|swagger/.test(id),
};

export default defineConfig({
  base: "./", // below <base>, into which the platform puts its path (portal.py)
  plugins: [react(), mantineStyles(), preloads(CHUNKS)],
  // The platform puts a fresh nonce into its place with each answer (portal.py).
  html: { cspNonce: "__TENORA_CSP_NONCE__" },
  build: {
    rolldownOptions: {
      input: ["index.html", "docs.html"],
      output: { codeSplitting: { groups: [DOOR] } },
    },
    // Everything is a file of its own: the policy allows no data: addresses but in pictures.
    assetsInlineLimit: 0,
    // Which chunks a page loads: for its preloads, and for the test of the first screen
    // (tests/repo/test_portal_size.py).
    manifest: CHUNKS,
    license: { fileName: "licenses/packages.md" },
    // All of these know light-dark(), so it stays as written instead of being rewritten.
    target: ["chrome123", "firefox120", "safari17.5"],
    chunkSizeWarningLimit: 1800,
  },
  server: {
    proxy: {
      "/auth": PLATFORM,
      "/v1": PLATFORM,
      "/admin/v1": PLATFORM,
      "/readyz": PLATFORM,
      "/openapi.json": PLATFORM,
    },
  },
  test: { environment: "node", include: ["src/**/*.test.ts"] },
});
